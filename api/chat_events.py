"""What happens to the answers of a chat request, piece by piece; every chat API builds its own events from these.

An answer is ChatBegin, then ChatProgress and ChatDelta in any number, then ChatFinish.
"""

from functools import cached_property

from msgspec import Struct

from api.generate import Chunk
from api.parse.events import CallStart, Event, Message, Reasoning, compact
from api.parse.stream import Parser
from api.probs import Scored
from api.results import finish_reason
from ipc.messages import Final, Progress, Timings


class ChatBegin(Struct, gc=False):
    """Answer `index` begins: its first token is there, or its prompt is being read."""

    index: int


class ChatProgress(Struct, gc=False):
    """How much of the prompt has been read; only in streams that asked for it."""

    index: int
    progress: Progress


class ChatDelta(Struct, gc=False):
    """More of answer `index`. `news` may be empty while text is withheld; the tokens' `probs` then belong to it, too.

    `news` are api.parse.events: Reasoning(text), Content(text), CallStart(index, id, name), CallArguments(index, text).
    """

    index: int
    news: list[Event]
    probs: list[Scored | None] = []
    timings: Timings | None = None  # with every token, if asked for


class ChatFinish(Struct, gc=False):
    """The end of answer `index`. `reason` is "stop", "length" or "tool_calls"; `answer` is all of it."""

    index: int
    reason: str
    final: Final
    answer: "Answer"


ChatEvent = ChatBegin | ChatProgress | ChatDelta | ChatFinish


class Answer:
    """One answer as far as it has been read."""

    def __init__(self, index: int, parser: Parser, echo: list[Event]) -> None:
        """`echo`: what the answer repeats of its beginning that stood in the prompt."""
        self.index = index
        self.parser = parser
        self.echo = echo
        self.begun = False
        self.news: list[Event] = []
        self.has_calls = False
        self.probs: list[Scored | None] = []
        self.final: Final | None = None

    @cached_property
    def message(self) -> Message:
        """The whole: reasoning, content and calls. Ask for it at the end."""
        return Message().add(compact(self.news))

    @property
    def reason(self) -> str:
        """Why it ended, in OpenAI's words."""
        assert self.final is not None
        reason = finish_reason(self.final)
        return "tool_calls" if reason == "stop" and self.has_calls else reason

    @property
    def thought(self) -> str:
        """The text of the thinking so far."""
        return "".join(event.text for event in self.news if type(event) is Reasoning)

    def read(self, chunk: Chunk) -> list[ChatEvent]:
        """What a chunk of this answer's text means."""
        events: list[ChatEvent] = []
        if not self.begun and not chunk.prompt_probs:
            events += self.begin()
        if chunk.progress is not None:
            events.append(ChatProgress(self.index, chunk.progress))
        if chunk.text or chunk.tokens:
            events.append(self.add(self.parser.feed(chunk.text), chunk))
        if chunk.final is not None:
            events += self.end(chunk.final)
        return events

    def begin(self) -> list[ChatEvent]:
        """The first events."""
        self.begun = True
        begin = ChatBegin(self.index)
        return [begin, self.add(self.echo, Chunk(self.index))] if self.echo else [begin]

    def add(self, news: list[Event], chunk: Chunk) -> ChatDelta:
        """Take what the parser says of a chunk."""
        self.news += news
        self.has_calls = self.has_calls or any(type(event) is CallStart for event in news)
        self.probs += chunk.probs
        return ChatDelta(self.index, news, chunk.probs, None if chunk.final else chunk.timings)

    def end(self, final: Final) -> list[ChatEvent]:
        """The last events."""
        self.final = final
        rest = self.parser.finish(cut=final.reason == "limit")
        last = [self.add(rest, Chunk(self.index))] if rest else []
        return [*last, ChatFinish(self.index, self.reason, final, self)]
