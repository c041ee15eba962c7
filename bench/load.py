"""Closed-loop load on a llama-server compatible server: each client sends its next request when the last one ended.

Prompts are English-like text, different in every request and equal on every server for the same seed.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import msgspec

WORDS = (
    "the a this every old young river mountain city garden letter question answer teacher sailor window "
    "found carried watched opened forgot remembered built crossed painted before after under beyond near "
    "quietly quickly never often bright cold small distant and but while because"
)


@dataclass(slots=True)
class Load:
    """What to send. `extra` is merged into every request's JSON."""

    clients: int = 1
    requests: int = 4  # of each client
    prompt_words: int = 48
    predict: int = 96
    seed: int = 1
    path: str = "/completion"
    extra: dict[str, Any] = field(default_factory=dict)
    limit_s: float = 300.0


@dataclass(slots=True)
class Measured:
    """What came back; times in seconds, rates in tokens per second."""

    tokens: int = 0
    requests: int = 0
    seconds: float = 0.0
    first: list[float] = field(default_factory=list)  # time to first token of each request
    gaps: list[float] = field(default_factory=list)  # between the events of a stream

    @property
    def rate(self) -> float:
        """Generated tokens per second of all clients together."""
        return self.tokens / self.seconds if self.seconds else 0.0


class Event(msgspec.Struct):
    """The part of a streamed event that is looked at."""

    stop: bool = False
    tokens_predicted: int = 0


class LoadError(Exception):
    """A server answered a request with something other than a complete stream."""


def quantile(values: list[float], q: float) -> float:
    """The q-quantile by nearest rank; 0 for no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else 0.0


async def drive(port: int, load: Load) -> Measured:
    """Run the whole load against 127.0.0.1:`port`. LoadError when a request fails, TimeoutError past `limit_s`."""
    measured = Measured()
    begin = time.perf_counter()
    async with asyncio.timeout(load.limit_s), asyncio.TaskGroup() as group:
        for number in range(load.clients):
            group.create_task(_client(port, load, number, measured))
    measured.seconds = time.perf_counter() - begin
    return measured


async def _client(port: int, load: Load, number: int, measured: Measured) -> None:
    dice = random.Random(f"{load.seed}/{number}")
    words = WORDS.split()
    for _ in range(load.requests):
        prompt = f"Story {dice.randrange(10**6)}: " + " ".join(dice.choices(words, k=load.prompt_words))
        body = {
            "prompt": prompt,
            "n_predict": load.predict,
            "seed": dice.randrange(2**31),
            "stream": True,
            "ignore_eos": True,
            "cache_prompt": False,
            **load.extra,
        }
        await _request(port, load.path, body, measured)


async def _request(port: int, path: str, body: dict[str, Any], measured: Measured) -> None:
    sent = time.perf_counter()
    last = None
    async with aclosing(events(port, path, body)) as stream:
        async for event in stream:
            now = time.perf_counter()
            if event.stop:
                measured.tokens += event.tokens_predicted
                measured.requests += 1
                return
            if last is None:
                measured.first.append(now - sent)
            else:
                measured.gaps.append(now - last)
            last = now
    raise LoadError("the stream ended without its last event")


async def events(port: int, path: str, body: dict[str, Any]) -> AsyncGenerator[Event, None]:
    """The decoded `data:` events of one streamed answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    try:
        payload = msgspec.json.encode(body)
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Connection: close\r\nContent-Length: {len(payload)}\r\n\r\n".encode() + payload)
        async for line in _lines(reader):
            if line.startswith(b"data: {"):
                yield msgspec.json.decode(line[6:], type=Event)
            elif line.startswith(b"error: "):
                raise LoadError(line.decode(errors="replace"))
    finally:
        writer.close()


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The lines of a 200 answer's body, with or without chunked transfer."""
    head = await reader.readuntil(b"\r\n\r\n")
    status, _, fields = head.partition(b"\r\n")
    if b" 200 " not in status + b" ":
        raise LoadError(f"{status.decode()}: {(await reader.read(2000)).decode(errors='replace')}")
    if b"transfer-encoding: chunked" not in fields.lower():
        async for line in reader:
            yield line
        return
    rest = b""
    while size := int(await reader.readline(), 16):
        rest += (await reader.readexactly(size + 2))[:size]
        *whole, rest = rest.split(b"\n")
        for line in whole:
            yield line
