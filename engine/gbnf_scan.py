"""Cuts GBNF text into tokens and reads what is inside them."""

import re
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from engine.gbnf_rules import MAX_POINT, OTHER_TOKEN, TOKEN, Element, Ranges
from engine.grammar import GrammarError

MAX_CLASS = 10_000  # ranges in one character class
_ESCAPED = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


class Kind(Enum):
    """Kinds of token; the values are what each begins with."""

    NAME = r"[a-zA-Z0-9-]+"
    DEFINE = r"::="
    LITERAL = r'"(?:[^"\\]|\\.)*+"'
    CLASS = r"\[(?:[^\]\\]|\\.)*+\]"
    TOKEN = r"!?<[^>]*>"
    REPEAT = r"[*+?]|\{[^}\n]*\}"
    ANY = r"\."
    OR = r"\|"
    OPEN = r"\("
    CLOSE = r"\)"
    NEWLINE = r"\r\n?|\n"
    EOF = r"\Z"


_KINDS = dict(enumerate(Kind, 1))  # by the number of their group
_TOKEN = re.compile("|".join(f"({kind.value})" for kind in Kind), re.DOTALL)
_BLANK = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_BLANK_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_BOUNDS = re.compile(r"\{\s*(\d{1,9})?\s*(,)?\s*(\d{1,9})?\s*\}")
_CHAR = re.compile(r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\(.)|([^\\])", re.DOTALL)
_UNCLOSED = {'"': "the literal is not closed", "[": "the character class is not closed", "{": "'{' is not closed"}


class Token(NamedTuple):
    """One token with the offset of its first character."""

    kind: Kind
    text: str
    offset: int


class Scanner:
    """Moves over the text; `peek` looks at the token under the cursor, `next` steps over it."""

    def __init__(self, text: str, limit: int) -> None:
        self._text = text
        self._at = 0
        self._token: Token | None = None
        if len(text) > limit:
            raise GrammarError(f"the grammar has {len(text)} characters, more than {limit}")

    def peek(self) -> Token:
        if self._token is None:
            match = _TOKEN.match(self._text, self._at)
            if match is None:
                raise self._strange()
            self._token = Token(_KINDS[match.lastindex or 0], match.group(), self._at)
        return self._token

    def next(self) -> Token:
        token = self.peek()
        self._at = token.offset + len(token.text)
        self._token = None
        return token

    def take(self, kind: Kind, wanted: str) -> Token:
        """The next token, which must be of `kind`."""
        token = self.peek()
        if token.kind is not kind:
            raise self.unexpected(token, wanted)
        return self.next()

    def skip(self, newlines: bool = False) -> None:
        """Step over blanks and comments, and over line ends where they mean nothing."""
        match = (_BLANK_LINES if newlines else _BLANK).match(self._text, self._at)
        if match is not None and match.end() > self._at:
            self._at, self._token = match.end(), None

    def error(self, problem: str, offset: int) -> GrammarError:
        """An error with line and column, both counted from 1."""
        line = self._text.count("\n", 0, offset) + 1
        column = offset - (self._text.rfind("\n", 0, offset) + 1) + 1
        return GrammarError(f"line {line}, column {column}: {problem}")

    def unexpected(self, token: Token, wanted: str) -> GrammarError:
        found = {Kind.EOF: "the end", Kind.NEWLINE: "the end of the line"}.get(token.kind, f"'{token.text[:20]}'")
        hint = "; a line can begin with '|' only within parentheses" if token.kind is Kind.OR else ""
        return self.error(f"expected {wanted}, found {found}{hint}", token.offset)

    def literal(self, token: Token) -> list[int]:
        """Code points of a literal."""
        return [point for point, _, _ in self._chars(token, 1)]

    def char_class(self, token: Token) -> Ranges:
        """Code point ranges of a character class, ascending and apart; what is left over when it is negated."""
        negated = token.text.startswith("[^")
        chars = self._chars(token, 2 if negated else 1)
        if not chars:
            raise self.error("the character class is empty", token.offset)
        ranges, at = [], 0
        while at < len(chars):
            first, _, offset = chars[at]
            last = first
            if at + 2 < len(chars) and chars[at + 1][1]:
                last = chars[at + 2][0]
                at += 2
            if last < first:
                raise self.error("the range's end is below its start", offset)
            ranges.append((first, last))
            at += 1
        if len(ranges) > MAX_CLASS:
            raise self.error(f"more than {MAX_CLASS} ranges in one class", token.offset)
        joined = _joined(ranges)
        return _complement(joined) if negated else joined

    def token_reference(self, token: Token, token_of: Callable[[str], int | None], n_tokens: int) -> Element:
        """The element for `<[id]>`, `<text>` and their negations."""
        negated, text = token.text.startswith("!"), token.text.removeprefix("!")
        by_id = re.fullmatch(r"<\[(\d{1,9})\]>", text)
        found = int(by_id[1]) if by_id else token_of(text)
        if found is None:
            raise self.error(f"'{text[:40]}' is not one token of this model", token.offset)
        if found >= n_tokens:
            raise self.error(f"token {found} is outside the vocabulary of {n_tokens}", token.offset)
        return (OTHER_TOKEN if negated else TOKEN), found

    def bounds(self, token: Token) -> tuple[int, int | None]:
        """How often a repetition repeats: least and most, None for any number."""
        if token.text in "*+?":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[token.text]
        match = _BOUNDS.fullmatch(token.text)
        if match is None or not (match[1] or match[3]):
            raise self.error("expected {m}, {m,}, {,n} or {m,n} with whole numbers", token.offset)
        least = int(match[1] or 0)
        most = None if match[2] and not match[3] else int(match[3] or match[1] or 0)
        if most is not None and most < least:
            raise self.error(f"at least {least} but at most {most} repetitions", token.offset)
        return least, most

    def _chars(self, token: Token, skipped: int) -> list[tuple[int, bool, int]]:
        """Code points between the quotes: each with whether it is a bare '-', and its offset."""
        chars, at, end = [], skipped, len(token.text) - 1
        while at < end:
            match = _CHAR.match(token.text, at, end)
            if match is None:
                raise self.error("the backslash escapes nothing", token.offset + at)
            chars.append((self._point(match, token.offset + at), match[5] == "-", token.offset + at))
            at = match.end()
        return chars

    def _point(self, match: re.Match[str], offset: int) -> int:
        if match[5]:
            return ord(match[5])
        if match[4]:
            letter = match[4]
            if letter in _HEX_DIGITS:
                raise self.error(f"'\\{letter}' needs {_HEX_DIGITS[letter]} hexadecimal digits", offset)
            if letter not in _ESCAPED:
                raise self.error(f"unknown escape '\\{letter}'", offset)
            return ord(_ESCAPED[letter])
        point = int(match[1] or match[2] or match[3], 16)
        if point > MAX_POINT:
            raise self.error(f"{match[0]} is beyond Unicode", offset)
        return point

    def _strange(self) -> GrammarError:
        char = self._text[self._at]
        problem = _UNCLOSED.get(char, f"unexpected {char!r}")
        if char == "'":
            problem += "; literals stand in double quotes"
        return self.error(problem, self._at)


def _joined(ranges: Ranges) -> Ranges:
    joined: Ranges = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return joined


def _complement(ranges: Ranges) -> Ranges:
    gaps, below = [], 0
    for first, last in ranges:
        if first > below:
            gaps.append((below, first - 1))
        below = last + 1
    if below <= MAX_POINT:
        gaps.append((below, MAX_POINT))
    return gaps
