"""Constraints that cannot be enforced are refused with their place, hostile ones in time, large ones are taken."""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import jsonschema
import pytest

from engine.grammar import GrammarError
from engine.vocab import Vocab
from ipc.messages import Constraint
from tests.constrained import Harness, schema_of


@pytest.fixture(scope="module")
def harness(vocab: Vocab) -> Iterator[Harness]:
    with closing(Harness(vocab)) as made:
        yield made


REFUSED: list[tuple[Any, str]] = [
    ({"properties": {"a": {"type": "string", "pattern": "^(?=x)a$"}}}, "at #/properties/a: 'pattern': look-around"),
    ({"properties": {"a": {"type": "string", "pattern": "\\bx"}}}, "at #/properties/a: 'pattern': word boundaries"),
    ({"type": "string", "pattern": "(a)\\1"}, "at #: 'pattern': back references"),
    ({"type": "string", "pattern": "(a"}, "at #: 'pattern': a group is not closed"),
    ({"type": "string", "pattern": "x^"}, "at #: .*look"),
    ({"type": "string", "pattern": "[b-a]"}, "at #: .*range"),
    ({"patternProperties": {"(?<!a)": {}}}, "at #: 'patternProperties': look-around"),
    ({"properties": {"a/b": {"not": {"type": "null"}}}}, "at #/properties/a~1b: 'not': not supported"),
    ({"items": {"if": {"type": "null"}}}, "at #/items: 'if': not supported"),
    ({"items": [{"contains": {}}]}, "at #/items/0: 'contains': not supported"),
    ({"$defs": {"s": {"uniqueItems": True}}, "$ref": "#/$defs/s"}, r"at #/\$defs/s: 'uniqueItems': not supported"),
    ({"allOf": [{"dependentRequired": {"a": ["b"]}}]}, "at #/allOf/0: 'dependentRequired': not supported"),
    ({"propertyNames": {"maxLength": 3}}, "at #: 'propertyNames': not supported"),
    ({"unevaluatedItems": False}, "at #: 'unevaluatedItems': not supported"),
    ({"unevaluatedProperties": {"type": "null"}}, "at #: 'unevaluatedProperties': a schema"),
    ({"$dynamicRef": "#a"}, r"at #: '\$dynamicRef': not supported"),
    ({"properties": {"a": {"$ref": "#/nope"}}}, r"at #/properties/a: '\$ref': \"#/nope\" points to nothing"),
    ({"$ref": "http://example.com/a.json"}, r"at #: '\$ref': .* is not of the form #/"),
    ({"properties": {"a": {"type": "strin"}}}, "at #/properties/a: 'type': \"strin\" is unknown"),
    ({"properties": {"a": 5}}, "at #/properties/a: a schema must be an object"),
    ({"properties": 5}, "at #: 'properties': must be an object"),
    ({"required": True}, "at #: 'required': must be an array of strings"),
    ({"anyOf": []}, "at #: 'anyOf': must be a non-empty array"),
    ({"minLength": -1}, "at #: 'minLength': must be a whole number"),
    (
        {"items": {"oneOf": [{"type": "integer"}, {"type": "number"}]}},
        "at #/items: 'oneOf': one value may match several",
    ),
    ({"properties": {"a": {}, "b": {}}, "maxProperties": 1}, "at #: 'minProperties, maxProperties': not supported"),
    ({"type": "integer", "minimum": 1e300}, "at #: 'minimum': beyond"),
    ({"const": 12345678901234567890}, "at #: 'const': an integer beyond"),
    (
        {"type": "object", "properties": {"a": {"type": "null", "enum": [1]}}, "required": ["a"]},
        "at #/properties/a: ",
    ),
    ({"allOf": [{"type": "null"}, {"type": "string"}]}, "at #: .*incompatible types"),
    ({"type": "string", "pattern": "^a$", "minLength": 2}, "at #: "),
    ({"$ref": "#"}, "at #: nothing can match"),
    ([1], "a schema must be an object"),
    (False, "nothing matches"),
]


@pytest.mark.parametrize(("schema", "problem"), REFUSED, ids=lambda value: json.dumps(value)[:40])
def test_what_cannot_be_enforced_is_refused_with_its_place(harness: Harness, schema: Any, problem: str) -> None:
    begin = '"json_schema": JSON schema conversion failed:\n'
    with pytest.raises(GrammarError, match=f"^{begin}{problem}"):
        harness.compiler.compile(schema_of(schema))


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def doubled(depth: int, keyword: str) -> dict[str, Any]:
    """2^depth leaves, by references."""
    links = {f"a{i}": {keyword: [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(depth)}
    return {"$defs": {**links, f"a{depth}": {"type": "integer"}}, "$ref": "#/$defs/a0"}


HOSTILE = {
    "text nested 2,000 deep": ("json_schema", '{"items":' * 2000 + "{}" + "}" * 2000),
    "nested 300 deep": ("json_schema", json.dumps(nested(300))),
    "pattern repeated": ("json_schema", json.dumps({"type": "string", "pattern": "(a{1000}){1000}"})),
    "pattern of groups": ("json_schema", json.dumps({"type": "string", "pattern": "(" * 9000 + ")" * 9000})),
    "pattern of many states": ("json_schema", json.dumps({"type": "string", "pattern": "(.{0,900}){999}"})),
    "many properties": ("json_schema", json.dumps({"properties": {f"p{i}": {} for i in range(3000)}})),
    "many schemas": ("json_schema", json.dumps({"anyOf": [{"const": i} for i in range(30_000)]})),
    "product of alternatives": (
        "json_schema",
        json.dumps({"allOf": [{"anyOf": [{"properties": {f"{c}{i}": {}}} for c in "ab"]} for i in range(20)]}),
    ),
    "regex repeated": ("regex", "(a{1000}){1000}"),
    "regex of groups": ("regex", "(" * 60_000 + "a" + ")" * 60_000),
    "regex of many states": ("regex", "(.{0,100}){100}x.{0,1000}y"),
    "lark of groups": ("lark", "start: " + "(" * 60_000 + '"a"' + ")" * 60_000),
    "lark repeated": ("lark", 'start: "a"{1000000}'),
    "lark regex repeated": ("lark", "start: /a{1000000}/"),
    "lark of hostile schema": ("lark", 'start: %json {"type": "string", "pattern": "(a{1000}){1000}"}'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_constraint_is_refused_in_time(harness: Harness, name: str) -> None:
    kind, text = HOSTILE[name]
    begin = time.process_time()
    with pytest.raises(GrammarError):
        harness.compiler.compile(Constraint(kind, text))
    assert time.process_time() - begin < 1


LARGE = {
    "references doubled by anyOf": doubled(10, "anyOf"),
    "references doubled by allOf": doubled(10, "allOf"),
    "maxItems in maxItems": {"type": "array", "maxItems": 5000, "items": nested(1) | {"maxItems": 5000}},
    "maxLength": {"type": "string", "maxLength": 10**9},
    "enum": {"enum": [f"value number {i}" for i in range(5000)]},
    "properties": {"type": "object", "properties": {f"p{i}": {"const": i} for i in range(300)}},
    "maximum": {"type": "integer", "maximum": 1e300},
    "nested": nested(40),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_schemas_are_taken(harness: Harness, name: str) -> None:
    text, complete = harness.generate(schema_of(LARGE[name]), 1)
    if complete:
        jsonschema.validate(json.loads(text), LARGE[name])


def test_a_schema_within_lark_is_refused_by_its_name(harness: Harness) -> None:
    text = 'start: %json {"x-name": "tool \'f\'", "properties": {"a": {"not": {}}}}'
    with pytest.raises(GrammarError, match="tool 'f': at #/properties/a: 'not': not supported"):
        harness.compiler.compile(Constraint("lark", text))


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        ("regex", "a(?=b)", "regex: look-around is not supported"),
        ("regex", "(a", "regex: a group is not closed"),
        ("lark", "start: foo", 'unknown name: "foo"'),
        ("lark", 'x: "a"', "no start rule"),
        ("lark", "start: (", "Expected token"),
        ("lark", 'start: %json {"type":', "line 1: %json: "),
        ("gbnf", 'root ::= "a', "failed to parse grammar: line 1, column 10: "),
    ],
)
def test_a_bad_constraint_is_refused(harness: Harness, kind: str, text: str, problem: str) -> None:
    with pytest.raises(GrammarError, match=f"^Failed to initialize samplers: .*{problem}"):
        harness.compiler.compile(Constraint(kind, text))
