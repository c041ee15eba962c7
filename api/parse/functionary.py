"""Functionary 3.2: `>>>all` before the answer, `>>>NAME` before a call's arguments."""

import re
from dataclasses import dataclass

from api.parse.format import Format
from api.parse.jsontext import Unreadable
from api.parse.layout import Ask
from api.parse.output import Output
from api.parse.params import json_arguments
from api.parse.scan import Scanner, Steps, markers

MARK = ">>>"
NAME = re.compile(r"[\w.:/-]*")


@dataclass(frozen=True, slots=True)
class Functionary(Format):
    """The generation prompt ends in the first `>>>`."""

    def prompt_tail(self, prompt: str) -> str:
        """What follows the last mark."""
        return prompt.rpartition(MARK)[2] if MARK in prompt else ""

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
