"""Turns a JSON schema's regular expressions (ECMA 262) into the dialect of llguidance (Rust's regex crate)."""

import re

from engine.grammar import GrammarError

MAX_LEAST = 10_000  # characters that a pattern's counted repetitions force at least
MAX_MOST = 100_000  # and at most
MAX_DEPTH = 100  # groups within groups
MAX_LENGTH = 20_000  # characters of a pattern

_QUANTIFIER = re.compile(r"([*+?]|\{(\d{1,9})(?:(,)(\d{1,9})?)?\})\??")
_LOOK_AROUND = ("(?=", "(?!", "(?<=", "(?<!")
_NAMED_GROUP = re.compile(r"\(\?P?<[A-Za-z_$][\w$]*>")
_FLAGS = re.compile(r"\(\?[imsu-]*(?:\)|:)")
_ESCAPE = re.compile(
    r"\\(?:u\{([0-9a-fA-F]{1,6})\}|u([dD][89abAB]..)\\u([dD][c-fC-F]..)|u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})"
    r"|c([A-Za-z])|(0)(?!\d)|([pP]\{[\w=]{1,60}\})|(.))",
    re.DOTALL,
)
_CLASSES, _CONTROLS = "dDwWsS", "tnrfv"  # letters that mean the same to both after a backslash


class PatternError(GrammarError):
    """A pattern cannot be enforced; the message says why, without the place."""


def rust_pattern(source: str) -> str:
    """`source` in Rust's notation. Raises PatternError for what no finite automaton can check, and for excess."""
    if len(source) > MAX_LENGTH:
        raise PatternError(f"the pattern has more than {MAX_LENGTH} characters")
    return _Translator(source).run()


class _Translator:
    """One pass over the pattern; sizes (least, most) of the open groups are kept to bound repetitions."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._out: list[str] = []
        self._open: list[tuple[int, int]] = []
        self._size = (0, 0)  # of the innermost open group so far; alternatives add up, which is an upper bound
        self._last = (0, 0)  # of the last atom

    def run(self) -> str:
        while self._at < len(self._source):
            self._step(self._source[self._at])
        if self._open:
            raise PatternError("a group is not closed")
        return "".join(self._out)

    def _step(self, char: str) -> None:
        quantifier = _QUANTIFIER.match(self._source, self._at) if char in "*+?{" else None
        if quantifier is not None:
            self._repeat(quantifier)
        elif char == "\\":
            self._emit(self._escape(in_class=False))
        elif char == "[":
            self._emit(self._char_class())
        elif char == "(":
            self._open_group()
        elif char == ")":
            self._close_group()
        elif char in "^$|":
            self._take(1)
            self._last = (0, 0)
        else:
            self._at += 1
            self._emit("\\" + char if char in "{}]" else char)

    def _take(self, n: int) -> None:
        self._out.append(self._source[self._at : self._at + n])
        self._at += n

    def _emit(self, atom: str) -> None:
        self._out.append(atom)
        self._add(1, 1)

    def _add(self, least: int, most: int) -> None:
        self._last = least, most
        self._size = self._size[0] + least, self._size[1] + most
        if self._size[0] > MAX_LEAST or self._size[1] > MAX_MOST:
            raise PatternError(f"the repetitions come to more than {MAX_LEAST} to {MAX_MOST} characters")

    def _repeat(self, match: re.Match[str]) -> None:
        (least, most), (all_least, all_most) = self._last, self._size
        if match[2]:
            low = int(match[2])
            high = low if not match[3] else int(match[4]) if match[4] else max(low, 1)
            if match[4] and high < low:
                raise PatternError(f"'{match[1]}' repeats at most less often than at least")
        else:
            low, high = (1, 1) if match[1] == "+" else (0, 1)
        self._size = all_least - least, all_most - most
        self._add(least * low, most * high)
        self._take(len(match[0]))

    def _open_group(self) -> None:
        rest = self._source[self._at : self._at + 80]
        if rest.startswith(_LOOK_AROUND):
            raise PatternError("look-around is not supported")
        if len(self._open) >= MAX_DEPTH:
            raise PatternError(f"groups are nested more than {MAX_DEPTH} deep")
        named, flags = _NAMED_GROUP.match(rest), _FLAGS.match(rest)
        if rest.startswith("(?") and not (named or flags):
            raise PatternError(f"'{rest[:4]}' is not supported")
        if named:
            self._out.append("(")
            self._at += len(named[0])
        else:
            self._take(len(flags[0]) if flags else 1)
        if not (flags and flags[0].endswith(")")):
            self._open.append(self._size)
            self._size = (0, 0)

    def _close_group(self) -> None:
        if not self._open:
            raise PatternError("')' without '('")
        (least, most), self._size = self._size, self._open.pop()
        self._take(1)
        self._add(least, most)

    def _escape(self, in_class: bool) -> str:
        match = _ESCAPE.match(self._source, self._at)
        if match is None:
            raise PatternError("the pattern ends in a backslash")
        self._at = match.end()
        if match[7]:
            return r"\x00"
        if match[6]:
            return f"\\x{ord(match[6]) % 32:02x}"
        if match[8]:
            return "\\" + match[8]
        if match[9]:
            return self._letter(match[9], in_class)
        if match[2]:
            high, low = int(match[2], 16), int(match[3], 16)
            return f"\\x{{{0x10000 + ((high & 0x3FF) << 10) + (low & 0x3FF):x}}}"
        return f"\\x{{{match[1] or match[4] or match[5]}}}"

    def _letter(self, letter: str, in_class: bool) -> str:
        if letter in _CLASSES or letter in _CONTROLS:
            return "\\" + letter
        if letter == "b" and in_class:
            return r"\x08"
        if letter in "bB":
            raise PatternError("word boundaries are not supported")
        if letter.isdigit() or letter == "k":
            raise PatternError("back references are not supported")
        return re.escape(letter)

    def _char_class(self) -> str:
        """A class; ECMA knows no set operations in it, so their signs stand for themselves."""
        out = ["[^" if self._source.startswith("[^", self._at) else "["]
        self._at += len(out[0])
        while self._at < len(self._source):
            char = self._source[self._at]
            if char == "]":
                self._at += 1
                return self._closed_class(out)
            if char == "\\":
                out.append(self._escape(in_class=True))
            else:
                self._at += 1
                out.append("\\" + char if char in "[&~" else char)
        raise PatternError("a character class is not closed")

    def _closed_class(self, out: list[str]) -> str:
        if len(out) == 1:
            return r"[\s\S]" if out[0] == "[^" else r"[^\s\S]"
        return "".join(out) + "]"
