"""This server against llama-server: same model, threads, slots and requests, in alternation. Prints a table of ratios.

bench/build_peer.sh
.venv/bin/python -m bench.compare --rounds 5 --markdown
"""

import argparse
import asyncio
import os
import shlex
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from bench import processes, servers, table
from bench.load import Load, Measured, drive, quantile
from bench.servers import Server
from engine.download import fetch_model


@dataclass(slots=True)
class Run:
    """One load on one server, with what it cost."""

    measured: Measured
    cpu_s: float
    memory: int


ROWS: tuple[tuple[str, Callable[[Run], float]], ...] = (
    ("tokens/s", lambda run: run.measured.rate),
    ("first token p50, ms", lambda run: 1e3 * quantile(run.measured.first, 0.5)),
    ("first token p99, ms", lambda run: 1e3 * quantile(run.measured.first, 0.99)),
    ("token gap p50, ms", lambda run: 1e3 * quantile(run.measured.gaps, 0.5)),
    ("token gap p99, ms", lambda run: 1e3 * quantile(run.measured.gaps, 0.99)),
    ("CPU s per 1000 tokens", lambda run: 1e3 * run.cpu_s / run.measured.tokens),
    ("memory, MiB", lambda run: run.memory / 2**20),
)


def main() -> None:
    """Start both servers, measure, print."""
    args = _parse()
    servers.end_on_terminate()
    servers.warn_if_busy()
    settings = servers.Settings(args.model or fetch_model("smollm2"), args.threads, args.slots, args.context)
    first = shlex.split(args.ours_cmd) if args.ours_cmd else servers.ours(settings, args.ours_args)
    second = servers.peer(settings, args.peer_args)
    logs = Path(tempfile.mkdtemp(prefix="llamarada-bench-"))
    with Server("ours", first, logs / "ours.log") as one, Server("llama-server", second, logs / "peer.log") as other:
        results = asyncio.run(_measure(one, other, args))
    shutil.rmtree(logs)  # kept when something failed
    print(_describe(settings, args))
    print(table.render(("clients", "measure", "ours", "llama-server", "ratio"), _rows(results), args.markdown))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="GGUF file (default: the demo model)")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=3, help="runs of each server for each number of clients")
    parser.add_argument("--requests", type=int, default=4, help="requests of each client in a run")
    parser.add_argument("--words", type=int, default=48, help="words of a prompt")
    parser.add_argument("--predict", type=int, default=96, help="tokens of an answer")
    parser.add_argument("--greedy", action="store_true", help="temperature 0 in place of the default sampling")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of the engine and of llama-server")
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--context", type=int, default=32 * 512, help="tokens of all slots together")
    parser.add_argument("--ours-args", default="--threads-http 2", help="further arguments of this server")
    parser.add_argument("--peer-args", default="", help="further arguments of llama-server")
    parser.add_argument("--ours-cmd", help="start this instead of this server; {port} stands for its port")
    parser.add_argument("--markdown", action="store_true")
    return parser.parse_args()


async def _measure(one: Server, other: Server, args: argparse.Namespace) -> dict[int, tuple[list[Run], list[Run]]]:
    """Runs of both servers by number of clients. Who goes first changes from round to round."""
    results: dict[int, tuple[list[Run], list[Run]]] = {}
    extra = {"temperature": 0} if args.greedy else {}
    for server in (one, other):
        await drive(server.port, Load(clients=min(4, args.slots), requests=1, predict=16))
    for clients in args.clients:
        runs: tuple[list[Run], list[Run]] = ([], [])
        load = Load(clients, args.requests, args.words, args.predict, extra=extra)
        for number in range(args.rounds):
            for side in (0, 1) if number % 2 == 0 else (1, 0):
                server = (one, other)[side]
                runs[side].append(await _run(server, replace(load, seed=number)))
                print(f"{clients} clients, {server.name}: {runs[side][-1].measured.rate:.1f} tokens/s", file=sys.stderr)
        results[clients] = runs
    return results


async def _run(server: Server, load: Load) -> Run:
    """Memory is read after the load: that takes tens of milliseconds a process, which a server would feel."""
    before = processes.cpu_seconds(server.pid)
    measured = await drive(server.port, load)
    return Run(measured, processes.cpu_seconds(server.pid) - before, processes.memory(server.pid))


def _rows(results: dict[int, tuple[list[Run], list[Run]]]) -> list[list[str]]:
    """Medians over the rounds."""
    rows = []
    for clients, (ours, peers) in results.items():
        for label, value in ROWS:
            one, other = statistics.median(map(value, ours)), statistics.median(map(value, peers))
            rows.append([str(clients), label, table.number(one), table.number(other), table.ratio(one, other)])
    return rows


def _describe(settings: servers.Settings, args: argparse.Namespace) -> str:
    return (
        f"{settings.model.name}, {settings.threads} threads, {settings.slots} slots, context {settings.context}; "
        f"prompts of {args.words} words, {args.predict} tokens each, {args.requests} requests per client, "
        f"{'greedy' if args.greedy else 'default sampling'}, median of {args.rounds} rounds\n"
    )


if __name__ == "__main__":
    main()
