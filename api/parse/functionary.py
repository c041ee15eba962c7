"""Functionary 3.2: `>>>all` before the answer, `>>>NAME` before a call's arguments."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api.parse.format import Format
from api.parse.jsontext import Unreadable
from api.parse.lark import Grammar
from api.parse.layout import Ask, Start, Wake, Wanted
from api.parse.output import Output
from api.parse.params import json_arguments
from api.parse.scan import Scanner, Steps, markers

MARK = ">>>"
NEWLINE = "\n"
NAME = re.compile(r"[\w.:/-]*")


@dataclass(frozen=True, slots=True)
class Functionary(Format):
    """The generation prompt ends in the first `>>>`."""

    def prompt_tail(self, prompt: str) -> str:
        """What follows the last mark."""
        return prompt.rpartition(MARK)[2] if MARK in prompt else ""

    def calls_rule(self, g: Grammar, wanted: Wanted, start: Start) -> str:
        """The functions' names and arguments, the mark between calls."""
        calls = [f"{g.literal(name)} {g.literal(NEWLINE)} {g.json(form)}" for name, form in wanted.tools.items()]
        call = g.either(calls, "call")
        return f"{call} (WS? {g.literal(MARK)} {call})*" if wanted.many else call

    def woken_rule(self, g: Grammar, wanted: Wanted) -> str:
        """The same, from the mark on or from the first name, whose mark stands in the prompt."""
        return f"({g.literal(MARK)})? {self.calls_rule(g, wanted, Start())}"

    def wakes(self, wanted: Wanted) -> list[Wake]:
        """The name of a tool where a recipient stands."""
        return [Wake("pattern", rf"(?:^|{MARK})(?:{'|'.join(map(re.escape, wanted.tools))})\n")]

    def answer_rule(self, g: Grammar, form: Mapping[str, Any], start: Start) -> str:
        """JSON for everybody."""
        return f"{g.literal('all' + NEWLINE)} {g.json(form)}"

    def read(self, s: Scanner, out: Output, ask: Ask) -> Steps[None]:
        """Read recipient after recipient."""
        out.content.trim = ask.calls
        mark: str | None = ""
        while mark is not None:
            s.record(mark)
            yield from self.recipient(s, out, ask)
            mark = yield from s.until(markers(MARK), out.content.write)
        out.content.flush()

    def recipient(self, s: Scanner, out: Output, ask: Ask) -> Steps[None]:
        """Read a recipient's name and, of a tool, its arguments."""
        name = yield from s.run(NAME)
        try:
            if not (yield from s.literal("\n")):
                raise Unreadable("no recipient")
            if name == "all":
                s.recorded()
            elif ask.calls:
                sink = out.call(name)
                s.recorded()
                yield from json_arguments(s, sink)
            else:
                raise Unreadable("no calls are wanted")
        except Unreadable:
            text = s.recorded()
            if not (s.cut and s.exhausted):
                out.content.write(text)
