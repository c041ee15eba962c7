"""A request's completions: opened together, read as one sequence of chunks in the order of arrival.

Every API builds its answers from these chunks, streamed or whole.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Self

from msgspec import Struct

from api import probs
from api.errors import ApiError
from api.probs import Scored
from ipc.client import Stream
from ipc.messages import Delta, Final, Progress, PromptProbs, Queued, Task, Timings, TokenProbs

PROBS_INLINE = 8  # rows scored on the event loop; more go to a thread


class Chunk(Struct, gc=False):
    """News of completion `index`: text, progress of the prompt, its probabilities, or the end."""

    index: int
    text: str = ""
    tokens: list[int] = []
    probs: list[Scored | None] = []  # parallel to `tokens` when they were asked for
    timings: Timings | None = None
    progress: Progress | None = None
    queue_position: int | None = None
    prompt_probs: list[Scored | None] = []  # of the next prompt tokens, in order
    final: Final | None = None


SILENCE = Chunk(-1)  # nothing has happened for as long as `Generation.watch` says


class Generation:
    """The streams of one request. Iterating gives chunks; an error of any completion ends all and is raised.

    Close it in a `finally`: that aborts what still runs.
    """

    def __init__(self, client: Any, tasks: Sequence[Task], prompt_tops: int = 0) -> None:
        """`prompt_tops`: alternatives listed per prompt token, for tasks with `prompt_probs`."""
        self.client = client
        self.tasks = tasks
        self.prompt_tops = prompt_tops
        self.alarm: Alarm | None = None
        self.rang = False
        self.streams: dict[int, Stream] = {}
        self.ended = 0
        self.merged: asyncio.Queue[tuple[int, Any]] | None = None
        self.readers: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Submit all tasks and wait until the engine has admitted them; raises its refusal."""
        try:
            if len(self.tasks) == 1:
                await self.open(0)
            else:
                async with asyncio.TaskGroup() as group:
                    for index in range(len(self.tasks)):
                        group.create_task(self.open(index))
        except BaseExceptionGroup as errors:
            await self.close()
            raise errors.exceptions[0] from None
        except BaseException:
            await self.close()
            raise
        if len(self.tasks) > 1:
            self.merged = asyncio.Queue(maxsize=len(self.tasks))
            self.readers = [asyncio.create_task(self.forward(i, stream)) for i, stream in self.streams.items()]

    async def open(self, index: int) -> None:
        """Submit one task."""
        self.streams[index] = await self.client.submit(self.tasks[index])

    async def close(self) -> None:
        """Abort what still runs and free what was not read. Idempotent."""
        self.watch(None)
        for reader in self.readers:
            reader.cancel()
        for stream in self.streams.values():
            await stream.close()

    async def forward(self, index: int, stream: Stream) -> None:
        """Move one stream's results to the common queue, which is short: a slow client slows this down, too."""
        assert self.merged is not None
        async for result in stream:
            await self.merged.put((index, result))

    def watch(self, seconds: float | None) -> None:
        """From now on, give SILENCE after so many seconds without news; None: never."""
        if self.alarm is not None:
            self.alarm.cancel()
        self.alarm = None if seconds is None else Alarm(seconds, self.ring)

    def ring(self) -> None:
        """Make the reader see that nothing happens."""
        if self.merged is None:
            self.rang = True
            self.streams[0].wake()
        elif self.merged.empty():
            self.merged.put_nowait((-1, SILENCE))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        while self.ended < len(self.tasks):
            index, result = await self.take()
            if self.alarm is not None:
                self.alarm.heard()
            chunk = await self.chunk(index, result)
            if chunk is not None:
                return chunk
        raise StopAsyncIteration

    async def take(self) -> tuple[int, Any]:
        """The next result, or SILENCE, and the completion it belongs to. The engine's end makes a result, too."""
        if self.merged is not None:
            return await self.merged.get()
        stream = self.streams[0]
        while not stream.results and stream.final is None:
            self.rang = False
            await stream.wait()
            if self.rang:
                return -1, SILENCE
        return 0, await anext(stream)

    async def chunk(self, index: int, result: Any) -> Chunk | None:
        """A result as a chunk; raises `ApiError` for one that failed."""
        if type(result) is Delta:
            scored = await self.scored(result.probs, self.tasks[index]) if result.probs else []
            return Chunk(index, result.text, result.tokens, scored, result.timings)
        match result:
            case Progress():
                return Chunk(index, progress=result)
            case Queued():
                return Chunk(index, queue_position=result.position)
            case PromptProbs():
                return Chunk(index, prompt_probs=await self.scored_prompt(result, index))
            case Final():
                self.ended += 1
                if result.reason in ("error", "abort"):
                    raise failure(result)
                return Chunk(index, timings=result.timings, final=result)
            case Chunk():
                return result
        return None

    async def scored(self, sources: list[TokenProbs], task: Task) -> list[Scored | None]:
        """Probabilities of sampled tokens."""
        n = task.n_probs
        rows = [None if one.logits is None else self.client.row(one.logits) for one in sources]
        if len(rows) > PROBS_INLINE:
            return await asyncio.to_thread(score, sources, rows, n)
        return score(sources, rows, n)

    async def scored_prompt(self, result: PromptProbs, index: int) -> list[Scored | None]:
        """Log-probabilities of prompt tokens; the first token of a prompt has none."""
        tokens = memoryview(self.tasks[index].tokens).cast("i")[result.first : result.first + len(result.rows)]
        rows = [self.client.row(ref) for ref in result.rows]
        return [*await asyncio.to_thread(probs.scores, rows, tokens.tolist(), self.prompt_tops)]


class Alarm:
    """Calls `ring` after each `seconds` in which `heard` was not called. Hearing is cheap: no timer is moved."""

    def __init__(self, seconds: float, ring: Callable[[], None]) -> None:
        self.seconds = seconds
        self.ring = ring
        self.loop = asyncio.get_running_loop()
        self.last = self.loop.time()
        self.timer = self.loop.call_later(seconds, self.check)

    def heard(self) -> None:
        """There was news."""
        self.last = self.loop.time()

    def check(self) -> None:
        """Ring if there was none for long enough, and come back when that may next be so."""
        if self.loop.time() - self.last >= self.seconds:
            self.ring()
            self.heard()
        self.timer = self.loop.call_at(self.last + self.seconds, self.check)

    def cancel(self) -> None:
        """Never ring again."""
        self.timer.cancel()


def score(sources: list[TokenProbs], rows: list[Any], n: int) -> list[Scored | None]:
    """One entry per token; None where the engine gave nothing, as for accepted draft tokens."""
    return [score_one(source, row, n) for source, row in zip(sources, rows, strict=True)]


def score_one(source: TokenProbs, row: Any, n: int) -> Scored | None:
    """Before sampling from the row, after it from the candidates."""
    if row is not None:
        return probs.before(row, source.token, n)
    if source.candidates is not None:
        return probs.after(source.candidates, source.token, n)
    return None


def failure(final: Final) -> ApiError:
    """The error of a completion that the engine could not finish."""
    if final.error is None:
        return ApiError(503, "The request was aborted")
    return ApiError.of(final.error)


class Completion:
    """One completion as far as its chunks have been read; folding them all gives the whole answer."""

    __slots__ = ("final", "n_decoded", "parts", "probs", "progress", "prompt_probs", "timings", "tokens")

    def __init__(self) -> None:
        self.n_decoded = 0
        self.parts: list[str] = []
        self.tokens: list[int] = []
        self.probs: list[Scored | None] = []
        self.prompt_probs: list[Scored | None] = []
        self.timings: Timings | None = None
        self.final: Final | None = None

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self.parts)

    def count(self, chunk: Chunk) -> None:
        """Take from a chunk what a streamed answer still needs at its end."""
        self.n_decoded += len(chunk.tokens)
        if chunk.final is not None:
            self.final = chunk.final

    def add(self, chunk: Chunk) -> None:
        """Take everything."""
        self.count(chunk)
        if chunk.text:
            self.parts.append(chunk.text)
        self.tokens += chunk.tokens
        self.probs += chunk.probs
        self.prompt_probs += chunk.prompt_probs


async def fold(chunks: AsyncIterator[Chunk], n: int) -> list[Completion]:
    """The whole answer: all chunks put together, by completion."""
    completions = [Completion() for _ in range(n)]
    async for chunk in chunks:
        completions[chunk.index].add(chunk)
    return completions
