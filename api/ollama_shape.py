"""Answers of Ollama's API, whole and as lines of JSON."""

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Raw

from api.chat_counts import logprobs
from api.chat_events import Answer, ChatBegin, ChatDelta, ChatEvent, ChatFinish, ChatProgress
from api.chat_run import ChatRun, ChatShape
from api.error_forms import ollama_error
from api.errors import ApiError, encode, log
from api.parse.events import Call, CallArguments, CallStart, Content, Event, Message, Reasoning
from ipc.messages import Final

Show = Callable[[Message], dict[str, Any]]
NDJSON = "application/x-ndjson"
MS = 1_000_000  # nanoseconds


class CallCollector:
    """Turns news into messages of one kind each: a piece of thinking, a piece of text or one whole call."""

    def __init__(self) -> None:
        self.call: Call | None = None

    def add(self, news: Iterable[Event]) -> list[Message]:
        """The messages that are complete now."""
        messages: list[Message] = []
        for event in news:
            if type(event) is CallArguments:
                assert self.call is not None
                self.call.arguments += event.text
                continue
            messages += self.flush()
            match event:
                case Reasoning(text):
                    messages.append(Message(reasoning=text))
                case Content(text):
                    messages.append(Message(content=text))
                case CallStart(_, id, name):
                    self.call = Call(id, name)
        return messages

    def flush(self) -> list[Message]:
        """The call that was under way; it is complete."""
        call, self.call = self.call, None
        return [] if call is None else [Message(calls=[call])]


class OllamaShape(ChatShape):
    """The `Shape` of /api/chat and /api/generate, which differ in how they show a message."""

    def __init__(self, run: ChatRun, show: Show) -> None:
        super().__init__(run)
        self.show_message = show
        self.started = time.perf_counter_ns()
        self.calls = CallCollector()
        self.unsent: list[Raw] = []  # log-probabilities of tokens whose text is withheld
        self.n_calls = 0

    # streamed

    def show(self, event: ChatEvent) -> bytes:
        match event:
            case ChatDelta(_, news, scored):
                self.unsent += logprobs(self.run, scored)
                return b"".join([self.line(message) for message in self.calls.add(news)])
            case ChatFinish(_, _, final):
                last = [self.line(message) for message in self.calls.flush()]
                return b"".join([*last, encode(self.object(Message(), self.end_of(final))), b"\n"])
            case ChatBegin() | ChatProgress():
                return b""

    def line(self, message: Message) -> bytes:
        """A piece of the answer."""
        shown = self.object(message, {"done": False})
        if self.unsent and message.content:
            shown["logprobs"], self.unsent = self.unsent, []
        return encode(shown) + b"\n"

    def object(self, message: Message, rest: dict[str, Any]) -> dict[str, Any]:
        """The members that every object has, a message and the rest."""
        shown = self.show_message(message)
        for call in shown.get("message", {}).get("tool_calls", ()):
            call["function"]["index"] = self.n_calls
            self.n_calls += 1
        return {"model": self.run.model, "created_at": now(), **shown, **rest}

    def error(self, error: ApiError) -> bytes:
        """The last line of a stream that failed."""
        log.warning("A stream ends with an error: %s", error.message)
        return encode(ollama_error(error)) + b"\n"

    # whole

    def body(self, answers: list[Answer]) -> bytes:
        answer = answers[0]
        assert answer.final is not None
        shown = self.object(answer.message, self.end_of(answer.final))
        if answer.probs and self.run.tops is not None:
            shown["logprobs"] = logprobs(self.run, answer.probs)
        return encode(shown)

    # both

    def end_of(self, final: Final) -> dict[str, Any]:
        """Why the answer ended, counts, and durations in nanoseconds."""
        timings = final.timings
        return {
            "done": True,
            "done_reason": "stop" if final.reason in ("eos", "word") else "length",
            "total_duration": time.perf_counter_ns() - self.started,
            "load_duration": round(timings.queue_ms * MS),
            "prompt_eval_count": final.n_prompt,
            "prompt_eval_duration": round(timings.prompt_ms * MS),
            "eval_count": timings.predicted_n,
            "eval_duration": round(timings.predicted_ms * MS),
        }


def chat_message(message: Message) -> dict[str, Any]:
    """A message of /api/chat."""
    shown: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.reasoning:
        shown["thinking"] = message.reasoning
    if message.calls:
        shown["tool_calls"] = [tool_call(call) for call in message.calls]
    return {"message": shown}


def tool_call(call: Call) -> dict[str, Any]:
    """A call with its arguments as an object; {} if they are none, as when the answer was cut short."""
    try:
        arguments = msgspec.json.decode(call.arguments)
    except msgspec.DecodeError:
        arguments = {}
    return {"id": call.id, "function": {"name": call.name, "arguments": arguments if type(arguments) is dict else {}}}


def generated(message: Message) -> dict[str, Any]:
    """A piece of the answer of /api/generate."""
    shown = {"response": message.content}
    return shown | {"thinking": message.reasoning} if message.reasoning else shown


def now() -> str:
    """This moment as Ollama writes it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
