"""Where a parser's text goes: reasoning, content and calls, turned into events."""

from collections.abc import Mapping
from typing import Any

from api.parse.events import LONG_ID, SHORT_ID, CallArguments, CallStart, Content, Event, Reasoning, compact, random_id
from api.parse.jsontext import Unreadable
from api.parse.scan import SPACE


class Trimmed:
    """Text whose white space at the edges may turn out not to count.

    White space at the end is withheld until more text follows, or dropped; at the start it is dropped when `lead`.
    """

    def __init__(self, kind: type[Reasoning] | type[Content], events: list[Event]) -> None:
        self.kind = kind
        self.events = events
        self.lead = False
        self.trim = False
        self.space = ""
        self._any = False

    @property
    def at_line_start(self) -> bool:
        """Whether the text so far, white space that is withheld included, ends at a line's start."""
        return not self._any or "\n" in self.space

    def write(self, text: str) -> None:
        """Add text."""
        if self.lead:
            text = text.lstrip(SPACE)
            self.lead = not text
        if self.trim or self.space:
            text = self.space + text
            kept = text.rstrip(SPACE) if self.trim else text
            self.space = text[len(kept) :]
            text = kept
        if text:
            self._any = True
            self.events.append(self.kind(text))

    def flush(self) -> None:
        """Emit the white space withheld."""
        space, self.space = self.space, ""
        if space:
            self.events.append(self.kind(space))

    def drop(self) -> None:
        """Forget the white space withheld."""
        self.space = ""

    def restart(self) -> None:
        """Begin anew: white space at the start is dropped."""
        self.space, self.lead, self._any = "", True, False


class Output:
    """Collects the events of one answer."""

    def __init__(self, tools: Mapping[str, Any], id_length: int = LONG_ID) -> None:
        self.events: list[Event] = []
        self.content = Trimmed(Content, self.events)
        self.reasoning = Trimmed(Reasoning, self.events)
        self.reasoning.lead = self.reasoning.trim = True
        self.tools = tools
        self.id_length = id_length
        self.n_calls = 0
        self.thinking = False  # the text so far ends inside the thinking
        self._ids: set[str] = set()

    def drain(self) -> list[Event]:
        """The events since the last time."""
        events = compact(self.events)
        self.events.clear()
        return events

    def forget(self) -> None:
        """Drop what was written so far, white space that is withheld included."""
        self.events.clear()
        self.content.drop()
        self.reasoning.drop()

    def call(self, name: str, id: str = "", held: bool = False) -> "CallSink":
        """Begin a call, or with `held` one that begins at its `release`.

        Raises `Unreadable` for a name that is not among the tools.
        """
        if (self.tools and name not in self.tools) or not name:
            raise Unreadable(f"no tool is named {name!r}")
        sink = CallSink(name, self)
        if not held:
            sink.release(id)
        return sink

    def start(self, name: str, id: str) -> int:
        """Emit the start of a call; returns its index."""
        if not id or id in self._ids or (self.id_length == SHORT_ID != len(id)):
            id = random_id(self.id_length)
        self._ids.add(id)
        self.content.restart()
        self.events.append(CallStart(self.n_calls, id, name))
        self.n_calls += 1
        return self.n_calls - 1


class CallSink:
    """Takes the pieces of one call's arguments."""

    def __init__(self, name: str, output: Output) -> None:
        self.name = name
        self.schema: Any = output.tools.get(name)
        self._output = output
        self._index: int | None = None
        self._held: list[str] = []
        self._empty = True

    def release(self, id: str) -> None:
        """Begin the call, if it has not begun, and emit what was held."""
        if self._index is None:
            self._index = self._output.start(self.name, id)
            held, self._held = self._held, []
            for text in held:
                self.write(text)

    def write(self, text: str) -> None:
        """Add JSON text to the arguments."""
        self._empty = self._empty and not text
        if self._index is None:
            self._held.append(text)
        elif text:
            self._output.events.append(CallArguments(self._index, text))

    def close(self) -> None:
        """The call is complete; without arguments they are an empty object."""
        if self._empty:
            self.write("{}")
