"""Calls written as a list of Python calls: `[f(a="x", b=1), g()]` (LFM2)."""

import re
from dataclasses import dataclass

from api.parse.arguments import Arguments
from api.parse.jsontext import Unreadable, json_value
from api.parse.layout import Ask, Pair
from api.parse.output import CallSink, Output
from api.parse.scan import Scanner, Steps

NAME = re.compile(r"[\w.-]*")


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """A list of calls with keyword arguments; values are Python or JSON literals."""

    section: Pair
    parallel: bool = True

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
