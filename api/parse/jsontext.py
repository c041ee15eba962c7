"""JSON text that arrives in pieces: read it, pass it on, and mend what models get wrong."""

import ast
import json
import re
from collections.abc import Callable
from typing import Any

from api.parse.scan import SPACE, Scanner, Sink, Steps

NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
WORD = re.compile(r"[-+.0-9A-Za-z_]*")
WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
PLAIN = re.compile(r'[^"\'\\\x00-\x1f]+')
HEX = re.compile(r"[0-9a-fA-F]{4}")
Reader = Callable[[Scanner, Sink], Steps[None]]
ESCAPES = frozenset('"\\/bfnrt')
QUOTES = "\"'"


class Unreadable(Exception):
    """The text is not what the format promises; what was read of it goes to the content."""


def escape(text: str) -> str:
    """`text` as the inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def json_value(s: Scanner, sink: Sink) -> Steps[None]:
    """Pass one JSON value to `sink`, piece by piece, as valid JSON.

    Single quotes, Python's literals, bare control characters and wrong escapes in strings are mended.
    Raises `Unreadable` where the text cannot be JSON. Returns early at the end of all text.
    """
    yield from s.space()
    yield from containers(s, sink, _key, _scalar)


def containers(s: Scanner, sink: Sink, key: Reader, scalar: Reader) -> Steps[None]:
    """Pass on a value of JSON's brackets, commas and white space, whose keys and scalars the two readers read."""
    closers: list[str] = []
    while True:
        yield from _spaces(s, sink)
        char = yield from s.char()
        if char in ("{", "["):
            sink(s.take(s.pos + 1))
            closers.append("}" if char == "{" else "]")
            if not (yield from _close_empty(s, sink, closers)):
                if closers[-1] == "}":
                    yield from key(s, sink)
                continue
        elif char:
            yield from scalar(s, sink)
        if not (yield from _after_value(s, sink, closers, key)):
            return


def _close_empty(s: Scanner, sink: Sink, closers: list[str]) -> Steps[bool]:
    """Read the closer of a container that has just opened, if it is empty."""
    yield from _spaces(s, sink)
    if (yield from s.char()) != closers[-1]:
        return False
    sink(s.take(s.pos + 1))
    closers.pop()
    return True


def _after_value(s: Scanner, sink: Sink, closers: list[str], key: Reader) -> Steps[bool]:
    """Read closers and a comma, with the key after it in an object; False when the outermost value is complete."""
    while closers:
        yield from _spaces(s, sink)
        char = yield from s.char()
        if not char:
            return False
        if char not in (",", closers[-1]):
            raise Unreadable(f"unexpected {char!r} in JSON")
        sink(s.take(s.pos + 1))
        if char == ",":
            if closers[-1] == "}":
                yield from key(s, sink)
            return True
        closers.pop()
    return False


def _key(s: Scanner, sink: Sink) -> Steps[None]:
    yield from _spaces(s, sink)
    char = yield from s.char()
    if not char:
        return
    if char not in QUOTES:
        raise Unreadable(f"unexpected {char!r} where a JSON key should be")
    yield from _string(s, sink)
    yield from _spaces(s, sink)
    char = yield from s.char()
    if char and char != ":":
        raise Unreadable(f"unexpected {char!r} after a JSON key")
    sink(s.take(s.pos + len(char)))


def _scalar(s: Scanner, sink: Sink) -> Steps[None]:
    if (yield from s.char()) in QUOTES:
        yield from _string(s, sink)
    else:
        sink((yield from _word(s)))


def _word(s: Scanner) -> Steps[str]:
    """Read a number or a literal; cut short by the end of all text it counts as nothing."""
    while True:
        found = WORD.match(s.text, s.pos)
        end = found.end() if found else s.pos
        if end < len(s.text) or not (yield from s.more()):
            break
    word = s.text[s.pos : end]
    mended = WORDS.get(word) or (word if NUMBER.fullmatch(word) else "")
    if not mended and not (s.ended and end == len(s.text)):
        raise Unreadable(f"{word!r} is not a JSON value")
    s.take(end)
    return mended


def string_value(s: Scanner) -> Steps[str]:
    """Read a quoted string; returns what it says. Raises `Unreadable` for anything else, also a string cut short."""
    pieces: list[str] = []
    if (yield from s.char()) not in tuple(QUOTES):
        raise Unreadable("no string")
    if not (yield from string_inside(s, pieces.append)):
        raise Unreadable("the text ends inside a string")
    text: str = json.loads(f'"{"".join(pieces)}"')
    return text.encode("utf-8", "replace").decode()


def _spaces(s: Scanner, sink: Sink) -> Steps[None]:
    text = yield from s.space()
    if text:
        sink(text)


def _string(s: Scanner, sink: Sink) -> Steps[None]:
    """Pass a quoted string on, in double quotes."""
    sink('"')
    if (yield from string_inside(s, sink)):
        sink('"')


def string_inside(s: Scanner, sink: Sink) -> Steps[bool]:
    """Read a quoted string, passing on its inside as valid JSON string text; False when the text ends inside."""
    quote = s.take(s.pos + 1)
    while True:
        char = yield from s.char()
        if not char:
            return False
        if char == quote:
            s.take(s.pos + 1)
            return True
        if char == "\\":
            yield from _escape(s, sink)
        elif found := PLAIN.match(s.text, s.pos):
            sink(s.take(found.end()))
        else:
            sink(escape(s.take(s.pos + 1)))


def _escape(s: Scanner, sink: Sink) -> Steps[None]:
    while len(s.text) - s.pos < 2:
        if not (yield from s.more()):
            s.take(len(s.text))
            return
    char = s.text[s.pos + 1]
    if char in ESCAPES:
        sink(s.take(s.pos + 2))
    elif char == "u":
        yield from _unicode(s, sink)
    elif char == "'":
        s.take(s.pos + 2)
        sink("'")
    else:
        s.take(s.pos + 1)
        sink("\\\\")


def _unicode(s: Scanner, sink: Sink) -> Steps[None]:
    while len(s.text) - s.pos < 6:
        if not (yield from s.more()):
            break
    if HEX.fullmatch(s.text, s.pos + 2, min(s.pos + 6, len(s.text))):
        sink(s.take(s.pos + 6))
    elif len(s.text) - s.pos < 6:
        s.take(len(s.text))  # cut inside the escape
    else:
        s.take(s.pos + 1)
        sink("\\\\")


def mended(text: str) -> str | None:
    """`text` as valid JSON: itself, or its Python literal rewritten; None if it is neither."""
    text = text.strip(SPACE)
    if is_json(text):
        return text
    s = Scanner()
    s.append(text)
    s.ended = True
    out: list[str] = []
    try:
        for _ in json_value(s, out.append):
            break
    except Unreadable:
        return _python_literal(text)
    joined = "".join(out)
    return joined if s.pos == len(s.text) and is_json(joined) else None


def is_json(text: str) -> bool:
    """Whether `text` is one valid JSON value."""
    try:
        json.loads(text, parse_constant=_refuse)
        return True
    except (ValueError, RecursionError):
        return False


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _python_literal(text: str) -> str | None:
    if len(text) > 10_000:
        return None
    try:
        value: Any = ast.literal_eval(text)
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
