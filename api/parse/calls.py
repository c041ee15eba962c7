"""What every call syntax offers, and the one whose whole call is JSON."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from api.parse.jsontext import Unreadable, json_value, mended, string_value
from api.parse.lark import IDENTIFIER, Grammar, sequence
from api.parse.layout import NO_MARKS, Ask, Pair, Wake, Wanted
from api.parse.output import CallSink, Output
from api.parse.scan import Scanner, Steps


class Calls(Protocol):
    """A way to write tool calls."""

    @property
    def marks(self) -> tuple[str, ...]:
        """The texts that must be visible in the answer, even if they are control tokens; some may be empty."""

    def openers(self, ask: Ask) -> tuple[str, ...]:
        """The texts that begin a call, or a section of calls."""

    def read(self, s: Scanner, out: Output, opener: str) -> Steps[None]:
        """Read what follows `opener`, as many calls as there are.

        What is read is recorded until a call begins, so that it can go to the content: raises `Unreadable` then.
        """

    def rule(self, g: Grammar, wanted: Wanted) -> str:
        """The grammar of at least one call."""

    def wakes(self, wanted: Wanted) -> list[Wake]:
        """What tells that the grammar has begun, when the model may also answer in text."""


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """Calls that are JSON objects, such as `<tool_call>{"name": …, "arguments": …}</tool_call>`.

    `name`, `args` and `id` are paths of keys, joined by dots. With `name_is_key` an object is `{NAME: arguments}`.
    """

    section: Pair = NO_MARKS
    call: Pair = NO_MARKS
    array: bool = False
    name: str = "name"
    args: str = "arguments"
    id: str = ""
    order: tuple[str, ...] = ()  # of the paths, as the template writes them
    name_is_key: bool = False
    parallel: bool = True
    separator: str = ""  # between calls that are neither in an array nor marked
    id_pattern: str = IDENTIFIER

    @property
    def marks(self) -> tuple[str, ...]:
        """The marks of section and call."""
        return (*self.section, *self.call)

    @property
    def marked(self) -> bool:
        """Whether calls stand between marks, so that other JSON is not taken for a call."""
        return bool(self.section.start or self.call.start)

    @property
    def late_id(self) -> bool:
        """Whether a call's id comes after its arguments."""
        return self.id in self.order and self.order.index(self.id) > self.order.index(self.args)

    def openers(self, ask: Ask) -> tuple[str, ...]:
        """The section's and the call's opening marks; without any the first character of the JSON."""
        marks = tuple(mark for mark in (self.section.start, self.call.start) if mark)
        return marks or (("[", "{") if self.array else ("{",))

    def read(self, s: Scanner, out: Output, opener: str) -> Steps[None]:
        """Read the objects after `opener` and the marks between and after them."""
        if not self.marked and not out.content.at_line_start:
            raise Unreadable("JSON inside of a line")
        closers = (self.section.end,) if opener == self.section.start else (self.section.end, self.call.end)
        between = ("{", "[", "]", ",", ";", self.call.start, self.section.end, self.call.end)
        n_read, loose = 0, False
        mark = opener if not self.marked else ""
        while True:
            if not mark:
                yield from s.space()
                mark = (yield from s.literal(*between)) or ""
            if mark == "{":
                if n_read:
                    s.record(mark)
                yield from read_object(self, s, out)
                n_read += 1
            elif not mark or mark in closers:
                if not n_read or loose:
                    raise Unreadable("no call")
                s.cut_inside(*between)
                return
            loose = mark in (",", ";")
            if loose:
                s.record(mark)
            mark = ""

    def rule(self, g: Grammar, wanted: Wanted) -> str:
        """The grammar of at least one call."""
        call = g.either((call_object(self, g, name, form) for name, form in wanted.tools.items()), "call")
        many = wanted.many and self.parallel
        if self.array:
            more = f'(WS? "," WS? {call})*' if many else ""
            call = f'"[" WS? {call} {more} WS? "]"'
        call = g.rule(sequence(g.mark(self.call.start), call, g.mark(self.call.end)), "call")
        if many and not self.array:
            call = f"{call} (WS? {sequence(g.mark(self.separator), call)})*"
        return sequence(g.mark(self.section.start), call, g.mark(self.section.end))

    def wakes(self, wanted: Wanted) -> list[Wake]:
        """The opening mark; without any, an object that names one of the tools."""
        if self.marked:
            return [Wake("word", self.section.start or self.call.start)]
        names = "|".join(map(re.escape, wanted.tools))
        opener = r"\[\s*\{" if self.array else r"\{"
        key = "" if self.name_is_key else rf'"{self.name.rpartition(".")[2]}"\s*:\s*'
        return [Wake("pattern", rf'{opener}\s*(?:"type"\s*:\s*"function"\s*,\s*)?{key}"(?:{names})"')]


def call_object(syntax: JsonCalls, g: Grammar, name: str, form: Mapping[str, Any]) -> str:
    """The grammar of one function's call."""
    arguments = g.json(form, name)
    if syntax.name_is_key:
        return g.rule(_member_list([_member(g, name, arguments)]), name)
    values = {syntax.name: g.literal(json.dumps(name, ensure_ascii=False)), syntax.args: arguments}
    if syntax.id:
        values[syntax.id] = f'"\\"" {syntax.id_pattern} "\\""'
    body = _nested(g, [path for path in syntax.order if path in values] or list(values), values, "")
    return g.rule(body, name)


def _nested(g: Grammar, paths: list[str], values: Mapping[str, str], prefix: str) -> str:
    """An object whose members are the values at `paths`, grouped by their first keys."""
    groups: dict[str, list[str]] = {}
    for path in paths:
        groups.setdefault(path[len(prefix) :].partition(".")[0], []).append(path)
    members = []
    for key, inner in groups.items():
        path = prefix + key
        members.append(_member(g, key, values.get(path) or _nested(g, inner, values, path + ".")))
    if not prefix:
        members[0] = f'("\\"type\\"" WS? ":" WS? "\\"function\\"" WS? "," WS?)? {members[0]}'
    return _member_list(members)


def _member(g: Grammar, key: str, value: str) -> str:
    return f'{g.literal(json.dumps(key, ensure_ascii=False))} WS? ":" WS? {value}'


def _member_list(members: list[str]) -> str:
    inside = ' WS? "," WS? '.join(members)
    return f'"{{" WS? {inside} WS? "}}"'


def read_object(syntax: JsonCalls, s: Scanner, out: Output) -> Steps[None]:
    """Read one call's object after its opening brace, keys in any order; the call begins as soon as it can."""
    call = _Object(syntax, out)
    complete = False
    try:
        complete = yield from call.members(s, "")
    except Unreadable:
        if not s.exhausted or (call.args is None and call.sink is None):
            raise
    if call.sink is None and not (call.name and (syntax.marked or call.args is not None)):
        raise Unreadable("not a call")
    sink = call.sink or call.begin(s)
    sink.release(call.id)
    if complete:
        sink.close()


class _Object:
    """What is known of one call while its object is read."""

    def __init__(self, syntax: JsonCalls, out: Output) -> None:
        self.syntax = syntax
        self.out = out
        self.name = ""
        self.id = ""
        self.sink: CallSink | None = None
        self.args: list[str] | None = None  # that came before the name

    def begin(self, s: Scanner) -> CallSink:
        """Begin the call."""
        self.sink = self.out.call(self.name, self.id, held=self.syntax.late_id)
        s.recorded()
        for text in self.args or ():
            self.sink.write(text)
        return self.sink

    def write(self, text: str) -> None:
        """Take argument text, for later if the call has not begun."""
        if self.sink:
            self.sink.write(text)
        elif self.args is not None:
            self.args.append(text)

    def members(self, s: Scanner, prefix: str) -> Steps[bool]:
        """Read members up to the closing brace; False when the text ends before it."""
        while True:
            yield from s.space()
            char = yield from s.char()
            if not char:
                return False
            if char in "},":
                s.take(s.pos + 1)
                if char == "}":
                    return True
                continue
            key = yield from string_value(s)
            yield from s.space()
            if (yield from s.literal(":")) is None:
                raise Unreadable("no colon after a key")
            yield from s.space()
            yield from self.member(s, prefix + key)

    def member(self, s: Scanner, path: str) -> Steps[None]:
        """Read the value of the member at `path`."""
        syntax = self.syntax
        if syntax.name_is_key and not self.name:
            self.name = path
            yield from self.arguments(s)
        elif path == syntax.name:
            self.name = yield from string_value(s)
            if syntax.marked and (self.id or not syntax.id or syntax.late_id):
                self.begin(s)
        elif path == syntax.id:
            self.id = yield from _plain(s)
        elif path == syntax.args:
            yield from self.arguments(s)
        elif syntax.name.startswith(path + ".") and (yield from s.literal("{")):
            yield from self.members(s, path + ".")
        elif path == "function" and (yield from s.literal("{")):
            yield from self.members(s, "")
        elif not syntax.marked and path != "type":
            raise Unreadable(f"a call has no {path!r}")
        else:
            yield from json_value(s, _ignore)

    def arguments(self, s: Scanner) -> Steps[None]:
        """Read the arguments: an object, or one written as a string."""
        self.args = []
        if self.name and not self.sink:
            self.begin(s)
        char = yield from s.char()
        if char in ("{", "["):
            yield from json_value(s, self.write)
        else:
            text = yield from _plain(s)
            self.write(mended(text) or json.dumps(text) if text not in ("", "null") else "{}")


def _plain(s: Scanner) -> Steps[str]:
    """Read a string's text, or any other JSON value as it is written."""
    char = yield from s.char()
    if char == '"':
        return (yield from string_value(s))
    pieces: list[str] = []
    yield from json_value(s, pieces.append)
    return "".join(pieces)


def _ignore(text: str) -> None:
    pass
