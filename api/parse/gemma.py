"""Gemma 4: calls `call:NAME{key:<|"|>text<|"|>,n:1,o:{…},l:[…]}`, and thinking in channels."""

import re
from dataclasses import dataclass

from api.parse.jsontext import NUMBER, WORDS, Unreadable, containers, escape
from api.parse.layout import Ask, Pair
from api.parse.output import Output
from api.parse.scan import Scanner, Sink, Steps, markers

QUOTE = '<|"|>'
KEY = re.compile(r"[^:{}\[\],]*")
BARE = re.compile(r"[^,}\]<]*")
NAME = re.compile(r"[\w.:/-]*")


@dataclass(frozen=True, slots=True)
class GemmaCalls:
    """One call between a pair of marks, its arguments in Gemma's own notation."""

    call: Pair
    parallel: bool = True

    def openers(self, ask: Ask) -> tuple[str, ...]:
        """The call's mark."""
        return (self.call.start,)

    def read(self, s: Scanner, out: Output, opener: str) -> Steps[None]:
        """Read one call and its closing mark."""
        if not (yield from s.skip("call:")):
            raise Unreadable("no call")
        name = yield from s.run(NAME)
        yield from s.space()
        if (yield from s.char()) != "{":
            raise Unreadable("no arguments")
        sink = out.call(name)
        s.recorded()
        yield from containers(s, sink.write, _key, _scalar)
        yield from s.skip(self.call.end)
        s.cut_inside(self.call.end)


def _key(s: Scanner, sink: Sink) -> Steps[None]:
    yield from s.space()
    if (yield from s.literal(QUOTE)):
        pieces: list[str] = []
        yield from s.until(markers(QUOTE), pieces.append)
        key = "".join(pieces)
    else:
        key = (yield from s.run(KEY)).strip("\"' \n")
    yield from s.space()
    if (yield from s.literal(":")):
        sink(f'"{escape(key)}":')
    elif not s.exhausted:
        raise Unreadable("no key")


def _scalar(s: Scanner, sink: Sink) -> Steps[None]:
    """Read quoted text, a number or a word; other bare text counts as a string."""
    if (yield from s.literal(QUOTE)):
        sink('"')
        if (yield from s.until(markers(QUOTE), lambda text: sink(escape(text)))):
            sink('"')
        return
    text = (yield from s.run(BARE)).strip()
    if s.exhausted:
        return
    if NUMBER.fullmatch(text) or text in WORDS:
        sink(WORDS.get(text, text))
    elif text:
        sink(f'"{escape(text)}"')
    else:
        raise Unreadable("no value")
