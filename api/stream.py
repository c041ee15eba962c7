"""Answering: the one place where chunks become an HTTP answer, streamed or whole."""

import logging
from collections.abc import AsyncIterator
from typing import Protocol

from falcon.asgi import Response

from api.errors import ApiError, encode, translate
from api.generate import SILENCE, Chunk, Completion, Generation, fold

log = logging.getLogger(__name__)

PING = b":\n\n"
FIRST_SILENCE = 0.25  # seconds; the server sends headers with the first bytes, so a waiting client gets a comment


class Shape(Protocol):
    """How one API shows chunks. An instance belongs to one request and may keep state."""

    def write(self, chunk: Chunk) -> bytes:
        """The events for a chunk of a streamed answer; b"" for none."""

    def end(self) -> bytes:
        """The last events of a stream."""

    def error(self, error: ApiError) -> bytes:
        """The event for an error after the headers."""

    def whole(self, completions: list[Completion]) -> bytes:
        """The body of an answer that is not streamed."""


class EventStream:
    """Server-sent events as falcon streams them. Falcon closes it also when the client has left."""

    def __init__(self, generation: Generation, shape: Shape, ping: int | None) -> None:
        """`ping`: seconds of silence before a comment is sent; None or 0: never."""
        self.generation = generation
        self.shape = shape
        self.ping = ping or None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        generation, shape = self.generation, self.shape
        if self.ping is not None:
            generation.watch(min(FIRST_SILENCE, self.ping))
        begun = False
        comment = PING
        try:
            async for chunk in generation:
                if not begun:
                    begun = True
                    generation.watch(self.ping)
                if chunk.queue_position is not None:
                    data = comment = b": queue_position=%d\n\n" % chunk.queue_position
                elif chunk is SILENCE:
                    data = comment
                else:
                    data, comment = shape.write(chunk), PING
                if data:
                    yield data
            last = shape.end()
        except Exception as error:
            last = shape.error(translate(error))
        if last:
            yield last

    async def close(self) -> None:
        """Abort what still runs."""
        await self.generation.close()


async def respond(resp: Response, generation: Generation, shape: Shape, *, stream: bool, ping: int | None) -> None:
    """Start the completions and answer with them. What the engine refuses is raised before any header goes out."""
    await generation.start()
    if stream:
        resp.content_type = "text/event-stream"
        resp.set_header("X-Accel-Buffering", "no")
        resp.set_header("Cache-Control", "no-cache")
        resp.stream = EventStream(generation, shape, ping)  # type: ignore[assignment]
        return
    try:
        completions = await fold(generation, len(generation.tasks))
    finally:
        await generation.close()
    resp.data = shape.whole(completions)


def event(data: bytes) -> bytes:
    """One server-sent event."""
    return b"data: %b\n\n" % data


def error_event(error: ApiError) -> bytes:
    """The event that tells of an error after the headers."""
    log.warning("A stream ends with an error: %s", error.message)
    return event(encode(error.body()))
