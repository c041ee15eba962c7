"""Turns token pieces into text that may be sent: whole characters, and nothing of a stop string."""

import codecs
from dataclasses import dataclass

_decoder = codecs.getincrementaldecoder("utf-8")


@dataclass(slots=True)
class Emission:
    """What one token released: `text`, whether it completes its characters, and the stop string it hit."""

    text: str
    complete: bool
    stopped_by: str | None = None


class _Stop:
    """Follows one stop string through the text: each character costs the same, whatever the string is."""

    def __init__(self, word: str) -> None:
        self.word = word
        self.matched = 0  # characters of its beginning that the text ends in
        self._borders = [0, 0]  # by length of a beginning: the longest shorter beginning that it ends in

    def feed(self, text: str) -> int | None:
        """How many characters of `text` it takes until the stop string is complete, None if it is not."""
        for at, char in enumerate(text):
            while self.matched and self.word[self.matched] != char:
                self.matched = self._border(self.matched)
            if self.word[self.matched] == char:
                self.matched += 1
            if self.matched == len(self.word):
                return at + 1
        return None

    def _border(self, n: int) -> int:
        borders = self._borders
        while len(borders) <= n:
            char, border = self.word[len(borders) - 1], borders[-1]
            while border and self.word[border] != char:
                border = borders[border]
            borders.append(border + (self.word[border] == char))
        return borders[n]


class TextStream:
    """Holds back incomplete UTF-8 and every tail that may still become a stop string.

    Bytes that can never become valid turn into U+FFFD; a character cut by the end of generation is dropped.
    """

    def __init__(self, stop: list[str]) -> None:
        self._stops = [_Stop(word) for word in stop if word]
        self._decoder = _decoder(errors="replace")
        self._held = ""

    def feed(self, piece: bytes) -> Emission:
        """Add a token's bytes. After a stop string nothing more is released."""
        new = self._decoder.decode(piece)
        match = self._earliest_stop(new)
        self._held += new
        if match is not None:
            start, word = match
            text, self._held = self._held[:start], ""
            return Emission(text, True, word)
        if self._decoder.getstate()[0]:
            return Emission("", False)
        cut = len(self._held) - max((stop.matched for stop in self._stops), default=0)
        text, self._held = self._held[:cut], self._held[cut:]
        return Emission(text, True)

    def finish(self) -> str:
        """The text still held back because it might have become a stop string."""
        text, self._held = self._held, ""
        return text

    def _earliest_stop(self, new: str) -> tuple[int, str] | None:
        """Where in the held text and `new` the first stop string begins that is complete."""
        ends = [(stop.feed(new), stop.word) for stop in self._stops]
        found = [(len(self._held) + end - len(word), word) for end, word in ends if end is not None]
        return min(found, key=lambda match: match[0], default=None)


class IndentGuard:
    """Ends a text at the first complete line that is indented by less than `n_indent` blanks.

    The first line is exempt: the prompt may have begun it.
    """

    def __init__(self, n_indent: int) -> None:
        self._n_indent = n_indent
        self._line = ""  # the current line's beginning, up to its first visible character
        self._first = True
        self._visible = False

    def cut(self, text: str) -> int | None:
        """Index in `text` where an under-indented line begins, or None. A line begun in an earlier call cuts at 0."""
        start = 0
        for at, char in enumerate(text):
            if char == "\n":
                self._first, self._line, self._visible, start = False, "", False, at + 1
            elif not self._visible and not self._first:
                if char in " \t":
                    self._line += char
                elif len(self._line) < self._n_indent:
                    return start
                else:
                    self._visible = True
        return None
