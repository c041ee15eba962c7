"""The synchronous client, and what it needs."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipc import messages as m
from ipc.client import Client, EngineGone, Overloaded, Refused, State
from tests.fake_engine import FakeEngine, logits, until


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[FakeEngine]:
    with FakeEngine(tmp_path) as engine:
        yield engine


@pytest.fixture
def client(engine: FakeEngine) -> Iterator[Client]:
    with Client(engine.address, engine.slab_path) as client:
        client.ready(5)
        yield client


def task(**fields: Any) -> m.Task:
    return m.Task(0, np.arange(3, dtype="<i4").tobytes(), m.Sampling(), **fields)


def text(results: list[Any]) -> str:
    return "".join(result.text for result in results if isinstance(result, m.Delta))


def test_generate_gives_text_and_one_final(client: Client) -> None:
    results = list(client.generate(task(max_tokens=3)))
    assert text(results) == "w0 w1 w2 "
    assert [type(result) for result in results].count(m.Final) == 1


def test_leaving_the_loop_aborts(client: Client, engine: FakeEngine) -> None:
    results = client.generate(task(max_tokens=10**6))
    next(results)
    results.close()
    until(lambda: engine.aborted == [1])


def test_several_tasks_run_side_by_side(client: Client) -> None:
    opened = [client.submit(task(max_tokens=n)) for n in (5, 1, 3)]
    assert [text(list(results)) for results in reversed(opened)] == ["w0 w1 w2 ", "w0 ", "w0 w1 w2 w3 w4 "]


def test_rows_can_be_read_and_are_given_back(client: Client, engine: FakeEngine) -> None:
    with client.submit(task(max_tokens=2, n_probs=1, stream=False)) as results:
        delta = next(results)
        assert isinstance(delta, m.Delta) and delta.probs[0].logits is not None
        assert client.row(delta.probs[0].logits).tolist() == logits(0, 64).tolist()
    until(lambda: engine.slab.n_used == 0)


def test_control_requests_are_answered(client: Client) -> None:
    assert isinstance(client.call(m.GetMetrics(0)), m.MetricsReply)
    with pytest.raises(Refused, match="no such slot"):
        client.call(m.SlotAction(0, 99, "erase"))


def test_refusal_and_bound(client: Client, engine: FakeEngine) -> None:
    engine.script.refuse = m.Error(400, "invalid_request_error", "no")
    with pytest.raises(Refused, match="no"):
        client.submit(task())
    engine.script.refuse, engine.script.hold = None, True
    with Client(engine.address, max_open=1) as small:
        small.ready(5)
        small.submit(task())
        with pytest.raises(Overloaded):
            small.submit(task())


def test_a_dead_engine_ends_the_results_and_a_new_one_is_used(client: Client, engine: FakeEngine) -> None:
    engine.script.hold = True
    results = client.submit(task())
    engine.die()
    (final,) = list(results)
    assert isinstance(final, m.Final) and final.error is not None and final.error.code == 503
    assert client.state() is State.LOADING
    engine.script.hold = False
    engine.start()
    client.ready(5)
    assert text(list(client.generate(task(max_tokens=1)))) == "w0 "


def test_a_hanging_engine_ends_the_results(engine: FakeEngine) -> None:
    engine.script.hold = True
    with Client(engine.address, engine.slab_path, hang_seconds=0.3) as client:
        client.ready(5)
        results = client.submit(task())
        engine.hang()
        (final,) = list(results)
        assert isinstance(final, m.Final) and final.error is not None and "hangs" in final.error.message
        engine.resume()
        until(lambda: client.state() is State.READY)
        client.call(m.GetSlots(0))
        assert engine.aborted == [1]


def test_waits_have_deadlines(client: Client, engine: FakeEngine) -> None:
    with Client("ipc:///nonexistent/x.sock") as nobody, pytest.raises(EngineGone, match="no engine after"):
        nobody.ready(0.05)
    engine.hang()
    with pytest.raises(EngineGone, match="no answer within"):
        client.call(m.GetSlots(0), seconds=0.05)
    engine.resume()


def test_the_client_needs_only_msgspec_pyzmq_and_numpy() -> None:
    code = "import ipc.client, sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    foreign = {"api", "engine", "falcon", "gunicorn", "jinja2", "llguidance", "gguf"}
    assert not foreign & set(loaded)
