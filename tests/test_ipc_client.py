"""The asyncio client against a fake engine: every stream ends, exactly once, whatever happens on the other side."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipc import messages as m
from ipc import session as session_module
from ipc.client import AsyncClient, EngineGone, Overloaded, Refused, StaleRow, State, Stream
from tests.fake_engine import FakeEngine, logits, until, vector

Body = Callable[[AsyncClient], Coroutine[Any, Any, None]]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[FakeEngine]:
    with FakeEngine(tmp_path) as engine:
        yield engine


def run(engine: FakeEngine, body: Body, *, ready: bool = True, **options: Any) -> None:
    """Run `body` with a started client."""

    async def main() -> None:
        client = AsyncClient(engine.address, engine.slab_path, **options)
        await client.start()
        try:
            if ready:
                await client.ready(5)
            await body(client)
        finally:
            await client.close()

    asyncio.run(asyncio.wait_for(main(), 20))


def task(**fields: Any) -> m.Task:
    return m.Task(0, np.arange(3, dtype="<i4").tobytes(), m.Sampling(), **fields)


async def rest(stream: Stream) -> list[Any]:
    """All results up to the Final."""
    return [result async for result in stream]


async def holds(condition: Callable[[], object], seconds: float = 5.0) -> None:
    """Like `until`, for a condition that the event loop brings about."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


def text(results: list[Any]) -> str:
    return "".join(result.text for result in results if isinstance(result, m.Delta))


def tokens(results: list[Any]) -> list[int]:
    return [token for result in results if isinstance(result, m.Delta) for token in result.tokens]


# the ordinary course


def test_a_stream_gives_text_and_one_final(engine: FakeEngine) -> None:
    async def body(client: AsyncClient) -> None:
        results = await rest(await client.submit(task(max_tokens=3)))
        assert text(results) == "w0 w1 w2 " and tokens(results) == [0, 1, 2]
        assert [type(result) for result in results].count(m.Final) == 1
        assert isinstance(results[-1], m.Final) and results[-1].reason == "limit"

    run(engine, body)


def test_a_whole_answer_comes_at_once(engine: FakeEngine) -> None:
    async def body(client: AsyncClient) -> None:
        delta, final = await rest(await client.submit(task(max_tokens=3, stream=False)))
        assert delta.text == "w0 w1 w2 " and final.reason == "limit"

    run(engine, body)


def test_progress_comes_before_text(engine: FakeEngine) -> None:
    async def body(client: AsyncClient) -> None:
        first, *_ = await rest(await client.submit(task(max_tokens=1, progress=True)))
        assert first == m.Progress(1, 3, 0, 3, 1.0)

    run(engine, body)


def test_many_streams_do_not_mix(engine: FakeEngine) -> None:
    async def one(client: AsyncClient, n: int) -> None:
        results = await rest(await client.submit(task(max_tokens=n)))
        assert tokens(results) == list(range(n))

    async def body(client: AsyncClient) -> None:
        await asyncio.gather(*(one(client, n) for n in range(1, 60)))

    run(engine, body)


def test_control_requests_are_answered(engine: FakeEngine) -> None:
    async def body(client: AsyncClient) -> None:
        slots, metrics = await asyncio.gather(client.call(m.GetSlots(0)), client.call(m.GetMetrics(0)))
        assert isinstance(slots, m.SlotsReply) and len(slots.slots) == 4
        assert isinstance(metrics, m.MetricsReply)
        with pytest.raises(Refused, match="no such slot"):
            await client.call(m.SlotAction(0, 99, "erase"))

    run(engine, body)


def test_a_call_has_a_deadline(engine: FakeEngine) -> None:
    async def body(client: AsyncClient) -> None:
        engine.hang()
        with pytest.raises(EngineGone, match=r"within 0\.05 s"):
            await client.call(m.GetSlots(0), seconds=0.05)
        engine.resume()
        await client.call(m.GetSlots(0))

    run(engine, body)


# admission


def test_a_refusal_is_raised_with_its_error(engine: FakeEngine) -> None:
    engine.script.refuse = m.Error(400, "exceed_context_size_error", "too long", 10, 5)

    async def body(client: AsyncClient) -> None:
        with pytest.raises(Refused) as caught:
            await client.submit(task())
        assert caught.value.error == engine.script.refuse

    run(engine, body)
    assert engine.got(m.Abort) == []


def test_leaving_before_admission_aborts(engine: FakeEngine) -> None:
    engine.script.mute = True

    async def body(client: AsyncClient) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.submit(task()), 0.05)
        await holds(lambda: engine.aborted == [1])

    run(engine, body)


def test_admission_has_a_deadline(engine: FakeEngine) -> None:
    engine.script.mute = True

    async def body(client: AsyncClient) -> None:
        with pytest.raises(EngineGone, match=r"no answer within 0\.05 s"):
            await client.submit(task())
        await holds(lambda: engine.aborted == [1])

    run(engine, body, admission_seconds=0.05)


def test_open_requests_are_bounded(engine: FakeEngine) -> None:
    engine.script.hold = True

    async def body(client: AsyncClient) -> None:
        first, _ = [await client.submit(task()) for _ in range(2)]
        with pytest.raises(Overloaded) as caught:
            await client.submit(task())
        assert (caught.value.error.code, caught.value.retry_after) == (503, 1)
        await first.close()
        await client.submit(task())

    run(engine, body, max_open=2)


def test_a_final_makes_room_for_the_next(engine: FakeEngine) -> None:
    async def body(client: AsyncClient) -> None:
        for _ in range(5):
            await rest(await client.submit(task(max_tokens=1)))

    run(engine, body, max_open=1)


# leaving


def test_closing_aborts_once(engine: FakeEngine) -> None:
    engine.script.hold = True

    async def body(client: AsyncClient) -> None:
        stream = await client.submit(task())
        await stream.close()
        await stream.close()
        await client.call(m.GetSlots(0))  # was sent later, so the Aborts are there
        assert len(engine.got(m.Abort)) == 1
        assert await rest(stream) == []

    run(engine, body)


def test_closing_after_the_final_sends_nothing(engine: FakeEngine) -> None:
    async def body(client: AsyncClient) -> None:
        stream = await client.submit(task(max_tokens=2))
        await holds(lambda: stream.final)  # seen by the client, though not by the reader
        await stream.close()
        await client.call(m.GetSlots(0))
        assert engine.got(m.Abort) == []

    run(engine, body)


def test_closing_ends_a_reader_that_waits(engine: FakeEngine) -> None:
    engine.script.hold = True

    async def body(client: AsyncClient) -> None:
        stream = await client.submit(task())
        reader = asyncio.create_task(rest(stream))
        await asyncio.sleep(0)
        await stream.close()
        assert await reader == []

    run(engine, body)


def test_closing_the_client_ends_its_streams(engine: FakeEngine) -> None:
    engine.script.hold = True

    async def body(client: AsyncClient) -> None:
        stream = await client.submit(task())
        await client.close()
        (final,) = await rest(stream)
        assert final.error.code == 503
        await stream.close()
        with pytest.raises(EngineGone):
            await client.submit(task())

    run(engine, body)
    until(lambda: engine.aborted == [1])


# slow readers


def test_a_slow_reader_gets_everything_in_one_delta(engine: FakeEngine) -> None:
    async def body(client: AsyncClient) -> None:
        stream = await client.submit(task(max_tokens=50, n_probs=1, timings_per_token=True))
        await holds(lambda: stream.final)
        delta, final = await rest(stream)
        assert delta.text == "".join(f"w{i} " for i in range(50)) and delta.tokens == list(range(50))
        assert [probs.token for probs in delta.probs] == list(range(50))
        assert delta.timings.predicted_n == 50 and final.timings.predicted_n == 50
        for token, probs in enumerate(delta.probs):
            assert client.row(probs.logits).tolist() == logits(token, 64).tolist()

    run(engine, body)


def test_only_the_newest_progress_waits() -> None:
    stream = Stream(None)  # type: ignore[arg-type]
    for result in (
        m.Progress(1, 9, 0, 3, 1.0),
        m.Progress(1, 9, 0, 6, 2.0),
        m.Delta(1, "a", [1]),
        m.Delta(1, "b", [2]),
        m.Progress(1, 9, 0, 9, 3.0),
        m.Final(1, "eos"),
    ):
        stream.put(result)
    assert [stream.take() for _ in range(4)] == [
        m.Progress(1, 9, 0, 6, 2.0),
        m.Delta(1, "ab", [1, 2]),
        m.Progress(1, 9, 0, 9, 3.0),
        m.Final(1, "eos"),
    ]


def test_output_nobody_reads_is_not_kept_without_limit(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "MAX_UNREAD", 2000)

    async def body(client: AsyncClient) -> None:
        stream = await client.submit(task(max_tokens=10**6))
        await holds(lambda: stream.final)
        assert stream.final is not None and stream.final.error is not None
        assert stream.final.error.message == "the output was not read"
        await holds(lambda: engine.aborted == [1])

    run(engine, body)


def test_a_client_that_froze_is_told_and_works_again(engine: FakeEngine) -> None:
    async def body(client: AsyncClient) -> None:
        stream = await client.submit(task(max_tokens=10**9))
        until(lambda: engine.aborted, 15)  # the event loop stands still meanwhile
        final = (await rest(stream))[-1]
        assert final.error.code == 503
        assert text(await rest(await client.submit(task(max_tokens=2)))) == "w0 w1 "

    run(engine, body)


# rows


def test_rows_are_given_back_after_reading(engine: FakeEngine) -> None:
    async def body(client: AsyncClient) -> None:
        stream = await client.submit(task(max_tokens=40, n_probs=1))
        async for result in stream:
            for probs in getattr(result, "probs", []):
                assert client.row(probs.logits).tolist() == logits(probs.token, 64).tolist()
        await holds(lambda: engine.slab.n_used == 0)
        assert not engine.slab.put(np.zeros(1), b"").inline

    run(engine, body)


@pytest.mark.parametrize("n_read", [0, 1, 2])
def test_unread_rows_are_given_back_at_close(engine: FakeEngine, n_read: int) -> None:
    async def body(client: AsyncClient) -> None:
        stream = await client.submit(task(max_tokens=4, n_probs=1))
        for _ in range(n_read):
            await anext(stream)
        await holds(lambda: stream.final)
        assert engine.slab.n_used == 4
        await stream.close()
        await holds(lambda: engine.slab.n_used == 0)

    run(engine, body)


def test_rows_that_come_after_an_abort_are_given_back(engine: FakeEngine) -> None:
    async def body(client: AsyncClient) -> None:
        stream = await client.submit(task(max_tokens=10**6, n_probs=1))
        await anext(stream)
        await stream.close()
        await holds(lambda: engine.aborted == [1])
        await holds(lambda: engine.slab.n_used == 0)

    run(engine, body)


def test_prompt_rows_and_vectors_arrive(engine: FakeEngine) -> None:
    async def body(client: AsyncClient) -> None:
        first, *_ = await rest(await client.submit(task(max_tokens=1, prompt_probs=True)))
        assert isinstance(first, m.PromptProbs) and first.first == 1
        assert [client.row(ref).argmax() for ref in first.rows] == [1, 2]
        inputs = np.array([5, 6, 7], dtype="<i4")
        embed = m.Embed(0, inputs.tobytes(), np.array([1, 2], dtype="<i4").tobytes())
        vectors, final = await rest(await client.submit(embed))
        assert isinstance(vectors, m.Vectors) and final.reason == "done"
        floats = np.concatenate([client.row(ref) for ref in vectors.rows]).reshape(2, -1)
        assert dict(zip(vectors.indices, floats.tolist(), strict=True)) == {
            0: vector(inputs[:1]).tolist(),
            1: vector(inputs[1:]).tolist(),
        }

    run(engine, body)


def test_a_reused_row_raises(engine: FakeEngine) -> None:
    async def body(client: AsyncClient) -> None:
        delta, _ = await rest(await client.submit(task(max_tokens=1, n_probs=1, stream=False)))
        ref = delta.probs[0].logits
        client.row(ref)
        await holds(lambda: engine.slab.n_used == 0)
        engine.slab.put(np.zeros(4), b"x")
        with pytest.raises(StaleRow):
            client.row(ref)

    run(engine, body)


def test_a_client_that_cannot_map_the_slab_gets_inline_rows(engine: FakeEngine) -> None:
    async def body(client: AsyncClient) -> None:
        await rest(await client.submit(task(max_tokens=1)))
        Path(engine.slab_path).rename(engine.slab_path + ".elsewhere")
        second = AsyncClient(engine.address, engine.slab_path)
        await second.start()
        await second.ready(5)
        delta, _ = await rest(await second.submit(task(max_tokens=1, n_probs=1, stream=False)))
        assert delta.probs[0].logits.inline
        assert second.row(delta.probs[0].logits).tolist() == logits(0, 64).tolist()
        assert second.state() is State.READY
        await second.close()

    run(engine, body)


# the engine's life


def test_the_client_may_start_first(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path)

    async def body(client: AsyncClient) -> None:
        assert client.state() is State.LOADING and client.info is None
        with pytest.raises(EngineGone, match="Loading model"):
            await client.submit(task())
        engine.start()
        info = await client.ready(5)
        assert info.model.desc == "fake" and client.state() is State.READY
        await rest(await client.submit(task(max_tokens=1)))

    run(engine, body, ready=False)
    engine.close()


def test_the_slab_tells_about_an_engine_that_loads(tmp_path: Path) -> None:
    engine = FakeEngine(tmp_path)
    engine.open(State.LOADING)

    async def body(client: AsyncClient) -> None:
        engine.slab.load_progress = 0.5
        assert client.slab is not None and client.slab.load_progress == 0.5
        assert client.state() is State.LOADING
        engine.slab.state = State.FAILED
        assert client.state() is State.FAILED
        with pytest.raises(EngineGone, match="not available"):
            await client.submit(task())

    run(engine, body, ready=False)
    engine.server.close()
    engine.slab.close()


def test_a_dead_engine_ends_everything_at_once(engine: FakeEngine) -> None:
    engine.script.hold = True

    async def body(client: AsyncClient) -> None:
        streams = [await client.submit(task()) for _ in range(3)]
        engine.script.mute = True
        waiting = [asyncio.create_task(client.submit(task())) for _ in range(2)]
        await holds(lambda: len(engine.got(m.Task)) == 5)
        engine.die()
        async with asyncio.timeout(1):
            for stream in streams:
                (final,) = await rest(stream)
                assert (final.reason, final.error.code) == ("error", 503)
            for waiter in waiting:
                with pytest.raises(EngineGone, match="gone"):
                    await waiter
        assert client.info is None and client.state() is not State.READY
        with pytest.raises(EngineGone):
            await client.submit(task())

    run(engine, body)


def test_a_restarted_engine_is_used_again(engine: FakeEngine) -> None:
    async def body(client: AsyncClient) -> None:
        before = (await client.ready()).boot
        for _ in range(2):
            engine.die()
            await holds(lambda: client.info is None)
            engine.start()
            assert (await client.ready(5)).boot != before
            delta, _ = await rest(await client.submit(task(max_tokens=1, n_probs=1, stream=False)))
            assert client.row(delta.probs[0].logits).tolist() == logits(0, 64).tolist()
            assert client.state() is State.READY

    run(engine, body)


def test_results_that_came_before_the_death_are_not_lost(engine: FakeEngine) -> None:
    async def body(client: AsyncClient) -> None:
        stream = await client.submit(task(max_tokens=2))
        await holds(lambda: stream.final)
        engine.die()
        await holds(lambda: client.info is None)
        results = await rest(stream)
        assert text(results) == "w0 w1 " and results[-1].reason == "limit"

    run(engine, body)


def test_a_hanging_engine_ends_everything_and_is_told_when_it_wakes(engine: FakeEngine) -> None:
    engine.script.hold = True

    async def body(client: AsyncClient) -> None:
        stream = await client.submit(task())
        call = asyncio.create_task(client.call(m.GetSlots(0)))
        await call
        engine.hang()
        (final,) = await rest(stream)
        assert "hangs" in final.error.message and client.state() is State.FAILED
        with pytest.raises(EngineGone, match="hangs"):
            await client.submit(task())
        assert engine.aborted == []
        engine.resume()
        await holds(lambda: engine.aborted == [1])
        assert client.state() is State.READY
        engine.script.hold = False
        await rest(await client.submit(task(max_tokens=1)))

    run(engine, body, hang_seconds=0.3)


def test_a_draining_engine_gets_no_new_tasks(engine: FakeEngine) -> None:
    engine.script.hold = True

    async def body(client: AsyncClient) -> None:
        stream = await client.submit(task(max_tokens=1))
        engine.slab.state = State.DRAINING
        with pytest.raises(EngineGone, match="shutting down"):
            await client.submit(task())
        assert client.state() is State.DRAINING
        engine.script.hold = False
        assert (await rest(stream))[-1].reason == "limit"

    run(engine, body)


def test_an_engine_that_stops_ends_its_tasks(engine: FakeEngine) -> None:
    engine.script.hold = True

    async def body(client: AsyncClient) -> None:
        stream = await client.submit(task())
        await asyncio.to_thread(engine.close)
        (final,) = await rest(stream)
        assert final.error.code == 503
        await holds(lambda: client.state() is State.LOADING)

    run(engine, body)


def test_an_engine_of_another_protocol_is_not_used(engine: FakeEngine) -> None:
    welcome = engine.welcome()
    welcome.protocol += 1
    engine.welcome = lambda: welcome  # type: ignore[method-assign]

    async def body(client: AsyncClient) -> None:
        with pytest.raises(EngineGone):
            await client.ready(0.3)
        with pytest.raises(EngineGone):
            await client.submit(task())

    run(engine, body, ready=False)


@pytest.mark.parametrize("frame", [b"", b"\xc1", b"\x91\xa4step", m.encode(m.Hello())])
def test_garbage_from_the_engine_is_dropped(engine: FakeEngine, frame: bytes) -> None:
    async def body(client: AsyncClient) -> None:
        client._live._receive(frame)  # type: ignore[union-attr]
        assert text(await rest(await client.submit(task(max_tokens=1)))) == "w0 "

    run(engine, body)


def test_a_thousand_waiting_streams_end_with_the_engine(engine: FakeEngine) -> None:
    engine.script.hold = True

    async def body(client: AsyncClient) -> None:
        streams = await asyncio.gather(*(client.submit(task()) for _ in range(1000)))
        engine.die()
        readers: list[Awaitable[Any]] = [rest(stream) for stream in streams]
        assert all(len(results) == 1 for results in await asyncio.gather(*readers))

    run(engine, body)
