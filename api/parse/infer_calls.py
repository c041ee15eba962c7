"""How a template writes tool calls."""

import json
import re
from collections.abc import Iterator
from typing import Any

from api.parse.calls import Calls, JsonCalls
from api.parse.layout import NO_MARKS, Pair, Thinking
from api.parse.params import JsonArgs, TaggedArgs
from api.parse.tags import CallId, TagCalls
from api.parse.trial import (
    ANSWERED,
    FIRST,
    ID_A,
    ID_B,
    KEY_A,
    KEY_B,
    MARK,
    SECOND,
    VALUE_A,
    VALUE_B,
    Trial,
    call,
    from_mark,
    shared_end,
    shared_start,
    to_mark,
)

OPENS = re.compile(r"[<\[]")
DECODER = json.JSONDecoder()


def infer_calls(trial: Trial, thinking: Thinking | None) -> Calls | None:
    """The syntax of calls; None for a template that shows none."""
    one = trial.calls(call(FIRST, ID_A))
    if not one or KEY_A not in one:
        return None
    two = trial.calls(call(FIRST, ID_A), call(SECOND, ID_B))
    if two and SECOND not in two:
        two = None
    plain = (trial.answer() or "").rpartition(ANSWERED)[2]
    one, two = (cleaned(text, plain, thinking).replace(ID_B, ID_A) if text else "" for text in (one, two))
    if found := find_json(one, FIRST):
        return json_calls(one, two, *found)
    return tag_calls(one, two)


def cleaned(text: str, end_of_turn: str, thinking: Thinking | None) -> str:
    """The calls alone: without empty thinking before them and without the end of the turn."""
    for mark in (thinking.start, thinking.end) if thinking else ():
        head, found, tail = text.partition(mark) if mark else (text, "", "")
        if found and FIRST not in head:
            text = head + tail
    return text[: len(text) - len(from_mark(shared_end(text, end_of_turn)))].strip()


def find_json(text: str, needle: str) -> tuple[int, int, Any] | None:
    """The outermost JSON value in `text` that contains `needle` as a key or a value, with its place."""
    for start in (i for i, char in enumerate(text) if char in "[{"):
        try:
            value, end = DECODER.raw_decode(text, start)
        except ValueError:
            continue
        if needle in set(strings(value)) and all(isinstance(item, dict) for item in listed(value)):
            return start, end, value
    return None


def listed(value: Any) -> list[Any]:
    """The items of a list; any other value as the only one."""
    return value if isinstance(value, list) else [value]


def strings(value: Any) -> Iterator[str]:
    """All keys and string values in `value`."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from strings(item)


def json_calls(one: str, two: str, start: int, end: int, value: Any) -> Calls:
    """Calls that are JSON objects."""
    array = isinstance(value, list)
    fields = {kind: path for path, kind in members(listed(value)[0], "")}
    before, after = one[:start].strip(), one[end:].strip()
    section, inner, separator = NO_MARKS, balanced(before, after), ""
    if two:
        section, inner, separator = json_marks(before, after, two, array)
    return JsonCalls(
        section,
        inner,
        array,
        name=fields.get("name", "name"),
        args=fields.get("args", "arguments"),
        id=fields.get("id", ""),
        order=tuple(fields.values()),
        name_is_key="key" in fields,
        parallel=bool(two),
        separator=separator,
    )


def members(value: dict[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    """The paths of a call's members with what they are: "name", "args", "id", or "key" for a name that is a key."""
    for key, item in value.items():
        path = prefix + key
        if key == FIRST:
            yield path, "key"
        elif item == FIRST:
            yield path, "name"
        elif (KEY_A in set(strings(item)) and (not isinstance(item, dict) or KEY_A in item)) or is_text(item):
            yield path, "args"
        elif isinstance(item, dict):
            yield from members(item, path + ".")
        elif item == ID_A or "id" in key.lower().split("_"):
            yield path, "id"


def is_text(item: Any) -> bool:
    """Whether `item` is the arguments' JSON text."""
    return isinstance(item, str) and KEY_A in item


def json_marks(before: str, after: str, two: str, array: bool) -> tuple[Pair, Pair, str]:
    """The marks of section and call, and the separator, from what stands between two calls."""
    first = find_json(two, FIRST)
    if first and SECOND in set(strings(first[2])):
        return balanced(before, after), NO_MARKS, ""  # one array of both
    second = find_json(two[first[1] :], SECOND) if first else None
    if not first or not second:
        return NO_MARKS, balanced(before, after), ""
    between = two[first[1] :][: second[0]].strip()
    if not array and not MARK.search(between):
        return balanced(before, after), NO_MARKS, between
    return split_marks(before, after, between)


def split_marks(before: str, after: str, between: str) -> tuple[Pair, Pair, str]:
    """Section's and call's marks, when `between` two calls stand one's end and the next one's start."""
    start = from_mark(shared_end(before, between))
    end = to_mark(shared_start(after, between[: len(between) - len(start)]))
    section = balanced(before[: len(before) - len(start)].strip(), after[len(end) :].strip())
    separator = between[len(end) : len(between) - len(start)].strip()
    return section, Pair(start.strip(), end.strip()), separator


def balanced(start: str, end: str) -> Pair:
    """`start` and `end` as a pair, without the marks in `end` that end more than `start` began."""
    marks = list(MARK.finditer(end))
    n = len(MARK.findall(start)) or len(OPENS.findall(start))
    return Pair(start, end[: marks[n].start()].strip() if len(marks) > n else end)


def tag_calls(one: str, two: str) -> Calls | None:
    """Calls whose name stands in marks, with JSON or tagged arguments."""
    before, _, after = one.partition(FIRST)
    found = find_json(after, KEY_A)
    if found:
        middle, tail = after[: found[0]], after[found[1] :]
        args: JsonArgs | TaggedArgs = JsonArgs()
    elif tagged := tagged_args(after):
        middle, tail, args = tagged
    else:
        return None
    section, inner, separator = NO_MARKS, balanced(before.strip(), tail.strip()), ""
    if two and (between := between_calls(two, args)) is not None:
        section, inner, separator = split_marks(before.strip(), tail.strip(), between)
    opening, name_start = split_opening(inner.start)
    close, ending = split_ending(inner.end) if name_start else ("", inner.end)
    name_end, call_id, args = place_id(middle.strip(), args)
    if ID_A in name_start:
        before_id, _, name_start = name_start.partition(ID_A)
        call_id = CallId("before", Pair(before_id.strip()))
    return TagCalls(
        args,
        section,
        Pair(opening, ending),
        Pair(name_start, name_end),
        close=close,
        id=call_id,
        parallel=bool(two),
        separator=separator,
    )


def between_calls(two: str, args: JsonArgs | TaggedArgs) -> str | None:
    """What stands between the first call's arguments and the second one's name."""
    rest = two.partition(FIRST)[2].partition(SECOND)[0]
    if isinstance(args, JsonArgs):
        found = find_json(rest, KEY_A)
        return rest[found[1] :].strip() if found else None
    tail = rest.rpartition(VALUE_B)[2]
    return tail.strip().removeprefix(args.value.end).strip()


def tagged_args(text: str) -> tuple[str, str, TaggedArgs] | None:
    """What stands before and after arguments that are each in marks, and those marks."""
    pieces = []
    for needle in (KEY_A, VALUE_A, KEY_B, VALUE_B):
        piece, found, text = text.partition(needle)
        if not found:
            return None
        pieces.append(piece)
    before, inside, between, _ = pieces
    key_start = from_mark(shared_end(before, between))
    value_end = to_mark(shared_start(between[: len(between) - len(key_start)], text)) or between.strip()
    key_end, value_start = split_opening(inside.strip())
    newline = inside.endswith("\n") and between.startswith("\n")
    args = TaggedArgs(Pair(key_start, key_end), Pair(value_start, value_end.strip()), newline=newline)
    return before[: len(before) - len(key_start)], text[len(value_end) :], args


def split_opening(text: str) -> tuple[str, str]:
    """A first whole mark, and what follows it."""
    found = MARK.match(text)
    if found and text[found.end() :].strip():
        return found.group(), text[found.end() :].strip()
    return text, ""


def split_ending(text: str) -> tuple[str, str]:
    """What stands before the last whole mark, and that."""
    marks = list(MARK.finditer(text))
    if not marks:
        return text, ""
    return text[: marks[-1].start()].strip(), text[marks[-1].start() :].strip()


def place_id(middle: str, args: JsonArgs | TaggedArgs) -> tuple[str, CallId | None, JsonArgs | TaggedArgs]:
    """The name's closing mark, and where the id is."""
    if ID_A in middle and isinstance(args, JsonArgs):
        start, _, end = middle.partition(ID_A)
        return "", CallId("between", Pair(start.strip())), JsonArgs(Pair(end.strip()))
    return middle, None, args
