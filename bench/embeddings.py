"""Embeddings of this server against llama-server: same model, threads and requests, in alternation.

bench/build_peer.sh
.venv/bin/python -m bench.embeddings --rounds 5 --markdown
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

from bench import processes, servers, table
from bench.load import WORDS, quantile
from bench.servers import Server

TIMEOUT = 600
SHORT = "how to reset a password"


@dataclass(slots=True)
class Run:
    """One load on one server."""

    inputs: int
    seconds: float
    cpu_s: float
    waits: list[float]  # of each request

    @property
    def rate(self) -> float:
        return self.inputs / self.seconds


def main() -> None:
    """Start both servers, measure, print."""
    args = _parse()
    servers.end_on_terminate()
    servers.warn_if_busy()
    logs = Path(tempfile.mkdtemp(prefix="llamarada-bench-"))
    settings = servers.Settings(args.model or _model(logs), args.threads, args.slots, 0)
    first = servers.ours(settings, f"--embeddings {args.ours_args}")
    second = servers.peer(settings, f"--embeddings {args.peer_args}")
    rows: list[list[str]] = []
    with Server("ours", first, logs / "ours.log") as one, Server("llama-server", second, logs / "peer.log") as other:
        for name in args.loads:
            rows += _compare(name, one, other, args)
    print(f"{settings.model.name}, {args.threads} threads, {args.slots} slots, median of {args.rounds} rounds\n")
    print(table.render(("load", "measure", "ours", "llama-server", "ratio"), rows, args.markdown))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.embeddings", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="GGUF file (default: all-MiniLM-L6-v2, converted to f16)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each load on each server")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of the engine and of llama-server")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of inputs, for a quick look")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--loads", nargs="+", choices=list(LOADS), default=list(LOADS))
    parser.add_argument("--ours-args", default="--threads-http 2", help="further arguments of this server")
    parser.add_argument("--peer-args", default="", help="further arguments of llama-server")
    parser.add_argument("--markdown", action="store_true")
    return parser.parse_args()


def _model(folder: Path) -> Path:
    from engine.convert import Checkpoint, write
    from engine.download import fetch_model

    target = folder / "minilm-f16.gguf"
    write(Checkpoint(fetch_model("minilm")), target)
    return target


# ---------------------------------------------------------------- loads


def one_large(server: Server, dice: random.Random, scale: float) -> tuple[int, list[float]]:
    """One request with 512 inputs of 5 to 200 tokens."""
    n = int(512 * scale)
    return n, [_ask(server, _texts(dice, n, 5, 200))]


def many_small(server: Server, dice: random.Random, scale: float) -> tuple[int, list[float]]:
    """8 clients, each with 6 requests of 16 inputs of 5 to 60 tokens, one after the other."""
    each = max(1, int(6 * scale))
    requests = [[_texts(dice, 16, 5, 60) for _ in range(each)] for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        waits = pool.map(lambda inputs: [_ask(server, each) for each in inputs], requests)
    return 8 * each * 16, [wait for client in waits for wait in client]


def beside(server: Server, dice: random.Random, scale: float) -> tuple[int, list[float]]:
    """Single short inputs, one after the other, while a request of 2,000 runs; only the short ones are timed."""
    n = int(2000 * scale)
    waits: list[float] = []
    with ThreadPoolExecutor(1) as pool:
        large = pool.submit(_ask, server, _texts(dice, n, 5, 60))
        time.sleep(1.0)
        while not large.done() and len(waits) < 20:
            waits.append(_ask(server, [SHORT]))
        large.result()
    return n + len(waits), waits


Function = Callable[[Server, random.Random, float], tuple[int, list[float]]]
LOADS: dict[str, Function] = {"512 inputs": one_large, "8 x 16 inputs": many_small, "1 beside 2,000": beside}


def _texts(dice: random.Random, n: int, shortest: int, longest: int) -> list[str]:
    """Texts of so many tokens, two of which the model adds."""
    words = WORDS.split()
    return [" ".join(dice.choices(words, k=dice.randint(shortest, longest) - 2)) for _ in range(n)]


def _ask(server: Server, inputs: list[str]) -> float:
    """Seconds that /v1/embeddings takes for `inputs`."""
    body = json.dumps({"input": inputs, "model": "any"})
    connection = HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT)
    try:
        begin = time.perf_counter()
        connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        seconds = time.perf_counter() - begin
    finally:
        connection.close()
    if response.status != 200 or answer.count(b'"index"') != len(inputs):
        raise RuntimeError(f"{server.name}: {response.status} {answer[:300]!r}")
    return seconds


# ---------------------------------------------------------------- comparison


def _compare(name: str, one: Server, other: Server, args: argparse.Namespace) -> list[list[str]]:
    runs: tuple[list[Run], list[Run]] = ([], [])
    for number in range(args.rounds):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            server = (one, other)[side]
            run = _run(server, LOADS[name], number, args.scale)
            runs[side].append(run)
            per_input = 1e3 * run.cpu_s / run.inputs
            print(f"{name}, {server.name}: {run.rate:.1f} inputs/s, {per_input:.1f} ms CPU each", file=sys.stderr)
    rows = []
    for label, value in _measures(name).items():
        ours, peers = (statistics.median(map(value, side)) for side in runs)
        rows.append([name, label, table.number(ours), table.number(peers), table.ratio(ours, peers)])
    return rows


def _measures(name: str) -> dict[str, Callable[[Run], float]]:
    if LOADS[name] is beside:
        return {
            "wait p50, ms": lambda run: 1e3 * quantile(run.waits, 0.5),
            "wait max, ms": lambda run: 1e3 * max(run.waits),
        }
    return {"inputs/s": lambda run: run.rate, "CPU ms per input": lambda run: 1e3 * run.cpu_s / run.inputs}


def _run(server: Server, load: Function, number: int, scale: float) -> Run:
    before, begin = processes.cpu_seconds(server.pid), time.perf_counter()
    inputs, waits = load(server, random.Random(number), scale)
    seconds = time.perf_counter() - begin
    return Run(inputs, seconds, processes.cpu_seconds(server.pid) - before, waits)


if __name__ == "__main__":
    main()
