"""Gemma 4: calls `call:NAME{key:<|"|>text<|"|>,n:1,o:{…},l:[…]}`, and thinking in channels."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api.parse.jsontext import NUMBER, WORDS, Unreadable, containers, escape
from api.parse.lark import Grammar, sequence
from api.parse.layout import Ask, Pair, Wake, Wanted
from api.parse.output import Output
from api.parse.scan import Scanner, Sink, Steps, markers
from api.parse.shapes import Shapes, object_form, repeated

COMMA = '"," WS?'
QUOTE = '<|"|>'
KEY = re.compile(r"[^:{}\[\],]*")
BARE = re.compile(r"[^,}\]<]*")
NAME = re.compile(r"[\w.:/-]*")


@dataclass(frozen=True, slots=True)
class GemmaCalls:
    """One call between a pair of marks, its arguments in Gemma's own notation."""

    call: Pair
    parallel: bool = True

    @property
    def marks(self) -> tuple[str, ...]:
        """The marks around calls."""
        return (*self.call, QUOTE)

    def openers(self, ask: Ask) -> tuple[str, ...]:
        """The call's mark."""
        return (self.call.start,)

    def rule(self, g: Grammar, wanted: Wanted) -> str:
        """The grammar of at least one call."""
        calls = [
            f"{g.literal(name)} {GemmaShapes(g, form).value(object_form(form))}" for name, form in wanted.tools.items()
        ]
        call = sequence(g.mark(self.call.start), f'"call:" {g.either(calls, "call")}', g.mark(self.call.end))
        return f"{call} (WS? {call})*" if wanted.many and self.parallel else call

    def wakes(self, wanted: Wanted) -> list[Wake]:
        """The call's mark."""
        return [Wake("word", self.call.start)]

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


class GemmaShapes(Shapes):
    """Gemma's notation: bare keys, strings between special quotes, the rest like JSON."""

    def text(self, form: Mapping[str, Any], end: str) -> str:
        """A quoted string."""
        return f"{self.g.literal(QUOTE)} {super().text(form, QUOTE)}"

    def spelled(self, value: Any) -> str:
        """A given value."""
        return f"{QUOTE}{value}{QUOTE}" if isinstance(value, str) else json.dumps(value)

    def object(self, form: Mapping[str, Any], known: Mapping[str, Any], needed: list[str], end: str) -> str:
        """Members in the schema's order."""
        if not known and form.get("additionalProperties", "properties" not in form):
            member = f'/[^:{{}}\\[\\],"<>\\s]{{1,64}}/ ":" WS? {self.value({})}'
            return f'"{{" ({member} ("," WS? {member})*)? "}}"'
        members = [
            (f"{self.g.literal(f'{key}:')} WS? {self.value(known.get(key))}", key in needed)
            for key in dict.fromkeys([*known, *needed])
        ]
        return f'"{{" {self.g.members(members, COMMA)} "}}"'

    def array(self, form: Mapping[str, Any], end: str) -> str:
        """Items between brackets."""
        return f'"[" {repeated(self.value(form.get("items")), COMMA, form)} "]"'


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
