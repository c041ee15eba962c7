"""Arguments of a call: one JSON object, or parameters that each stand in marks of their own."""

from dataclasses import dataclass

from api.parse.arguments import Arguments
from api.parse.jsontext import json_value
from api.parse.layout import NO_MARKS, Pair
from api.parse.output import CallSink
from api.parse.scan import Scanner, Sink, Steps, markers

CDATA = Pair("<![CDATA[", "]]>")


@dataclass(frozen=True, slots=True)
class JsonArgs:
    """Arguments written as one JSON object, perhaps between marks."""

    marks: Pair = NO_MARKS

    @property
    def every_mark(self) -> tuple[str, ...]:
        """The marks around them."""
        return self.marks


@dataclass(frozen=True, slots=True)
class TaggedArgs:
    """Arguments written one by one, each key and value in marks; strings raw, other values as JSON."""

    key: Pair
    value: Pair
    marks: Pair = NO_MARKS  # around all of them
    attributes: str = ""  # ends the key's tag, when more may stand in it after the key
    string_flag: str = ""  # the attribute that says that a value is a raw string; without it the schema does
    newline: bool = False  # a value stands between line breaks that are not part of it
    unions_as_json: bool = False  # a value that may be a string or something else is read as JSON first
    cdata: bool = False

    @property
    def every_mark(self) -> tuple[str, ...]:
        """The marks around all of them, keys and values."""
        return (*self.marks, *self.key, self.attributes, *self.value)


def json_arguments(s: Scanner, sink: CallSink) -> Steps[None]:
    """Read arguments that are one JSON object; none at all are an empty one."""
    yield from s.space()
    if (yield from s.char()) in ("{", "["):
        yield from json_value(s, sink.write)
    if not s.exhausted:
        sink.close()


def tagged_arguments(args: TaggedArgs, s: Scanner, sink: CallSink, ends: tuple[str, ...]) -> Steps[None]:
    """Read parameters up to one of `ends`, which is left unread."""
    built = Arguments(sink)
    key_start = args.key.start.strip()
    while True:
        yield from s.space()
        if not (yield from s.literal(key_start)):
            break
        if not (yield from _parameter(args, s, built, (key_start, *ends))):
            return
    if not s.cut or not s.exhausted:
        built.close()


def _parameter(args: TaggedArgs, s: Scanner, built: Arguments, follow: tuple[str, ...]) -> Steps[bool]:
    """Read one parameter after its opening mark; False when the text ended inside."""
    pieces: list[str] = []
    attributes: list[str] = []
    if (yield from s.until(markers(args.key.end.strip()), pieces.append)) is None:
        return False
    name = "".join(pieces).strip()
    if args.attributes and (yield from s.until(markers(args.attributes), attributes.append)) is None:
        return False
    yield from s.skip(args.value.start)
    types = built.types(name)
    raw = "string" in types and (len(types) == 1 or not args.unions_as_json)
    if args.string_flag:
        raw = args.string_flag in "".join(attributes)
    built.key(name)
    if not raw:
        return (yield from _json_parameter(args, s, built, types))
    string = built.string(args.newline)
    end = args.value.end.strip()
    if args.cdata and (yield from s.literal(CDATA.start)):
        complete = (yield from s.until(markers(CDATA.end), string.write)) is not None
        yield from s.skip(end)
    else:
        complete = yield from _raw_text(s, end, tuple(filter(None, follow)), string.write)
    if complete:
        string.close()
    return complete


def _json_parameter(args: TaggedArgs, s: Scanner, built: Arguments, types: frozenset[str]) -> Steps[bool]:
    pieces: list[str] = []
    complete = (yield from s.until(markers(args.value.end.strip()), pieces.append)) is not None
    text = "".join(pieces)
    if complete:
        built.value(text.strip() if not args.newline else text.strip("\n"), types)
    else:
        built.raw(text.strip())
    return complete


def _raw_text(s: Scanner, end: str, follow: tuple[str, ...], sink: Sink) -> Steps[bool]:
    """Read raw text up to an `end` that one of `follow` comes after, so that text may contain `end`."""
    while (yield from s.until(markers(end), sink)) is not None:
        s.record(end)
        yield from s.space()
        if s.exhausted or not follow or (yield from s.peek(markers(*follow))):
            s.recorded()
            return True
        sink(s.recorded())
    return False
