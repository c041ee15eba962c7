"""Calls whose name stands in marks: `<function=NAME>{…}</function>`, `<invoke name="N"><parameter name="K">V…`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api.parse.jsontext import Unreadable
from api.parse.lark import ATTRIBUTES, IDENTIFIER, Grammar, sequence
from api.parse.layout import NO_MARKS, Ask, Pair, Wake, Wanted
from api.parse.output import CallSink, Output
from api.parse.params import JsonArgs, TaggedArgs, json_arguments, tagged_arguments
from api.parse.params_grammar import arguments_rule
from api.parse.scan import Scanner, Steps, markers

NAME = re.compile(r"[^\s<>\[\](){}\"'=,|\uff5c]*")
NUMBERED = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?")


@dataclass(frozen=True, slots=True)
class CallId:
    """Where a call's id stands: "before" the name, "between" name and arguments, or "after" them."""

    position: str
    marks: Pair


@dataclass(frozen=True, slots=True)
class TagCalls:
    """Calls in the order: section, call, name, id, arguments, each between its marks, all white space optional."""

    args: JsonArgs | TaggedArgs
    section: Pair = NO_MARKS
    call: Pair = NO_MARKS
    name: Pair = NO_MARKS
    attributes: str = ""  # ends the name's tag, when more may stand in it after the name
    close: str = ""  # after the arguments
    id: CallId | None = None
    id_in_name: bool = False  # names look like `functions.NAME:INDEX`, which is the id too
    bare_name: bool = False  # the call's mark may be missing before the name's
    bare_call: bool = False  # the section's marks, and the call's closing one, may be missing
    parallel: bool = True
    separator: str = ""  # between calls in one section that have no marks of their own
    id_pattern: str = IDENTIFIER

    @property
    def marks(self) -> tuple[str, ...]:
        """Every mark of the syntax."""
        id = self.id.marks if self.id else NO_MARKS
        return (*self.section, *self.call, *self.name, self.attributes, self.close, *id, *self.args.every_mark)

    def openers(self, ask: Ask) -> tuple[str, ...]:
        """The opening marks of section and call; the name's where those may be missing."""
        marks = [self.section.start, self.call.start]
        if self.bare_name:
            marks += [f"{self.name.start}{name}{self.name.end}" for name in ask.tools]
        if not any(marks):
            marks = [self.name.start]
        return tuple(mark for mark in marks if mark)

    def read(self, s: Scanner, out: Output, opener: str) -> Steps[None]:
        """Read calls and the marks between and after them."""
        begin = self.call.start or self.name.start
        closers = (self.section.end,) if opener == self.section.start else (self.section.end, self.call.end)
        between = (begin, self.section.end, self.call.end, self.separator.strip())
        n_read, mark = 0, opener
        while True:
            if not mark or mark in closers:
                if not n_read:
                    raise Unreadable("no call")
                s.cut_inside(*between)
                return
            if mark == begin or (mark not in between and (mark != self.section.start or not begin)):
                if n_read:
                    s.record(mark)
                yield from self._call(s, out, mark)
                n_read += 1
            yield from s.space()
            mark = (yield from s.literal(*between)) or ""

    def rule(self, g: Grammar, wanted: Wanted) -> str:
        """The grammar of at least one call."""
        calls = [self._call_rule(g, name, form) for name, form in wanted.tools.items()]
        call = sequence(g.mark(self.call.start), g.either(calls, "call"))
        if self.bare_name:
            call = f"({g.mark(self.call.start)} WS?)? {g.either(calls, 'call')}"
        if wanted.many and self.parallel:
            more = sequence(g.mark(self.separator), g.mark(self.call.start), g.either(calls, "call"))
            call = f"{call} (WS? {more})*"
        marks = [f"({mark})?" if self.bare_call else mark for mark in map(g.mark, self.section)]
        return sequence(marks[0], call, marks[1])

    def _call_rule(self, g: Grammar, name: str, form: Mapping[str, Any]) -> str:
        """One function's call after the call's opening mark."""
        tag = g.literal(name)
        if self.id_in_name:
            tag = f"{g.literal(f'functions.{name}:')} /[0-9]{{1,4}}/"
        if self.attributes:
            tag += f" {g.literal(self.name.end)} ({ATTRIBUTES})? {g.literal(self.attributes)}"
        elif self.name.end:
            tag = sequence(tag, g.mark(self.name.end))
        tag = f"{g.mark(self.name.start)} {tag}"
        id = f"{g.mark(self.id.marks.start)} {self.id_pattern} {g.mark(self.id.marks.end)}" if self.id else ""
        position = self.id.position if self.id else ""
        parts = [id if position == "before" else "", tag, id if position == "between" else ""]
        parts += [arguments_rule(self.args, g, name, form), id if position == "after" else ""]
        end = g.mark(self.call.end)
        return g.rule(sequence(*parts, g.mark(self.close), f"({end})?" if self.bare_call else end), name)

    def wakes(self, wanted: Wanted) -> list[Wake]:
        """The first opening mark, and the names' where it may be missing."""
        openers = self.openers(Ask(wanted.tools))
        first = self.section.start or self.call.start or self.name.start
        return [Wake("word", opener) for opener in openers if opener == first or self.bare_name or self.bare_call]

    def _call(self, s: Scanner, out: Output, mark: str) -> Steps[None]:
        """Read one call after `mark`: the section's, the call's or the name's."""
        id, name = "", ""
        if self.id and self.id.position == "before":
            id = yield from self._read_id(s, self.id.marks)
        if self.bare_name and mark.startswith(self.name.start) and mark.endswith(self.name.end) and self.name.end:
            name = mark.removeprefix(self.name.start).removesuffix(self.name.end)
        else:
            name = yield from self._read_name(s, mark)
        if self.id_in_name and (found := NUMBERED.fullmatch(name)):
            id, name = name, found[1]
        if self.id and self.id.position == "between":
            id = yield from self._read_id(s, self.id.marks)
        late = self.id is not None and self.id.position == "after"
        sink = out.call(name, id, held=late)
        s.recorded()
        yield from self._arguments(s, sink)
        if self.id and late:
            id = yield from self._read_id(s, self.id.marks)
        sink.release(id)
        yield from s.skip(self.close)

    def _read_name(self, s: Scanner, mark: str) -> Steps[str]:
        yield from s.space()
        if self.name.start and mark != self.name.start:
            yield from _expect(s, self.name.start)
        name = yield from s.run(NAME)
        if s.exhausted:
            raise Unreadable("the text ends inside a name")
        yield from s.space()
        if self.name.end:
            yield from _expect(s, self.name.end)
        if self.attributes and (yield from s.until(markers(self.attributes), _ignore)) is None:
            raise Unreadable("the text ends inside a tag")
        return name

    def _read_id(self, s: Scanner, marks: Pair) -> Steps[str]:
        if marks.start and not (yield from s.skip(marks.start)):
            return ""
        yield from s.space()
        id = yield from s.run(NAME)
        yield from s.skip(marks.end)
        return id

    def _arguments(self, s: Scanner, sink: CallSink) -> Steps[None]:
        args = self.args
        yield from s.skip(args.marks.start)
        if isinstance(args, JsonArgs):
            yield from json_arguments(s, sink)
        else:
            ends = (args.marks.end, self.close, self.call.end, self.section.end)
            yield from tagged_arguments(args, s, sink, tuple(end.strip() for end in ends))
        yield from s.skip(args.marks.end)


def _expect(s: Scanner, text: str) -> Steps[None]:
    if not (yield from s.skip(text)):
        raise Unreadable(f"no {text!r}")


def _ignore(text: str) -> None:
    pass
