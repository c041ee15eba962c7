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


class TextStream:
    """Holds back incomplete UTF-8 and every tail that may still become a stop string.

    Bytes that can never become valid turn into U+FFFD; a character cut by the end of generation is dropped.
    """

    def __init__(self, stop: list[str]) -> None:
        self._stop = [word for word in stop if word]
        self._decoder = _decoder(errors="replace")
        self._held = ""

    def feed(self, piece: bytes) -> Emission:
        """Add a token's bytes. After a stop string nothing more is released."""
        self._held += self._decoder.decode(piece)
        match = self._earliest_stop()
        if match is not None:
            start, word = match
            text, self._held = self._held[:start], ""
            return Emission(text, True, word)
        if self._decoder.getstate()[0]:
            return Emission("", False)
        keep = self._partial_stop()
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return Emission(text, True)

    def finish(self) -> str:
        """The text still held back because it might have become a stop string."""
        text, self._held = self._held, ""
        return text

    def _earliest_stop(self) -> tuple[int, str] | None:
        found = [(at, word) for word in self._stop if (at := self._held.find(word)) >= 0]
        return min(found, key=lambda match: match[0], default=None)

    def _partial_stop(self) -> int:
        """Length of the longest tail that begins a stop string."""
        longest = 0
        for word in self._stop:
            for n in range(min(len(word) - 1, len(self._held)), longest, -1):
                if self._held.endswith(word[:n]):
                    longest = n
                    break
        return longest


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
