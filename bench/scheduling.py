"""Where scheduling decides: shared prefixes, long prompts beside running streams, speculation. Both servers in one run.

bench/build_peer.sh
.venv/bin/python -m bench.scheduling [shared warm interfere copy random]
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bench import servers, table
from bench.load import events, quantile
from bench.servers import Server
from engine.download import fetch_model

Row = tuple[str, float]
TEXT = (
    "The harbour lay quiet before sunrise. Two boats had come in during the night, loaded with herring, and their "
    "crews were asleep below deck. On the pier an old man mended his net, knot after knot, not looking at his hands. "
    "Gulls walked up and down beside him as if they had been told to keep watch. When the first light touched the "
    "lighthouse he stood up, folded the net, and went home to wake his grandson for school. "
)


@dataclass(slots=True)
class Answer:
    """When the events of one streamed answer came, and its last event."""

    sent: float
    times: list[float]
    last: dict[str, Any]

    @property
    def first(self) -> float:
        return self.times[0] - self.sent


async def ask(server: Server, prompt: list[int] | str, n: int, **fields: Any) -> Answer:
    """One streamed completion of exactly `n` tokens."""
    body = {"prompt": prompt, "n_predict": n, "stream": True, "ignore_eos": True, "temperature": 0, **fields}
    sent = time.perf_counter()
    times: list[float] = []
    async with aclosing(raw_events(server.port, body)) as stream:
        async for event in stream:
            if event.get("stop"):
                return Answer(sent, times, event)
            times.append(time.perf_counter())
    raise RuntimeError(f"{server.name}: the stream ended without its last event")


async def raw_events(port: int, body: dict[str, Any]) -> Any:
    """The decoded events of a streamed answer, as dicts."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    try:
        payload = msgspec.json.encode(body)
        head = f"POST /completion HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(payload)}\r\n\r\n"
        writer.write(head.encode() + payload)
        async for line in reader:
            if line.startswith(b"data: {"):
                yield msgspec.json.decode(line[6:])
    finally:
        writer.close()


def tokens(n: int, seed: int) -> list[int]:
    """A prompt nobody has seen."""
    dice = random.Random(seed)
    return [dice.randrange(200, 40_000) for _ in range(n)]


async def shared(server: Server, seed: int) -> list[Row]:
    """Eight clients, 512 shared and 18 own prompt tokens, 16 new tokens, cold."""
    stem = tokens(512, seed)
    begun = time.perf_counter()
    await asyncio.gather(*(ask(server, stem + tokens(18, seed + i), 16) for i in range(1, 9)))
    return [("8 clients share 512 tokens, cold: tokens/s", 128 / (time.perf_counter() - begun))]


async def warm(server: Server, seed: int) -> list[Row]:
    """32 clients with a prefix that has been read: how many of its tokens are read again."""
    stem = tokens(512, seed)
    await ask(server, stem, 1)
    answers = await asyncio.gather(*(ask(server, stem + tokens(4, seed + i), 4) for i in range(1, 33)))
    again = [max(0, 512 - answer.last["timings"]["cache_n"]) for answer in answers]
    return [("32 clients, warm prefix: its tokens read again, sum", float(sum(again)))]


async def interfere(server: Server, seed: int) -> list[Row]:
    """Three running streams while two 1,500-token prompts arrive."""
    runs = [asyncio.create_task(ask(server, tokens(16, seed + i), 220, cache_prompt=False)) for i in range(3)]
    await asyncio.sleep(3)
    begun = time.perf_counter()
    long = await asyncio.gather(*(ask(server, tokens(1500, seed + 9 + i), 4, cache_prompt=False) for i in range(2)))
    ended = max(answer.times[0] for answer in long)
    gaps = [(a, b - a) for run in await asyncio.gather(*runs) for a, b in zip(run.times, run.times[1:], strict=False)]
    before = [gap for at, gap in gaps if at + gap < begun]
    during = [gap for at, gap in gaps if at + gap >= begun and at <= ended]
    return [
        ("token gap p99 undisturbed, ms", 1e3 * quantile(before, 0.99)),
        ("token gap p99 beside two long prompts, ms", 1e3 * quantile(during, 0.99)),
        ("last long prompt: time to first token, ms", 1e3 * max(answer.first for answer in long)),
    ]


async def copy(server: Server, seed: int) -> list[Row]:
    """One stream that goes on with a text its prompt holds twice."""
    answer = await ask(server, f"{seed}.\n{TEXT}\n{TEXT}\n{TEXT[:201]}", 80, cache_prompt=False)
    return [("copy task: tokens/s", 79 / (answer.times[-1] - answer.times[0]))]


async def noise(server: Server, seed: int) -> list[Row]:
    """One stream of text that repeats nothing."""
    answer = await ask(server, tokens(64, seed), 120, cache_prompt=False, temperature=1.5, seed=seed)
    return [("random text: tokens/s", 119 / (answer.times[-1] - answer.times[0]))]


SCENARIOS: dict[str, Callable[[Server, int], Awaitable[list[Row]]]] = {
    "shared": shared,
    "warm": warm,
    "interfere": interfere,
    "copy": copy,
    "random": noise,
}


def main() -> None:
    """Start both servers (and ours with speculation), measure in alternation, print medians."""
    parser = argparse.ArgumentParser(prog="python -m bench.scheduling", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"{', '.join(SCENARIOS)} (default: all)")
    parser.add_argument("--model", type=Path, help="GGUF file (default: the demo model)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--flags", default="", help="further arguments of both servers, such as --kv-unified")
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    scenarios = args.scenarios or list(SCENARIOS)
    if unknown := set(scenarios) - set(SCENARIOS):
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    servers.end_on_terminate()
    servers.warn_if_busy()
    settings = servers.Settings(args.model or fetch_model("smollm2"), args.threads, args.slots, args.slots * 2048)
    logs = Path(tempfile.mkdtemp(prefix="llamarada-scheduling-"))
    columns = {
        "ours": servers.ours(settings, args.flags),
        "ours, ngram-simple": servers.ours(settings, f"{args.flags} --spec-type ngram-simple"),
        "llama-server": servers.peer(settings, args.flags),
    }
    results: dict[str, dict[str, list[float]]] = {}
    for number in range(args.rounds):
        for name, command in columns.items():
            wanted = [s for s in scenarios if "ngram" not in name or s in ("copy", "random")]
            if wanted:
                with Server(name, command, logs / f"{number}-{len(results)}.log") as server:
                    _collect(server, wanted, number, results)
    print(table.render(("measure", *columns), _rows(results, list(columns)), args.markdown))


def _collect(server: Server, wanted: list[str], number: int, results: dict[str, dict[str, list[float]]]) -> None:
    asyncio.run(_warm_up(server))
    for scenario in wanted:
        for label, value in asyncio.run(_limited(SCENARIOS[scenario](server, 1000 * number + 17))):
            results.setdefault(label, {}).setdefault(server.name, []).append(value)
            print(f"{server.name}: {label}: {value:.2f}", file=sys.stderr)


async def _warm_up(server: Server) -> None:
    async with aclosing(
        events(server.port, "/completion", {"prompt": "Hello", "n_predict": 4, "stream": True})
    ) as all_:
        async for _ in all_:
            pass


async def _limited(scenario: Awaitable[list[Row]]) -> list[Row]:
    async with asyncio.timeout(600):
        return await scenario


def _rows(results: dict[str, dict[str, list[float]]], columns: list[str]) -> list[list[str]]:
    return [
        [label, *(table.number(statistics.median(by[name])) if name in by else "" for name in columns)]
        for label, by in results.items()
    ]


if __name__ == "__main__":
    main()
