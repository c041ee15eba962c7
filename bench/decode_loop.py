"""The decode loop without HTTP against llama-batched-bench: generated tokens per second of B sequences side by side.

"binding" feeds batches through ctypes and does nothing else, as llama-batched-bench does; "loop" is the engine's loop
with its scheduler, greedy sampling and text, in this process and without a client; "engine" is the engine process,
driven through its socket by a client that shares its cores.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from bench import table
from bench.servers import end_on_terminate, peer_dir, warn_if_busy
from engine.batch import Batch
from engine.context import Context
from engine.download import fetch_model
from engine.model import Model
from engine.sequence import Phase
from ipc import config as configuration
from ipc.client import AsyncClient
from ipc.config import Config
from ipc.messages import Delta, Sampling, Task
from tests.real_engine import RealEngine

N_BATCH = 2048
SEQUENCE_CELLS = 512  # context of each sequence
RUN_SECONDS = 600
PEER, LOOPS = "batched-bench", ("binding", "loop", "engine")


@dataclass(slots=True)
class Shape:
    """What is decoded: `sequences` prompts of `prompt` tokens, each continued by `predict` tokens."""

    model: Path
    threads: int
    sequences: int
    prompt: int
    predict: int


class Line(msgspec.Struct):
    """The part of llama-batched-bench's output that is looked at."""

    speed_tg: float


def main() -> None:
    """Measure and print the table."""
    args = _parse()
    end_on_terminate()
    warn_if_busy()
    model = args.model or fetch_model("smollm2")
    rows = []
    for sequences in args.sequences:
        shape = Shape(model, args.threads, sequences, args.prompt, args.predict)
        rows += _rows(sequences, _measure(shape, args.rounds))
    print(f"{model.name}, {args.threads} threads, prompts of {args.prompt} tokens, {args.predict} tokens each\n")
    print(table.render(("sequences", "loop", "tokens/s", PEER, "ratio"), rows, args.markdown))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.decode_loop", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="GGUF file (default: the demo model)")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--predict", type=int, default=128)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--markdown", action="store_true")
    return parser.parse_args()


def _measure(shape: Shape, rounds: int) -> dict[str, list[float]]:
    """Tokens per second of llama-batched-bench and of our loops by name, taking turns."""
    rates: dict[str, list[float]] = {name: [] for name in (PEER, *LOOPS)}
    with _engine(shape) as config, _context(shape) as context, _loop(shape) as loop:
        for _ in range(rounds):
            rates[PEER].append(_run_peer(shape))
            rates["binding"].append(_run_binding(shape, context))
            rates["loop"].append(_run_loop(shape, loop))
            rates["engine"].append(asyncio.run(_run_engine(shape, config)))
            print(f"{shape.sequences}:", ", ".join(f"{rate[-1]:.1f}" for rate in rates.values()), file=sys.stderr)
    return rates


def _rows(sequences: int, rates: dict[str, list[float]]) -> list[list[str]]:
    base = statistics.median(rates[PEER])
    medians = {name: statistics.median(rates[name]) for name in LOOPS}
    return [
        [str(sequences), name, table.number(rate), table.number(base), table.ratio(rate, base)]
        for name, rate in medians.items()
    ]


def _run_peer(shape: Shape) -> float:
    command = [str(peer_dir() / "llama-batched-bench"), "-m", str(shape.model), "-t", str(shape.threads)]
    command += ["-c", str(shape.sequences * SEQUENCE_CELLS), "-b", str(N_BATCH), "--output-format", "jsonl"]
    command += ["-npp", str(shape.prompt), "-ntg", str(shape.predict), "-npl", str(shape.sequences)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    return msgspec.json.decode(line, type=Line).speed_tg


@contextmanager
def _context(shape: Shape) -> Iterator[Context]:
    model = Model.load(shape.model)
    context = Context(
        model,
        n_ctx=shape.sequences * SEQUENCE_CELLS,
        n_batch=N_BATCH,
        n_seq_max=shape.sequences,
        n_threads=shape.threads,
        n_threads_batch=shape.threads,
        kv_unified=False,
    )
    try:
        yield context
    finally:
        context.close()
        model.close()


def _run_binding(shape: Shape, context: Context) -> float:
    batch = Batch(N_BATCH)
    prompts = _prompts(shape, context.model.vocab.n_tokens)
    context.clear()
    for sequence, prompt in enumerate(prompts):
        batch.add(prompt, 0, sequence, "last")
    _decode(context, batch)
    begin = time.perf_counter()
    for step in range(shape.predict):
        batch.clear()
        for sequence, prompt in enumerate(prompts):
            batch.add_token(int(prompt[step % shape.prompt]), shape.prompt + step, sequence)
        _decode(context, batch)
    return shape.sequences * shape.predict / (time.perf_counter() - begin)


def _decode(context: Context, batch: Batch) -> None:
    code = context.decode(batch)
    if code != 0:
        raise RuntimeError(f"llama_decode returned {code}")
    context.synchronize()


def _loop(shape: Shape) -> RealEngine:
    cells = shape.sequences * SEQUENCE_CELLS
    own = {"cache_type_k": None, "cache_type_v": None, "flash_attn": None}  # the engine's defaults
    return RealEngine(shape.model, threads=shape.threads, parallel=shape.sequences, ctx_size=cells, **own)


def _run_loop(shape: Shape, loop: RealEngine) -> float:
    """Tokens per second while all sequences generate."""
    sampling = Sampling(temperature=0.0, ignore_eos=True)
    for prompt in _prompts(shape, loop.model.vocab.n_tokens):
        loop.submit(prompt.tolist(), shape.predict, stream=True, cache_prompt=False, sampling=sampling)
    generating = [False]
    while not all(generating):
        loop.engine.step()
        generating = [slot.sequence is not None and slot.sequence.phase is Phase.GENERATING for slot in loop.slots]
    begin, steps = time.perf_counter(), 0
    while all(slot.sequence is not None for slot in loop.slots):
        loop.engine.step()
        steps += 1
    seconds = time.perf_counter() - begin
    loop.run()
    return steps * shape.sequences / seconds


@contextmanager
def _engine(shape: Shape) -> Iterator[Config]:
    """An engine process of its own, in a run folder of its own."""
    with tempfile.TemporaryDirectory(prefix="llamarada-") as folder:
        flags = ["-m", str(shape.model), "-t", str(shape.threads), "-np", str(shape.sequences), "--run-dir", folder]
        flags += ["-c", str(shape.sequences * SEQUENCE_CELLS), "-b", str(N_BATCH)]
        config = configuration.resolve(flags, {}).config
        environment = {**os.environ, "LLAMARADA_CONFIG": str(configuration.publish(config))}
        process = subprocess.Popen([sys.executable, "-m", "engine"], env=environment, stdin=subprocess.DEVNULL)
        try:
            yield config
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def _run_engine(shape: Shape, config: Config) -> float:
    """Tokens per second from when the last sequence has begun until the first one ends."""
    client = AsyncClient(config.engine_address(), config.slab_path())
    await client.start()
    try:
        info = await client.ready(60)
        async with asyncio.timeout(RUN_SECONDS), asyncio.TaskGroup() as group:
            prompts = _prompts(shape, info.model.n_vocab)
            runs = [group.create_task(_arrivals(client, prompt, shape.predict)) for prompt in prompts]
    finally:
        await client.close()
    arrivals = [run.result() for run in runs]
    begin, end = max(times[0][0] for times in arrivals), min(times[-1][0] for times in arrivals)
    return sum(count for times in arrivals for when, count in times if begin < when <= end) / (end - begin)


async def _arrivals(client: AsyncClient, prompt: np.ndarray, predict: int) -> list[tuple[float, int]]:
    """When tokens came, and how many."""
    sampling = Sampling(temperature=0.0, ignore_eos=True)
    task = Task(0, prompt.astype("<i4").tobytes(), sampling, max_tokens=predict, cache_prompt=False)
    stream = await client.submit(task)
    times = []
    try:
        async for result in stream:
            if isinstance(result, Delta):
                times.append((time.perf_counter(), len(result.tokens)))
    finally:
        await stream.close()
    return times


def _prompts(shape: Shape, n_vocab: int) -> np.ndarray:
    """Random tokens [sequences, prompt], as llama-batched-bench takes."""
    return np.random.default_rng(1).integers(n_vocab // 4, n_vocab // 2, (shape.sequences, shape.prompt), np.int32)


if __name__ == "__main__":
    main()
