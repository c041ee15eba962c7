"""What a parser tells about an answer, piece by piece, and the message that the pieces add up to."""

import secrets
import string
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby

LONG_ID, SHORT_ID = 32, 9  # characters; some templates take only short ones
ID_ALPHABET = string.ascii_letters + string.digits


@dataclass(slots=True, frozen=True)
class Reasoning:
    """More thinking text."""

    text: str


@dataclass(slots=True, frozen=True)
class Content:
    """More answer text."""

    text: str


@dataclass(slots=True, frozen=True)
class CallStart:
    """A tool call begins; its arguments follow as `CallArguments` of the same index."""

    index: int
    id: str
    name: str


@dataclass(slots=True, frozen=True)
class CallArguments:
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


Event = Reasoning | Content | CallStart | CallArguments


@dataclass(slots=True)
class Call:
    """A whole tool call; `arguments` is JSON text (cut short when the answer was)."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Message:
    """The sum of all events of an answer."""

    reasoning: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)

    def add(self, events: Iterable[Event]) -> "Message":
        """Append `events`; returns the message itself."""
        for event in events:
            match event:
                case Reasoning(text):
                    self.reasoning += text
                case Content(text):
                    self.content += text
                case CallStart(_, id, name):
                    self.calls.append(Call(id, name))
                case CallArguments(index, text):
                    self.calls[index].arguments += text
        return self


def compact(events: Iterable[Event]) -> list[Event]:
    """The same events with neighbours that continue each other joined."""
    joined: list[Event] = []
    for (kind, index), group in groupby(events, lambda event: (type(event), getattr(event, "index", 0))):
        if kind is CallStart:
            joined.extend(group)
            continue
        text = "".join(event.text for event in group if not isinstance(event, CallStart))
        joined.append(CallArguments(index, text) if kind is CallArguments else _text(kind, text))
    return joined


def _text(kind: type[Event], text: str) -> Event:
    return Reasoning(text) if kind is Reasoning else Content(text)


def random_id(length: int = LONG_ID) -> str:
    """A call id for formats that carry none."""
    return "".join(secrets.choice(ID_ALPHABET) for _ in range(length))
