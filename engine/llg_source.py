"""A JSON schema, regex or Lark constraint as what llguidance compiles."""

import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import llguidance

from engine.grammar import GrammarError
from engine.pattern import PatternError, rust_pattern
from engine.schema_check import prepare_schema
from engine.schema_tree import Schema, children, quoted, read_schema, resolve
from ipc.messages import Constraint

MAX_TEXT = 2_000_000  # characters of a constraint
MAX_LARK = 200_000  # characters of Lark, besides its schemas
MAX_LINES = 10_000  # of Lark; a rule takes one
MAX_REPEAT = 10_000  # in Lark: items of one repetition
_MAX_PROBES = 300  # compilations to find out which part of a schema is at fault

# White space between JSON tokens is fixed, so that it is bounded and can be forced.
JSON_OPTIONS: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

_STATE = re.compile(r"<state>.*|<non-verbose/>| while processing json-schema:\S*", re.DOTALL)
_LARK_SCHEMA = re.compile(r"%json\s*(?=\{)")
_LARK_REPEAT = re.compile(r"\{\s*(\d+)\s*(?:,\s*(\d*)\s*)?\}")
_LARK_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*+"')

Errors = Callable[[str], str]  # of a source: what is wrong with it, or nothing


def llg_source(constraint: Constraint, errors: Errors) -> str:
    """What llguidance compiles. Raises GrammarError for what it must not see or does not take."""
    if len(constraint.text) > MAX_TEXT:
        raise GrammarError(f"the constraint has {len(constraint.text)} characters, more than {MAX_TEXT}")
    if constraint.kind == "json_schema":
        schema = prepare_schema(read_schema(constraint.text))
        source = _json_source(schema)
        if errors(source):
            raise GrammarError(_locate(schema, errors))
        return source
    source = _regex_source(constraint.text) if constraint.kind == "regex" else _lark_source(constraint.text, errors)
    problem = errors(source)
    if problem:
        raise GrammarError(_STATE.sub("", problem).strip())
    return source


def _regex_source(text: str) -> str:
    try:
        return llguidance.LLMatcher.grammar_from_regex(rust_pattern(text))
    except PatternError as problem:
        raise GrammarError(f"regex: {problem}") from None


def _json_source(schema: Schema) -> str:
    options = schema.get("x-guidance")
    if isinstance(options, dict):
        options = {name: value for name, value in options.items() if name != "lenient"}
    given = {**JSON_OPTIONS, **options} if isinstance(options, dict) else JSON_OPTIONS
    return llguidance.LLMatcher.grammar_from_json_schema(json.dumps({**schema, "x-guidance": given}))


def _lark_source(text: str, errors: Errors) -> str:
    """Lark with its `%json` schemas prepared like any other."""
    parts, at = [], 0
    for match in _LARK_SCHEMA.finditer(text):
        if match.start() < at:
            continue  # within the schema before
        schema, end = _lark_schema(text, match.end())
        parts += [_lark_text(text, at, match.end()), _prepared(schema, text, match.start(), errors)]
        at = end
    parts.append(_lark_text(text, at, len(text)))
    _check_size("".join(parts[::2]))
    return llguidance.LLMatcher.grammar_from_lark("".join(parts))


def _check_size(text: str) -> None:
    """Of Lark without its schemas."""
    if len(text) > MAX_LARK:
        raise GrammarError(f"the grammar has {len(text)} characters, more than {MAX_LARK}")
    if text.count("\n") > MAX_LINES:
        raise GrammarError(f"the grammar has more than {MAX_LINES} lines")


def _lark_schema(text: str, at: int) -> tuple[Any, int]:
    try:
        schema, end = json.JSONDecoder().raw_decode(text, at)
    except (ValueError, RecursionError) as problem:
        raise GrammarError(f"line {_line(text, at)}: %json: {problem}") from None
    return read_schema(json.dumps(schema)), end


def _prepared(schema: Any, text: str, at: int, errors: Errors) -> str:
    """The JSON text of a schema in Lark; `x-name` in it says what to call it in errors."""
    name = schema.pop("x-name", f"line {_line(text, at)}, %json")
    options = schema.pop("x-guidance", {})
    try:
        prepared = prepare_schema(schema)
        if errors(_json_source(prepared)):
            raise GrammarError(_locate(prepared, errors))
    except GrammarError as problem:
        raise GrammarError(f"{name}: {problem}") from None
    return json.dumps({**prepared, "x-guidance": {**JSON_OPTIONS, **options}})


def _lark_text(text: str, start: int, end: int) -> str:
    part = text[start:end]
    for match in _LARK_REPEAT.finditer(_LARK_STRING.sub(lambda found: "." * len(found[0]), part)):
        if any(number and (len(number) > 9 or int(number) > MAX_REPEAT) for number in match.groups()):
            raise GrammarError(f"line {_line(text, start + match.start())}: more than {MAX_REPEAT} repetitions")
    return part


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _locate(schema: Schema, errors: Errors) -> str:
    """The innermost part of a schema that does not compile by itself, and why."""
    whole = {"$defs": {"root": _moved(schema)}}
    place, seen = "", {""}
    problem = errors(_json_source(schema))
    for _ in range(_MAX_PROBES):
        for pointer in _parts(whole["$defs"]["root"], place):
            if pointer in seen or len(seen) > _MAX_PROBES:
                continue
            seen.add(pointer)
            found = errors(_json_source({**whole, "$ref": f"#/$defs/root{quoted(pointer)}"}))
            if found:
                place, problem = pointer, found
                break
        else:
            break
    return f"at #{place}: {_plain(problem)}"


def _parts(root: Schema, place: str) -> list[str]:
    schema = resolve(root, "#" + quoted(place))
    if not isinstance(schema, dict):
        return []
    found = [place + pointer for pointer, child in children(schema) if isinstance(child, dict)]
    reference = schema.get("$ref")
    if isinstance(reference, str):
        found.append(unquote(reference.removeprefix("#/$defs/root")))
    return found


def _moved(schema: Any) -> Any:
    """`schema` with references that hold when it stands at `#/$defs/root`."""
    if isinstance(schema, list):
        return [_moved(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {name: _moved(value) for name, value in schema.items()}
    if isinstance(moved.get("$ref"), str):
        moved["$ref"] = "#/$defs/root" + moved["$ref"].removeprefix("#")
    return moved


def _plain(problem: str) -> str:
    """llguidance's message without the parser's state and our own wrapping."""
    text = " ".join(_STATE.sub("", problem).split())
    if text.startswith("NoExtension"):
        return "nothing can match this"
    if text.startswith("oneOf constraints"):
        return "'oneOf': one value may match several of the schemas"
    return text[:500]
