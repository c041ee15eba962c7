"""One chat request under way, whatever API it came by.

    run = await start_chat(service, body)             # api.chat_plan; raises ApiError, nothing is submitted yet
    await respond_chat(resp, run, MyShape(run))       # MyShape derives from ChatShape

or, without an HTTP answer:

    await run.start()                                 # raises the engine's refusal
    try:
        async for event in run.events(): ...          # api.chat_events
    finally:
        await run.close()
"""

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

from falcon.asgi import Response

from api.chat_events import Answer, ChatEvent
from api.generate import SILENCE, Chunk, Completion, Generation
from api.params import Params
from api.parse.events import Event
from api.parse.stream import Parser
from api.results import random_id, usage_of
from api.service import Service
from api.stream import error_event, respond
from ipc.messages import Task


class ChatRun:
    """The answers to one request; `answers` holds as much of each as has been read."""

    def __init__(
        self, service: Service, params: Params, tasks: list[Task], parsers: list[Parser], echo: list[Event]
    ) -> None:
        """One task and one parser per answer; `echo`: what each answer repeats of the prompt."""
        self.service = service
        self.params = params
        self.tasks = tasks
        self.id = params.task.label  # by which the control endpoint finds the tasks
        self.created = int(time.time())
        self.model = service.name
        self.generation = Generation(service.client, tasks)
        self.answers = [Answer(index, parser, echo) for index, parser in enumerate(parsers)]
        self.prompt = ""  # as text
        self.tops: int | None = None  # alternatives shown per token; None: no log-probabilities
        self.warnings: list[str] = []  # what was relaxed of the request

    @property
    def n_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.tasks[0].tokens) // 4

    @property
    def usage(self) -> dict[str, object]:
        """OpenAI's `usage`, once all answers have ended."""
        return usage_of([[answer.final for answer in self.answers if answer.final is not None]])

    async def start(self) -> None:
        """Submit everything; raises what the engine refuses it with."""
        await self.generation.start()

    async def events(self) -> AsyncIterator[ChatEvent]:
        """What happens to all answers, in the order of arrival; raises `ApiError` if one fails."""
        async for chunk in self.generation:
            if chunk is not SILENCE:
                for event in self.read(chunk):
                    yield event

    def read(self, chunk: Chunk) -> list[ChatEvent]:
        """The events of one chunk."""
        return self.answers[chunk.index].read(chunk)

    async def close(self) -> None:
        """Abort what still runs. Idempotent."""
        await self.generation.close()


class ChatShape(ABC):
    """How an API shows chat events: a `Shape` to derive from. An instance belongs to one request."""

    def __init__(self, run: ChatRun) -> None:
        self.run = run

    @abstractmethod
    def show(self, event: ChatEvent) -> bytes:
        """The bytes of a streamed answer for one event; b"" for none."""

    @abstractmethod
    def body(self, answers: list[Answer]) -> bytes:
        """The body of an answer that is not streamed."""

    def end(self) -> bytes:
        """The last bytes of a stream."""
        return b""

    error = staticmethod(error_event)

    def write(self, chunk: Chunk) -> bytes:
        """What goes out for a chunk."""
        return b"".join([self.show(event) for event in self.run.read(chunk)])

    def whole(self, completions: list[Completion]) -> bytes:
        """The body: the same events, of all the text at once."""
        for index, one in enumerate(completions):
            self.run.read(Chunk(index, one.text, one.tokens, one.probs, final=one.final))
        return self.body(self.run.answers)


async def respond_chat(resp: Response, run: ChatRun, shape: ChatShape) -> None:
    """Generate and answer in `shape`, streamed if the request says so."""
    for warning in run.warnings[:10]:
        resp.append_header("X-Llamarada-Warning", warning.encode("ascii", "replace").decode()[:500])
    await respond(resp, run.generation, shape, stream=run.params.stream, ping=run.params.ping)


def new_id() -> str:
    """A chat completion's id."""
    return random_id("chatcmpl-")
