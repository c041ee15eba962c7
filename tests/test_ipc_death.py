"""kill -9 and kill -STOP of an engine process and of a client process."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ipc import messages as m
from ipc.client import AsyncClient, Client, State, Stream
from tests.fake_engine import FakeEngine, until

ROOT = Path(__file__).parent.parent
Spawn = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Start `python …` and wait for its first line."""
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        processes.append(process)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def engine_arguments(folder: Path, *options: str) -> list[str]:
    return [
        *("-m", "tests.fake_engine", "--address", f"ipc://{folder}/x.sock", "--slab", f"{folder}/x.slab"),
        *options,
    ]


def task(**fields: Any) -> m.Task:
    return m.Task(0, bytes(4), m.Sampling(), **fields)


async def last(stream: Stream) -> Any:
    """The Final."""
    return [result async for result in stream][-1]


def test_kill_9_of_the_engine_ends_streams_within_a_second(tmp_path: Path, spawn: Spawn) -> None:
    async def main() -> None:
        engine = spawn(*engine_arguments(tmp_path, "--step-seconds", "0.01"))
        client = AsyncClient(f"ipc://{tmp_path}/x.sock", f"{tmp_path}/x.slab")
        await client.start()
        await client.ready(5)
        streams = [await client.submit(task(max_tokens=10**6)) for _ in range(5)]  # one of them queued
        readers = [asyncio.create_task(last(stream)) for stream in streams]
        engine.kill()
        began = time.monotonic()
        finals = await asyncio.wait_for(asyncio.gather(*readers), 5)
        assert time.monotonic() - began < 1
        assert {final.error.code for final in finals} == {503}
        assert client.state() is State.LOADING

        spawn(*engine_arguments(tmp_path))  # over the dead one's files
        await client.ready(5)
        assert (await last(await client.submit(task(max_tokens=2)))).reason == "limit"
        await client.close()

    asyncio.run(main())


def test_kill_stop_of_the_engine_is_noticed_and_survived(tmp_path: Path, spawn: Spawn) -> None:
    async def main() -> None:
        engine = spawn(*engine_arguments(tmp_path, "--step-seconds", "0.01"))
        client = AsyncClient(f"ipc://{tmp_path}/x.sock", f"{tmp_path}/x.slab", hang_seconds=0.5)
        await client.start()
        await client.ready(5)
        stream = await client.submit(task(max_tokens=10**6))
        os.kill(engine.pid, signal.SIGSTOP)
        final = await asyncio.wait_for(last(stream), 5)
        assert final.error.code == 503 and client.state() is State.FAILED
        os.kill(engine.pid, signal.SIGCONT)
        async with asyncio.timeout(5):
            while client.state() is not State.READY:
                await asyncio.sleep(0.01)
        slots = await client.call(m.GetSlots(0))
        assert isinstance(slots, m.SlotsReply) and not any(slot.is_processing for slot in slots.slots)
        await client.close()

    asyncio.run(main())


def test_an_engine_that_breaks_off_mid_stream_ends_the_stream(tmp_path: Path, spawn: Spawn) -> None:
    spawn(*engine_arguments(tmp_path, "--die-after", "3", "--step-seconds", "0.1"))
    with Client(f"ipc://{tmp_path}/x.sock") as client:
        client.ready(5)
        *_, final = client.generate(task(max_tokens=10))
        assert isinstance(final, m.Final) and final.error is not None and final.error.code == 503


CLIENT = """
import sys
from ipc.client import Client
from ipc.messages import Sampling, Task
with Client(sys.argv[1]) as client:
    client.ready(5)
    tasks = [Task(0, bytes(4), Sampling(), stream=stream, max_tokens=10**9, n_probs=1) for stream in (False, True)]
    whole, stream = map(client.submit, tasks)
    print("ready", flush=True)
    for result in stream:
        pass
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_client_process_that_stops_frees_its_slots(tmp_path: Path, spawn: Spawn, number: signal.Signals) -> None:
    with FakeEngine(tmp_path) as engine, Client(engine.address) as neighbour:
        neighbour.ready(5)
        engine.script.step_seconds = 0.0001
        process = spawn("-c", CLIENT, engine.address)
        results = neighbour.submit(task(max_tokens=10**9))
        next(results)
        os.kill(process.pid, number)
        # the neighbour keeps reading: who does not is aborted, too
        until(lambda: isinstance(next(results), m.Delta) and sorted(engine.aborted) == [1, 2], 20)
        until(lambda: isinstance(next(results), m.Delta) and engine.slab.n_used == 0)
        results.close()
