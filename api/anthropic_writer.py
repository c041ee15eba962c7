"""Builds a message of the Messages API, and the events that tell of it: `spec/chat.md` §9.2-3.

Blocks are opened and closed in turn. The whole message is what the events have built.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw, Struct

from api.parse.events import CallArguments, CallStart, Content, Event, Reasoning

MessageEvent = dict[str, Any]
EMPTY = Raw(b"{}")


class Thinking(Struct):
    """What the model thought."""

    thinking: str = ""
    signature: str = ""
    type: str = "thinking"


class Text(Struct):
    """What the model said."""

    text: str = ""
    type: str = "text"


class ToolUse(Struct):
    """A tool call."""

    id: str
    name: str
    input: Raw = EMPTY
    type: str = "tool_use"


class Usage(Struct):
    """Counts of tokens; `input_tokens` are those that no cache had."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class MessageObject(Struct):
    """The answer."""

    id: str
    model: str
    type: str = "message"
    role: str = "assistant"
    content: list[Thinking | Text | ToolUse] = []
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: Usage = msgspec.field(default_factory=Usage)


encode = msgspec.json.Encoder().encode


class MessageWriter:
    """One message while it is generated. Every method gives the events that tell of the change."""

    def __init__(self, message: MessageObject) -> None:
        self.message = message
        self.open: Thinking | Text | ToolUse | None = None
        self.texts: list[str] = []  # of the open block, to be joined once

    @property
    def index(self) -> int:
        """The number of the newest block."""
        return len(self.message.content) - 1

    def begin(self) -> Iterator[MessageEvent]:
        """The first event."""
        yield {"type": "message_start", "message": Raw(encode(self.message))}

    def add(self, event: Event) -> Iterator[MessageEvent]:
        """Take the next piece of the answer."""
        match event:
            case Reasoning(text):
                if not isinstance(self.open, Thinking):
                    yield from self.start(Thinking())
                yield self.delta(text, type="thinking_delta", thinking=text)
            case Content(text):
                if not isinstance(self.open, Text):
                    yield from self.start(Text())
                yield self.delta(text, type="text_delta", text=text)
            case CallStart(_, id, name):
                yield from self.start(ToolUse(id, name))
            case CallArguments(_, text):
                yield self.delta(text, type="input_json_delta", partial_json=text)

    def start(self, block: Thinking | Text | ToolUse) -> Iterator[MessageEvent]:
        """Open a block."""
        yield from self.close()
        self.open, self.texts = block, []
        self.message.content.append(block)
        yield {"type": "content_block_start", "index": self.index, "content_block": Raw(encode(block))}

    def delta(self, text: str, /, **members: Any) -> MessageEvent:
        """More of the open block."""
        self.texts.append(text)
        return {"type": "content_block_delta", "index": self.index, "delta": members}

    def close(self) -> Iterator[MessageEvent]:
        """Close the open block, if there is one."""
        block, text = self.open, "".join(self.texts)
        match block:
            case None:
                return
            case Thinking():
                block.thinking = text
                signature = {"type": "signature_delta", "signature": ""}
                yield {"type": "content_block_delta", "index": self.index, "delta": signature}
            case Text():
                block.text = text
            case ToolUse():
                block.input = input_of(text)
        self.open = None
        yield {"type": "content_block_stop", "index": self.index}

    def finish(self, reason: str, stop_sequence: str | None, usage: Usage) -> Iterator[MessageEvent]:
        """The answer is complete."""
        yield from self.close()
        message = self.message
        message.stop_reason, message.stop_sequence, message.usage = reason, stop_sequence, usage
        delta = {"stop_reason": reason, "stop_sequence": stop_sequence}
        yield {"type": "message_delta", "delta": delta, "usage": usage}
        yield {"type": "message_stop"}


def input_of(arguments: str) -> Raw:
    """A call's arguments as they stand; {} if they are no object, as when the answer was cut short."""
    try:
        whole = isinstance(msgspec.json.decode(arguments), dict)
    except msgspec.DecodeError:
        whole = False
    return Raw(arguments.encode()) if whole else EMPTY
