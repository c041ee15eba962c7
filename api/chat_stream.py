"""OpenAI's chat completions, whole and as a stream of chunks: `spec/generation.md` §8.3."""

from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from api.chat_counts import logprobs, reasoning_tokens
from api.chat_events import Answer, ChatBegin, ChatDelta, ChatEvent, ChatFinish, ChatProgress
from api.chat_run import ChatRun, ChatShape
from api.generate import Completion
from api.native import Native
from api.parse.events import CallArguments, CallStart, Content, Event, Reasoning
from api.probs import Scored
from api.results import progress_shown, timings_shown
from api.stream import event as sse

encode = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"
ROLE = {"role": "assistant", "content": None}


class Logprobs(Struct):
    """`logprobs` of a choice."""

    content: list[Raw]


class ChunkChoice(Struct):
    """A piece of one answer."""

    finish_reason: str | None
    index: int
    delta: dict[str, Any]
    logprobs: Logprobs | UnsetType = UNSET


class Choice(Struct):
    """A whole answer."""

    finish_reason: str
    index: int
    message: dict[str, Any]
    logprobs: Logprobs | UnsetType = UNSET


class ChatCompletion(Struct):
    """The whole answer, or one chunk of a stream."""

    choices: list[Choice] | list[ChunkChoice]
    created: int
    id: str
    model: str
    system_fingerprint: str
    object: str
    usage: dict[str, Any] | UnsetType = UNSET
    timings: dict[str, Any] | UnsetType = UNSET
    prompt_progress: dict[str, Any] | UnsetType = UNSET
    verbose: Any = msgspec.field(default=UNSET, name="__verbose")


class OpenAIChat(ChatShape):
    """The `Shape` of chat completions."""

    def __init__(self, run: ChatRun) -> None:
        super().__init__(run)
        self.build = run.service.info.build
        self.native = Native(run.service, run.params, run.tasks, run.model)
        self.completions = [Completion() for _ in run.tasks]
        self.unsent: list[list[Scored | None]] = [[] for _ in run.tasks]  # of tokens whose text is withheld

    # streamed

    def show(self, event: ChatEvent) -> bytes:
        match event:
            case ChatDelta():
                return self.pieces(event)
            case ChatBegin(index):
                return self.chunk(index, ROLE)
            case ChatProgress(index, progress):
                shown = self.object([ChunkChoice(None, index, {})])
                shown.prompt_progress = progress_shown(progress)
                return sse(encode(shown))
            case ChatFinish():
                return self.finish(event)

    def pieces(self, delta: ChatDelta) -> bytes:
        """One chunk for each piece of news; probabilities and timings are on the last one."""
        unsent = self.unsent[delta.index]
        unsent += delta.probs
        if not delta.news:
            return b""
        *first, last = [shown_event(event) for event in delta.news]
        chunks = [self.chunk(delta.index, shown) for shown in first]
        final = self.object([ChunkChoice(None, delta.index, last, self.logprobs(unsent))])
        unsent.clear()
        if delta.timings is not None:
            final.timings = timings_shown(delta.timings)
        return b"".join([*chunks, sse(encode(final))])

    def chunk(self, index: int, delta: dict[str, Any]) -> bytes:
        """A chunk with nothing but a delta."""
        return sse(encode(self.object([ChunkChoice(None, index, delta)])))

    def finish(self, event: ChatFinish) -> bytes:
        """The chunk that says why an answer ended."""
        logprobs = self.logprobs(self.unsent[event.index])
        shown = self.object([ChunkChoice(event.reason, event.index, {}, logprobs)])
        if not self.run.params.include_usage:
            shown.timings = timings_shown(event.final.timings)
        if self.run.params.verbose:
            self.completions[event.index].final = event.final
            shown.verbose = self.native.final(event.index, self.completions[event.index])
        return sse(encode(shown))

    def end(self) -> bytes:
        if not self.run.params.include_usage:
            return DONE
        last = self.object([])
        last.usage = self.usage()
        last.timings = self.timings()
        return sse(encode(last)) + DONE

    def object(self, choices: list[ChunkChoice]) -> ChatCompletion:
        """A chunk with what all chunks have in common."""
        run = self.run
        return ChatCompletion(choices, run.created, run.id, run.model, self.build, "chat.completion.chunk")

    # whole

    def whole(self, completions: list[Completion]) -> bytes:
        self.completions = completions
        return super().whole(completions)

    def body(self, answers: list[Answer]) -> bytes:
        run = self.run
        choices = [self.choice(answer) for answer in answers]
        shown = ChatCompletion(choices, run.created, run.id, run.model, self.build, "chat.completion")
        shown.usage, shown.timings = self.usage(), self.timings()
        if run.params.verbose:
            shown.verbose = self.native.final(0, self.completions[0])
        return encode(shown)

    def choice(self, answer: Answer) -> Choice:
        """One whole answer."""
        assert answer.final is not None
        scored = self.native.without_stop(answer.probs, answer.final.stopping_word)
        return Choice(answer.reason, answer.index, message_of(answer), self.logprobs(scored))

    # both

    def timings(self) -> dict[str, Any]:
        """Of the first answer."""
        first = self.run.answers[0].final
        assert first is not None
        return timings_shown(first.timings)

    def usage(self) -> dict[str, Any]:
        """Of all answers together."""
        thought = sum(reasoning_tokens(self.run, answer) for answer in self.run.answers)
        details = {"completion_tokens_details": {"reasoning_tokens": thought}} if thought else {}
        return {**self.run.usage, **details}

    def logprobs(self, scored: list[Scored | None]) -> Logprobs | UnsetType:
        """`logprobs`, unset when there are none."""
        return Logprobs(logprobs(self.run, scored)) if scored and self.run.tops is not None else UNSET


def shown_event(event: Event) -> dict[str, Any]:
    """A piece of news as a delta."""
    match event:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning_content": text}
        case CallStart(index, id, name):
            call = {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
            return {"tool_calls": [call]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def message_of(answer: Answer) -> dict[str, Any]:
    """A whole answer as a message, which may be sent back as it is."""
    message = answer.message
    shown: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.reasoning:
        shown["reasoning_content"] = message.reasoning
    if message.calls:
        shown["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}, "id": call.id}
            for call in message.calls
        ]
    return shown
