"""Reading text that arrives in pieces, by generators that wait for more where they must.

A parser is a generator over a `Scanner`: it yields whenever it needs text that has not arrived and is resumed by the
next `feed`. What has been read is dropped, so a step costs what its new text costs.
"""

import re
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
Sink = Callable[[str], None]

SPACE = " \t\r\n"
SURELY_A_MARK = 3  # characters; fewer may well be text
SPACES = re.compile(r"[ \t\r\n]*")


class Markers:
    """A set of literal texts to look for, with the test whether a text may end inside one of them."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = tuple(sorted({text for text in texts if text}, key=len, reverse=True))
        self.pattern = re.compile("|".join(map(re.escape, self.texts)) or r"(?!)")
        self.longest = max(map(len, self.texts), default=0)
        self._tail = re.compile("(?:" + "|".join(map(_prefixes, self.texts or [" "])) + r")\Z")

    def partial(self, text: str, start: int) -> int:
        """Where in `text`, from `start`, a marker may have begun that is not all there; len(text) if nowhere."""
        found = self._tail.search(text, max(start, len(text) - self.longest + 1))
        return found.start() if found else len(text)

    def begins(self, text: str, start: int) -> bool:
        """Whether the rest of `text` from `start` is a proper prefix of a marker."""
        rest = text[start:]
        return any(len(rest) < len(marker) and marker.startswith(rest) for marker in self.texts)


def _prefixes(text: str) -> str:
    """A pattern for every non-empty proper prefix of `text`."""
    pattern = ""
    for char in reversed(text[1:-1]):
        pattern = f"(?:{re.escape(char)}{pattern})?"
    return re.escape(text[0]) + pattern if len(text) > 1 else "(?!)"


@lru_cache(maxsize=1024)
def markers(*texts: str) -> Markers:
    """The `Markers` of `texts`, compiled once."""
    return Markers(texts)


class Scanner:
    """The text between what was read and what has arrived, with the waiting reads on it."""

    def __init__(self) -> None:
        self.text = ""
        self.pos = 0
        self.ended = False
        self.cut = False  # the text ended before the model did
        self._record: list[str] | None = None

    def append(self, text: str) -> None:
        """Add text that arrived."""
        self.text = self.text[self.pos :] + text
        self.pos = 0

    @property
    def exhausted(self) -> bool:
        """Whether all text has ended and been read."""
        return self.ended and self.pos == len(self.text)

    def take(self, end: int) -> str:
        """Read up to position `end`."""
        taken = self.text[self.pos : end]
        self.pos = end
        if self._record is not None:
            self._record.append(taken)
        return taken

    def record(self, before: str = "") -> None:
        """Keep what is read from here on, after `before`, for `recorded`."""
        self._record = [before]

    def recorded(self) -> str:
        """What was read since `record`; recording ends."""
        text = "".join(self._record or ())
        self._record = None
        return text

    def more(self) -> Steps[bool]:
        """Wait for more text; False when there is none to come."""
        if self.ended:
            return False
        size = len(self.text) - self.pos
        while len(self.text) - self.pos == size and not self.ended:
            yield
        return len(self.text) - self.pos > size

    def until(self, marks: Markers, sink: Sink) -> Steps[str | None]:
        """Pass text to `sink` up to the first of `marks`; returns that mark, read, or None at the end of all text."""
        while True:
            found = marks.pattern.search(self.text, self.pos)
            hold = self.whole(marks) if self.ended else marks.partial(self.text, self.pos)
            if found and hold <= found.start():
                found = None  # a longer mark, or one that starts earlier, may still follow
            stop = found.start() if found else hold
            if stop > self.pos:
                sink(self.take(stop))
            if found:
                return self.take(found.end())
            if not (yield from self.more()):
                self.take(len(self.text))
                return None

    def space(self) -> Steps[str]:
        """Read white space; returns it."""
        return (yield from self.run(SPACES))

    def whole(self, marks: Markers) -> int:
        """Where the last text ends: a cut answer's end may be the first part of a mark, which is no text."""
        hold = marks.partial(self.text, self.pos) if self.cut else len(self.text)
        return hold if len(self.text) - hold >= SURELY_A_MARK else len(self.text)

    def run(self, pattern: re.Pattern[str]) -> Steps[str]:
        """Read the longest text, perhaps empty, that `pattern` (of single characters, repeated) matches."""
        taken = ""
        while True:
            found = pattern.match(self.text, self.pos)
            if found and found.end() > self.pos:
                taken += self.take(found.end())
            if self.pos < len(self.text) or not (yield from self.more()):
                return taken

    def peek(self, marks: Markers) -> Steps[str | None]:
        """Which of `marks` comes next, if any; nothing is read, but for a mark that a cut left incomplete."""
        while True:
            found = marks.pattern.match(self.text, self.pos)
            if not marks.begins(self.text, self.pos):
                return found.group() if found else None
            if not (yield from self.more()):
                if self.cut and not found:
                    self.take(len(self.text))
                return found.group() if found else None

    def literal(self, *texts: str) -> Steps[str | None]:
        """Read one of `texts` if it comes next; returns it."""
        found = yield from self.peek(markers(*texts))
        if found is not None:
            self.take(self.pos + len(found))
        return found

    def skip(self, text: str) -> Steps[bool]:
        """Read white space and then `text`, trimmed; False when something else, left unread, follows."""
        text = text.strip(SPACE)
        if not text:
            return False
        yield from self.space()
        return (yield from self.literal(text)) is not None

    def cut_inside(self, *texts: str) -> bool:
        """Whether all text has ended inside one of `texts`; what there was of it is then read."""
        if not self.ended or not markers(*texts).begins(self.text, self.pos):
            return False
        self.take(len(self.text))
        return True

    def char(self) -> Steps[str]:
        """The next character, not read; "" at the end."""
        if self.pos >= len(self.text):
            yield from self.more()
        return self.text[self.pos : self.pos + 1]
