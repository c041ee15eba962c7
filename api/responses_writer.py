"""Builds a response from what the parser says of the answer, and the events that tell of it: `spec/chat.md` §8.3.

Items are opened and closed in turn. The whole response is what the events have built.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import Raw

from api.parse.events import CallArguments, CallStart, Content, Event, Reasoning
from api.responses_items import CALL
from api.responses_object import (
    COMPLETED,
    FAILED,
    INCOMPLETE,
    CallItem,
    Failed,
    Incomplete,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseObject,
    Usage,
    encode,
)
from api.results import random_id

ResponseEvent = dict[str, Any]


class ResponseWriter:
    """One response while it is generated. Every method gives the events that tell of the change."""

    def __init__(self, response: ResponseObject) -> None:
        self.response = response
        self.sequence = 0
        self.open: OutputItem | None = None
        self.texts: list[str] = []  # of the open item, to be joined once
        self.logprobs: list[Raw] = []

    def event(self, kind: str, **members: Any) -> ResponseEvent:
        """The next event."""
        event = {"type": kind, **members, "sequence_number": self.sequence}
        self.sequence += 1
        return event

    def lifecycle(self, kind: str, **members: Any) -> ResponseEvent:
        """An event with the whole response as it is now."""
        return self.event(kind, response=Raw(encode(self.response)), **members)

    def begin(self) -> Iterator[ResponseEvent]:
        """The first events."""
        yield self.lifecycle("response.created")
        yield self.lifecycle("response.in_progress")

    def progress(self, progress: dict[str, Any]) -> ResponseEvent:
        """The prompt is being read."""
        return self.lifecycle("response.in_progress", prompt_progress=progress)

    def add(self, event: Event, logprobs: list[Raw] | None = None) -> Iterator[ResponseEvent]:
        """Take the next piece of the answer; `logprobs` of its tokens are kept for text only."""
        match event:
            case Reasoning(text):
                yield from self.reasoning(text)
            case Content(text):
                yield from self.content(text, logprobs or [])
            case CallStart(_, id, name):
                yield from self.close()
                yield from self.start(CallItem(f"fc_{id}", f"{CALL}{id}", name))
            case CallArguments(_, text):
                yield from self.arguments(text)

    def reasoning(self, text: str) -> Iterator[ResponseEvent]:
        """More thinking."""
        if not isinstance(self.open, ReasoningItem):
            yield from self.close()
            yield from self.start(ReasoningItem(random_id("rs_")))
            yield self.part("response.content_part.added", ReasoningText())
        self.texts.append(text)
        yield self.delta("response.reasoning_text.delta", text, content_index=0)

    def content(self, text: str, logprobs: list[Raw]) -> Iterator[ResponseEvent]:
        """More text."""
        if not isinstance(self.open, MessageItem):
            yield from self.close()
            yield from self.start(MessageItem(random_id("msg_")))
            yield self.part("response.content_part.added", OutputText())
        self.texts.append(text)
        self.logprobs += logprobs
        yield self.delta("response.output_text.delta", text, content_index=0, logprobs=logprobs)

    def arguments(self, text: str) -> Iterator[ResponseEvent]:
        """More of the open call's arguments."""
        assert isinstance(self.open, CallItem)
        self.texts.append(text)
        yield self.delta("response.function_call_arguments.delta", text)

    def start(self, item: OutputItem) -> Iterator[ResponseEvent]:
        """Open an item."""
        self.open, self.texts, self.logprobs = item, [], []
        self.response.output.append(item)
        yield self.item("response.output_item.added")

    def close(self, status: str = COMPLETED) -> Iterator[ResponseEvent]:
        """Close the open item, if there is one."""
        item, text = self.open, "".join(self.texts)
        match item:
            case None:
                return
            case ReasoningItem():
                item.content = [ReasoningText(text)]
                yield self.about("response.reasoning_text.done", content_index=0, text=text)
                yield self.part("response.content_part.done", item.content[0])
            case MessageItem():
                item.content = [OutputText(text, logprobs=self.logprobs)]
                yield self.about("response.output_text.done", content_index=0, text=text, logprobs=self.logprobs)
                yield self.part("response.content_part.done", item.content[0])
            case CallItem():
                item.arguments = text
                yield self.about("response.function_call_arguments.done", name=item.name, arguments=text)
        item.status = status
        yield self.item("response.output_item.done")
        self.open = None

    def finish(self, usage: Usage, at: int, cut: bool) -> Iterator[ResponseEvent]:
        """The answer is complete, or was `cut` by a limit. The response's last event follows by `completed`."""
        response = self.response
        yield from self.close(INCOMPLETE if cut else COMPLETED)
        response.usage = usage
        response.status = INCOMPLETE if cut else COMPLETED
        response.completed_at = None if cut else at
        response.incomplete_details = Incomplete() if cut else None
        yield self.lifecycle("response.completed")

    def fail(self, failed: Failed) -> Iterator[ResponseEvent]:
        """The answer ends with an error."""
        if self.sequence == 0:
            yield from self.begin()
        yield from self.close(INCOMPLETE)
        self.response.status, self.response.error = FAILED, failed
        yield self.lifecycle("response.failed")

    def about(self, kind: str, **members: Any) -> ResponseEvent:
        """An event about the open item."""
        assert self.open is not None
        return self.event(kind, item_id=self.open.id, output_index=len(self.response.output) - 1, **members)

    def delta(self, kind: str, text: str, **members: Any) -> ResponseEvent:
        """More text of the open item."""
        return self.about(kind, delta=text, **members)

    def part(self, kind: str, part: OutputText | ReasoningText) -> ResponseEvent:
        """An event about the open item's content."""
        return self.about(kind, content_index=0, part=Raw(encode(part)))

    def item(self, kind: str) -> ResponseEvent:
        """An event with the open item as it is now."""
        return self.event(kind, output_index=len(self.response.output) - 1, item=Raw(encode(self.open)))
