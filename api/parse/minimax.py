"""MiniMax M3: every tag behind a namespace mark, nested objects as nested tags, arrays as `<item>` tags."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from api.parse import schema
from api.parse.jsontext import Unreadable, escape, mended
from api.parse.lark import Grammar, sequence
from api.parse.layout import Ask, Wake, Wanted
from api.parse.output import CallSink, Output
from api.parse.scan import Scanner, Steps, markers
from api.parse.shapes import Shapes, object_form, repeated

NS = "]<]minimax[>["
OPEN, CLOSE = f"{NS}<", f"{NS}</"
SECTION_END = f"{CLOSE}tool_call>"
TAG = re.compile(r"[^<>\s]*")
NAME = re.compile(r'[^"<>]*')


@dataclass(frozen=True, slots=True)
class MinimaxCalls:
    """`<tool_call><invoke name="N"><KEY>value</KEY></invoke></tool_call>`, each tag behind the mark."""

    parallel: bool = True

    @property
    def marks(self) -> tuple[str, ...]:
        """The namespace mark and the tags that may be tokens."""
        return (NS, "<tool_call>", "</tool_call>")

    def openers(self, ask: Ask) -> tuple[str, ...]:
        """The section's tag."""
        return (f"{OPEN}tool_call>",)

    def rule(self, g: Grammar, wanted: Wanted) -> str:
        """The grammar of the whole section."""
        calls = []
        for name, form in wanted.tools.items():
            inside = MinimaxShapes(g, form).value(object_form(form), f"{CLOSE}invoke>")
            calls.append(f"{g.literal(f'{OPEN}invoke name=')} {g.literal(json.dumps(name))} {g.literal('>')} {inside}")
        call = g.either(calls, "call")
        more = f"(WS? {call})*" if wanted.many and self.parallel else ""
        return sequence(g.literal(f"{OPEN}tool_call>"), f"{call} {more}", g.literal(SECTION_END))

    def wakes(self, wanted: Wanted) -> list[Wake]:
        """The section's tag."""
        return [Wake("word", f"{OPEN}tool_call>")]

    def read(self, s: Scanner, out: Output, opener: str) -> Steps[None]:
        """Read the calls and the section's closing tag."""
        invoke = f'{OPEN}invoke name="'
        if not (yield from s.skip(invoke)):
            raise Unreadable("no call")
        while True:
            name = yield from s.run(NAME)
            if not (yield from s.skip('">')):
                raise Unreadable("no name")
            sink = out.call(name)
            s.recorded()
            yield from self.call(s, sink)
            if not (yield from s.skip(invoke)):
                break
            s.record(invoke)
        yield from s.skip(SECTION_END)
        s.cut_inside(SECTION_END)

    def call(self, s: Scanner, sink: CallSink) -> Steps[None]:
        """Read the arguments and the call's closing tag."""
        if (yield from _members(s, sink, sink.schema, sink.schema)):
            yield from s.skip(f"{CLOSE}invoke>")


class MinimaxShapes(Shapes):
    """Elements named after properties; `item` elements for arrays."""

    def element(self, tag: str, form: Any) -> str:
        """A property or an item."""
        return f"{self.g.literal(f'{OPEN}{tag}>')} {self.value(form, f'{CLOSE}{tag}>')} WS?"

    def object(self, form: Mapping[str, Any], known: Mapping[str, Any], needed: list[str], end: str) -> str:
        """The needed properties and others."""
        required = [self.element(key, known.get(key)) for key in needed]
        optional = [self.element(key, part) for key, part in known.items() if key not in needed]
        if not known and form.get("additionalProperties", "properties" not in form):
            return self.g.until(end)
        return f"WS? {self.g.any_order(required, optional)} {self.g.literal(end)}"

    def array(self, form: Mapping[str, Any], end: str) -> str:
        """The items."""
        return f"WS? {repeated(self.element('item', form.get('items')), '', form)} {self.g.literal(end)}"


def _members(s: Scanner, sink: CallSink, form: Any, root: Any) -> Steps[bool]:
    """Read the tags inside an object up to its closing tag; False when the text ended inside."""
    forms = schema.properties(form, root)
    sink.write("{")
    first = True
    while True:
        yield from s.space()
        if (yield from s.peek(markers(CLOSE))):
            sink.write("}")
            return True
        if not (yield from s.literal(OPEN)):
            if s.ended:
                return False
            raise Unreadable("no tag")
        tag = yield from s.run(TAG)
        if not (yield from s.literal(">")):
            return False
        sink.write(("" if first else ",") + f'"{escape(tag)}":')
        first = False
        if not (yield from _element(s, sink, tag, forms.get(tag), root)):
            return False


def _element(s: Scanner, sink: CallSink, tag: str, form: Any, root: Any) -> Steps[bool]:
    """Read a value and its closing tag."""
    close = f"{CLOSE}{tag}>"
    types = schema.types(form, root) if form is not None else schema.ALL
    if "string" in types and not (len(types) > 1 and (yield from _nested(s))):
        return (yield from _text(s, sink, close))
    if (yield from _nested(s)) or (types <= {"object", "array"} and (yield from _empty(s))):
        nested = _items if "object" not in types or (yield from s.peek(markers(f"{OPEN}item>"))) else _members
        if not (yield from nested(s, sink, form, root)):
            return False
        return (yield from s.skip(close))
    return (yield from _plain(s, sink, close, types))


def _items(s: Scanner, sink: CallSink, form: Any, root: Any) -> Steps[bool]:
    """Read the items of an array up to its closing tag."""
    form = schema.resolve(form, root)
    item = form.get("items") if isinstance(form, dict) else None
    sink.write("[")
    first = True
    while True:
        yield from s.space()
        if not (yield from s.literal(f"{OPEN}item>")):
            break
        sink.write("" if first else ",")
        first = False
        if not (yield from _element(s, sink, "item", item, root)):
            return False
    if not (yield from s.peek(markers(CLOSE))):
        return False
    sink.write("]")
    return True


def _nested(s: Scanner) -> Steps[bool]:
    """Whether a tag opens here."""
    yield from s.space()
    return (yield from s.peek(markers(OPEN, CLOSE))) == OPEN


def _empty(s: Scanner) -> Steps[bool]:
    """Whether a tag closes here."""
    yield from s.space()
    return (yield from s.peek(markers(CLOSE))) is not None


def _text(s: Scanner, sink: CallSink, close: str) -> Steps[bool]:
    sink.write('"')
    if (yield from s.until(markers(close), lambda text: sink.write(escape(text)))) is None:
        return False
    sink.write('"')
    return True


def _plain(s: Scanner, sink: CallSink, close: str, types: frozenset[str]) -> Steps[bool]:
    pieces: list[str] = []
    complete = (yield from s.until(markers(close), pieces.append)) is not None
    text = "".join(pieces)
    sink.write((mended(text) or json.dumps(text, ensure_ascii=False)) if complete else text.strip())
    return complete
