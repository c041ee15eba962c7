"""Calls written as a list of Python calls: `[f(a="x", b=1), g()]` (LFM2)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api.parse import schema
from api.parse.arguments import Arguments
from api.parse.jsontext import Unreadable, json_value
from api.parse.lark import Grammar, sequence
from api.parse.layout import Ask, Pair, Wake, Wanted
from api.parse.output import CallSink, Output
from api.parse.scan import Scanner, Steps

COMMA = '"," WS?'
NAME = re.compile(r"[\w.-]*")


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """A list of calls with keyword arguments; values are Python or JSON literals."""

    section: Pair
    parallel: bool = True

    @property
    def marks(self) -> tuple[str, ...]:
        """The marks around calls."""
        return self.section

    def openers(self, ask: Ask) -> tuple[str, ...]:
        """The section's mark."""
        return (self.section.start,)

    def read(self, s: Scanner, out: Output, opener: str) -> Steps[None]:
        """Read the list and the closing mark."""
        if not (yield from s.skip("[")):
            raise Unreadable("no list of calls")
        while True:
            yield from self.call(s, out)
            if not (yield from s.skip(",")):
                break
            s.record(",")
        yield from s.skip("]")
        yield from s.skip(self.section.end)
        s.cut_inside(self.section.end)

    def rule(self, g: Grammar, wanted: Wanted) -> str:
        """The grammar of the whole list, with JSON's literals for values."""
        call = g.either((self._call_rule(g, name, form) for name, form in wanted.tools.items()), "call")
        more = f'("," WS? {call})*' if wanted.many and self.parallel else ""
        return sequence(g.mark(self.section.start), f'"[" {call} {more} "]"', g.mark(self.section.end))

    def _call_rule(self, g: Grammar, name: str, form: Mapping[str, Any]) -> str:
        needed = schema.required(form)
        known = dict.fromkeys(needed, True) | schema.properties(form, form)
        members = [
            (f'{g.literal(key)} "=" {g.json(schema.part(part, form))}', key in needed) for key, part in known.items()
        ]
        return g.rule(f'{g.literal(name)} "(" {g.members(members, COMMA)} ")"', name)

    def wakes(self, wanted: Wanted) -> list[Wake]:
        """The section's mark."""
        return [Wake("word", self.section.start)]

    def call(self, s: Scanner, out: Output) -> Steps[None]:
        """Read one call."""
        yield from s.space()
        name = yield from s.run(NAME)
        if not (yield from s.skip("(")):
            raise Unreadable("no call")
        sink = out.call(name)
        s.recorded()
        yield from self.arguments(s, sink)

    def arguments(self, s: Scanner, sink: CallSink) -> Steps[None]:
        """Read keyword arguments up to the closing bracket."""
        built = Arguments(sink)
        while not s.exhausted:
            yield from s.space()
            if (yield from s.literal(")")):
                built.close()
                return
            yield from s.skip(",")
            yield from s.space()
            key = yield from s.run(NAME)
            if not (yield from s.skip("=")):
                if s.exhausted:
                    return
                raise Unreadable("no keyword argument")
            built.key(key)
            yield from json_value(s, built.raw)
