"""Clients on other hosts: CURVE keys, and vectors inside the messages."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq
import zmq.auth

from ipc import messages as m
from ipc.client import Client, Curve, EngineGone, State
from ipc.server import Server, TcpBind
from tests.fake_engine import FakeEngine, logits

LOCAL = "tcp://127.0.0.1:*"


class Keys:
    """Certificate files of an engine, a client it knows and one it does not."""

    def __init__(self, folder: Path) -> None:
        (folder / "known").mkdir()
        self.engine_public, self.engine_secret = zmq.auth.create_certificates(folder, "engine")
        _, self.client = zmq.auth.create_certificates(folder / "known", "client")
        _, self.stranger = zmq.auth.create_certificates(folder, "stranger")
        self.bind = TcpBind.load(LOCAL, self.engine_secret, str(folder / "known"))


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


@pytest.fixture
def engine(tmp_path: Path, keys: Keys) -> Iterator[FakeEngine]:
    with FakeEngine(tmp_path, tcp=keys.bind) as engine:
        yield engine


def test_a_known_client_is_served_with_inline_vectors(engine: FakeEngine, keys: Keys) -> None:
    with Client(engine.server.addresses[1], curve=Curve.load(keys.engine_public, keys.client)) as client:
        client.ready(5)
        assert client.state() is State.READY
        task = m.Task(0, np.zeros(1, "<i4").tobytes(), m.Sampling(), max_tokens=1, n_probs=1)
        delta, final = client.generate(task)
        assert isinstance(delta, m.Delta) and isinstance(final, m.Final)
        ref = delta.probs[0].logits
        assert ref is not None and ref.inline
        assert client.row(ref).tolist() == logits(0, 64).tolist()


def test_a_stranger_is_not_let_in(engine: FakeEngine, keys: Keys) -> None:
    for curve in (Curve.load(keys.engine_public, keys.stranger), None):
        with Client(engine.server.addresses[1], curve=curve) as client, pytest.raises(EngineGone):
            client.ready(0.3)
    assert engine.received == []


def test_local_clients_need_no_keys(engine: FakeEngine) -> None:
    with Client(engine.address) as client:
        client.ready(5)


def test_a_bind_without_clients_is_refused(tmp_path: Path, keys: Keys) -> None:
    with pytest.raises(ValueError, match="public keys of the clients"):
        Server(f"ipc://{tmp_path}/x.sock", tcp=TcpBind(LOCAL, keys.bind.secret_key, ()))
    Server(f"ipc://{tmp_path}/x.sock").close()


def test_a_certificate_without_its_secret_is_refused(tmp_path: Path, keys: Keys) -> None:
    with pytest.raises(ValueError, match="no secret key"):
        TcpBind.load(LOCAL, keys.engine_public, str(tmp_path / "known"))
    with pytest.raises(ValueError, match="no secret key"):
        Curve.load(keys.engine_public, keys.engine_public)
