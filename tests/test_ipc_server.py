"""The engine's socket against clients that are gone, frozen or talk nonsense."""

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq

from ipc import messages as m
from ipc import server as server_module
from ipc.server import Server
from ipc.slab import Slab
from tests.fake_engine import until


class Peer:
    """A client made of a bare socket."""

    def __init__(self, address: str, identity: bytes = b"peer", queue: int = 1000) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.IDENTITY, identity)
        self.socket.setsockopt(zmq.RCVHWM, queue)
        self.socket.setsockopt(zmq.RCVBUF, 4096)
        self.socket.connect(address)

    def send(self, *messages: m.ToEngine) -> None:
        for message in messages:
            self.socket.send(m.encode(message))

    def receive(self) -> m.ToClient:
        assert self.socket.poll(5000), "nothing came"
        message: m.ToClient = m.decode_to_client(self.socket.recv())
        return message

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
def slab(tmp_path: Path) -> Iterator[Slab]:
    slab = Slab.create(str(tmp_path / "x.slab"), 4, 8)
    yield slab
    slab.close()


@pytest.fixture
def server(tmp_path: Path, slab: Slab) -> Iterator[Server]:
    server = Server(f"ipc://{tmp_path}/x.sock", slab, queue=4)
    yield server
    server.close()


@pytest.fixture
def peer(server: Server) -> Iterator[Peer]:
    peer = Peer(server.addresses[0])
    yield peer
    peer.close()


def received(server: Server, n: int = 1) -> list[tuple[bytes, m.ToEngine]]:
    """The next `n` messages."""
    messages: list[tuple[bytes, m.ToEngine]] = []

    def enough() -> bool:
        if server.poll(50):
            messages.extend(server.receive())
        return len(messages) >= n

    until(enough)
    return messages


def welcome() -> m.Welcome:
    return m.Welcome(m.PROTOCOL, "boot", m.ModelInfo("", "", "", 0, 0, "", 0, 0, 0, 0, 0, 0), 1, 1, 1, 1, 1, "")


def test_messages_arrive_with_their_client_and_answers_go_back(server: Server, peer: Peer) -> None:
    peer.send(m.Hello(), m.Abort(7))
    assert received(server, 2) == [(b"peer", m.Hello()), (b"peer", m.Abort(7))]
    assert server.send(b"peer", m.Step([m.Admitted(7)]))
    assert peer.receive() == m.Step([m.Admitted(7)])


def test_receive_is_bounded(server: Server, peer: Peer) -> None:
    peer.send(*(m.Abort(i) for i in range(5)))
    until(lambda: server.poll(50))
    assert len(server.receive(limit=2)) <= 2


def test_receive_does_not_block(server: Server) -> None:
    assert server.receive() == []
    assert not server.poll(0)


GARBAGE = [
    [b""],
    [b"\xc1"],
    [b"\xdd\xff\xff\xff\xff"],
    [b"\x91" * 3000],
    [m.encode(m.Abort(1))[:-1]],
    [m.encode(m.Step([]))],
    [b"two", b"frames"],
    [b"", m.encode(m.Abort(1))],
]


@pytest.mark.parametrize("frames", GARBAGE, ids=lambda frames: repr(frames)[:20])
def test_garbage_is_counted_and_the_next_message_arrives(server: Server, peer: Peer, frames: list[bytes]) -> None:
    peer.socket.send_multipart(frames)
    peer.send(m.Abort(2))
    assert received(server) == [(b"peer", m.Abort(2))]
    assert server.malformed == 1


@pytest.mark.parametrize("tag", ["task", "embed"])
def test_an_invalid_task_gets_its_final(server: Server, peer: Peer, tag: str) -> None:
    peer.socket.send(msgspec.msgpack.encode([tag, 5, "not bytes"]))
    until(lambda: server.poll(50) and not server.receive() and server.malformed)
    step = peer.receive()
    assert isinstance(step, m.Step) and isinstance(step.results[0], m.Final)
    final = step.results[0]
    assert (final.id, final.reason) == (5, "error")
    assert final.error is not None and final.error.code == 400 and "length" in final.error.message


def test_an_invalid_control_request_fails(server: Server, peer: Peer) -> None:
    peer.socket.send(msgspec.msgpack.encode(["slot_action", 6, "zero", "save"]))
    until(lambda: server.poll(50) and not server.receive() and server.malformed)
    reply = peer.receive()
    assert isinstance(reply, m.Failure) and (reply.id, reply.error.code) == (6, 400)


def test_a_client_that_left_is_noticed_at_the_next_send(server: Server, slab: Slab, peer: Peer) -> None:
    peer.send(m.Hello())
    received(server)
    slab.put(np.ones(8, np.float32), b"peer")
    peer.close()
    until(lambda: not server.send(b"peer", m.Step([])))
    assert slab.n_used == 0
    assert (b"peer", m.Bye()) in server.receive()


def test_a_client_nobody_sends_to_is_noticed_too(
    server: Server, slab: Slab, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "PROBE_SECONDS", 0.01)
    peer.send(m.Hello())
    received(server)
    slab.put(np.ones(8, np.float32), b"peer")
    peer.close()
    assert received(server) == [(b"peer", m.Bye())]
    assert slab.n_used == 0


def test_a_client_never_seen_is_gone(server: Server) -> None:
    assert not server.send(b"nobody", m.Step([]))


def test_a_frozen_client_is_given_up_and_told_when_it_reads_again(server: Server, slab: Slab) -> None:
    peer = Peer(server.addresses[0], b"frozen", queue=1)
    peer.send(m.Hello())
    received(server)
    assert server.send(b"frozen", welcome())
    slab.put(np.ones(8, np.float32), b"frozen")
    payload = m.Step([m.Delta(1, "x" * 100_000, [])])
    sent = 0
    while server.send(b"frozen", payload):
        sent += 1
        assert sent < 1000, "the queue has no bound"
    assert slab.n_used == 0
    assert (b"frozen", m.Bye()) in server.receive()
    assert isinstance(peer.receive(), m.Welcome)
    for _ in range(sent):
        assert peer.receive() == payload
    until(lambda: server.send(b"frozen", m.Step([])))
    assert isinstance(peer.receive(), m.Welcome)
    assert peer.receive() == m.Step([])
    peer.close()


def test_free_gives_rows_back(server: Server, slab: Slab, peer: Peer) -> None:
    ref = slab.put(np.ones(8, np.float32), b"peer")
    peer.send(m.Free([(ref.row, ref.generation)]), m.Abort(1))
    assert received(server) == [(b"peer", m.Abort(1))]
    assert slab.n_used == 0


def test_hello_frees_what_the_client_held_before(server: Server, slab: Slab, peer: Peer) -> None:
    slab.put(np.ones(8, np.float32), b"peer")
    peer.send(m.Hello())
    received(server)
    assert slab.n_used == 0


def test_a_client_without_the_slab_gets_vectors_inline(server: Server, slab: Slab, peer: Peer) -> None:
    peer.send(m.Hello(slab=False))
    received(server)
    assert slab.put(np.ones(8, np.float32), b"peer").inline
    assert not slab.put(np.ones(8, np.float32), b"other").inline


def test_a_reconnecting_client_takes_its_identity_over(server: Server, peer: Peer) -> None:
    peer.send(m.Hello())
    received(server)
    again = Peer(server.addresses[0], b"peer")
    again.send(m.Hello())
    received(server)
    assert server.send(b"peer", m.Step([]))
    assert again.receive() == m.Step([])
    again.close()


# the address


def test_a_path_too_long_for_the_kernel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at most 107"):
        Server(f"ipc://{tmp_path}/{'x' * 108}.sock")


@pytest.mark.parametrize("address", ["ipc://relative.sock", "tcp://127.0.0.1:0", "/x.sock", "ipc://@abstract"])
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match="expected ipc:///ABSOLUTE/PATH"):
        Server(address)


def test_the_socket_is_for_its_user_and_goes_away(tmp_path: Path) -> None:
    path = tmp_path / "run" / "x.sock"
    server = Server(f"ipc://{path}")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(path.parent).st_mode) == 0o700
    server.close()
    assert not path.exists()


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    Server(f"ipc://{path}").close()


def test_the_socket_of_a_running_engine_is_left_alone(server: Server, peer: Peer) -> None:
    with pytest.raises(OSError, match="another engine"):
        Server(server.addresses[0])
    peer.send(m.Abort(1))
    assert received(server) == [(b"peer", m.Abort(1))]


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="not a socket"):
        Server(f"ipc://{path}")
    assert path.read_text() == "precious"
