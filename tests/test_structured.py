"""Output under JSON schemas, regular expressions, choices and Lark: valid, or refused with the place."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import jsonschema
import pytest

from api.constraints import read_constraint
from engine.grammar import GrammarError
from engine.vocab import Vocab
from ipc.messages import Constraint
from tests.constrained import Harness

SEEDS = range(5)
FORMATS = jsonschema.Draft202012Validator.FORMAT_CHECKER
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}


@pytest.fixture(scope="module")
def harness(vocab: Vocab) -> Iterator[Harness]:
    with closing(Harness(vocab)) as made:
        yield made


def schema_of(schema: Any) -> Constraint:
    return Constraint("json_schema", json.dumps(schema))


def tagged(kind: str, **properties: Any) -> dict[str, Any]:
    members = {"kind": {"const": kind}, **properties}
    return {"type": "object", "properties": members, "required": list(members)}


ENFORCED: dict[str, Any] = {
    "type string": {"type": "string"},
    "type integer": {"type": "integer"},
    "type number": {"type": "number"},
    "type boolean": {"type": "boolean"},
    "type null": {"type": "null"},
    "type array": {"type": "array", "maxItems": 3},
    "type object": {"type": "object", "maxProperties": 2},
    "type list": {"type": ["integer", "null", "boolean"]},
    "no type": {"properties": {"a": {"type": "integer"}}, "required": ["a"], "type": "object"},
    "no type, bounds": {"anyOf": [{"minimum": 3, "type": "integer"}, {"type": "null"}]},
    "properties": PERSON,
    "required": {**PERSON, "required": ["age", "name"]},
    "required, undeclared": {**PERSON, "required": ["name", "other"]},
    "additionalProperties false": {**PERSON, "additionalProperties": False},
    "additionalProperties schema": {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 2},
    "patternProperties": {
        "type": "object",
        "patternProperties": {"^x_": {"type": "integer"}},
        "additionalProperties": False,
        "maxProperties": 2,
    },
    "propertyNames pattern": {
        "type": "object",
        "propertyNames": {"pattern": "^[ab]$"},
        "additionalProperties": {"type": "boolean"},
    },
    "propertyNames enum": {"type": "object", "propertyNames": {"enum": ["a.b", "c"]}, "maxProperties": 2},
    "minProperties": {
        "type": "object",
        "additionalProperties": {"type": "null"},
        "minProperties": 1,
        "maxProperties": 1,
    },
    "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 4},
    "items list": {"type": "array", "items": [{"type": "integer"}, {"const": "x"}], "additionalItems": False},
    "prefixItems": {"type": "array", "prefixItems": [{"const": "x"}, {"type": "null"}], "items": False, "minItems": 2},
    "minItems maxItems": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 3},
    "minLength maxLength": {"type": "string", "minLength": 2, "maxLength": 5},
    "maxLength 2000 in maxItems 50": {"type": "array", "maxItems": 50, "items": {"type": "string", "maxLength": 2000}},
    "pattern": {"type": "string", "pattern": "^[a-c]{2,4}$"},
    "pattern, unanchored": {"type": "string", "pattern": "ab", "maxLength": 8},
    "pattern, open end": {"type": "string", "pattern": "^ab", "maxLength": 8},
    "pattern classes": {"type": "string", "pattern": "^\\d\\w\\S\\s$"},
    "pattern not-space": {"type": "string", "pattern": "\\S", "maxLength": 8},
    "pattern alternatives": {"type": "string", "pattern": "^a|b$", "maxLength": 4},
    "pattern identity escape": {"type": "string", "pattern": "^hello there indeed\\!$"},
    "pattern backslash": {"type": "string", "pattern": "^hello there indeed\\\\!$"},
    "pattern angle brackets": {"type": "string", "pattern": "^\\<a\\>$"},
    "pattern class signs": {"type": "string", "pattern": "^[[&&~~-]{3}$"},
    "pattern control": {"type": "string", "pattern": "^a\\tb$"},
    "pattern unicode": {"type": "string", "pattern": "^\\u00e9[\\u4e00-\\u4e09]$"},
    "pattern with length": {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 6},
    "format date": {"type": "string", "format": "date"},
    "format time": {"type": "string", "format": "time"},
    "format date-time": {"type": "string", "format": "date-time"},
    "format uuid": {"type": "string", "format": "uuid"},
    "format ipv4": {"type": "string", "format": "ipv4"},
    "format ipv6": {"type": "string", "format": "ipv6"},
    "format unknown": {"type": "string", "format": "phone", "maxLength": 9},
    "format of a number": {"type": "integer", "format": "int32"},
    "minimum maximum": {"type": "integer", "minimum": -3, "maximum": 12},
    "exclusive bounds": {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 6},
    "number bounds": {"type": "number", "minimum": 1.5, "maximum": 2.25},
    "multipleOf": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 700},
    "const": {"const": {"a": [1, 2.5, "é\n"]}},
    "enum": {"enum": ["a", 1, None, {"b": [True]}]},
    "enum with type": {"type": "string", "enum": ["a", "b"]},
    "enum behind $ref": {
        "$defs": {"e": {"enum": ["x", "y"]}},
        "type": "array",
        "items": {"$ref": "#/$defs/e"},
        "maxItems": 3,
    },
    "$ref into an array": {
        "$defs": {"a": {"anyOf": [{"type": "integer"}, {"const": "z"}]}},
        "type": "object",
        "properties": {"v": {"$ref": "#/$defs/a/anyOf/1"}},
        "required": ["v"],
    },
    "$ref to properties": {
        "type": "object",
        "properties": {"a": {"enum": [1, 2]}, "b": {"$ref": "#/properties/a"}},
        "required": ["a", "b"],
    },
    "$ref with siblings": {
        "$defs": {"p": PERSON},
        "$ref": "#/$defs/p",
        "properties": {"x": {"type": "null"}},
        "required": ["x"],
    },
    "$ref escaped": {"$defs": {"a/b~c d": {"const": 1}}, "$ref": "#/$defs/a~1b~0c%20d"},
    "recursion": {
        "$defs": {
            "n": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}}
        },
        "$ref": "#/$defs/n",
    },
    "definitions": {
        "definitions": {"a": {"type": "null"}},
        "type": "array",
        "items": {"$ref": "#/definitions/a"},
        "maxItems": 2,
    },
    "anyOf": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "integer"}, "maxItems": 2}]},
    "anyOf with properties": {
        **PERSON,
        "anyOf": [{"properties": {"b": {"type": "null"}}, "required": ["b"]}, {"required": ["age"]}],
    },
    "allOf": {"allOf": [PERSON, {"type": "object", "properties": {"b": {"type": "null"}}, "required": ["b"]}]},
    "allOf of $refs": {
        "$defs": {"p": PERSON, "q": tagged("k")},
        "allOf": [{"$ref": "#/$defs/p"}, {"$ref": "#/$defs/q"}],
    },
    "allOf of one": {"$defs": {"p": PERSON}, "allOf": [{"$ref": "#/$defs/p"}], "description": "a person"},
    "allOf with properties": {**PERSON, "allOf": [tagged("x")]},
    "allOf of enums": {"allOf": [{"enum": ["a", "b", "c"]}, {"enum": ["b", "c", "d"]}]},
    "oneOf": {"oneOf": [tagged("a"), tagged("b", x={"type": "integer"})], "discriminator": {"propertyName": "kind"}},
    "oneOf by required": {
        "oneOf": [
            {
                "type": "object",
                "properties": {"a": {"type": "integer"}},
                "required": ["a"],
                "additionalProperties": False,
            },
            {
                "type": "object",
                "properties": {"b": {"type": "integer"}},
                "required": ["b"],
                "additionalProperties": False,
            },
        ]
    },
    "unevaluatedProperties": {"allOf": [PERSON], "properties": {"x": {"type": "null"}}, "unevaluatedProperties": False},
    "true as a schema": {"type": "object", "properties": {"a": True}, "required": ["a"], "additionalProperties": False},
    "annotations": {"title": "T", "description": "d", "default": 1, "examples": [1], "$comment": "c", "type": "null"},
    "nested": {
        "type": "object",
        "properties": {"list": {"type": "array", "items": PERSON, "maxItems": 2}},
        "required": ["list"],
    },
}


@pytest.mark.parametrize("name", ENFORCED)
def test_output_is_valid_by_the_schema(harness: Harness, name: str) -> None:
    schema = ENFORCED[name]
    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    if isinstance(schema.get("items"), list):
        validator = jsonschema.Draft7Validator
    ended = 0
    for seed in SEEDS:
        text, complete = harness.generate(schema_of(schema), seed)
        if complete:
            ended += 1
            validator(schema, format_checker=FORMATS).validate(json.loads(text))
    assert ended >= 4


# ------------------------------------------------ what cannot be enforced is refused, with its place

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


# ------------------------------------------------ regex, choice, Lark


@pytest.mark.parametrize("pattern", ["[a-c]{2,4}", "yes|no", r"\d{4}-\d{2}", r"a\!b\<c", "(ä|ö)+x", "[^\"']{1,5}z"])
def test_the_whole_output_matches_the_regex(harness: Harness, pattern: str) -> None:
    for seed in SEEDS:
        text, complete = harness.generate(Constraint("regex", pattern), seed)
        assert not complete or re.fullmatch(pattern, text)


@pytest.mark.parametrize(
    "options",
    [["yes", "no"], ["a", "ab", "abc"], ['he said "hi"', "back\\slash", "two\nlines", "ünï 😀"], ["{x}", "/y/"]],
)
def test_the_output_is_one_of_the_choices(harness: Harness, options: list[str]) -> None:
    constraint = read_constraint({"choice": options}, None)
    assert constraint is not None
    assert {harness.generate(constraint, seed) for seed in range(12)} <= {(option, True) for option in options}


def test_lark_with_a_schema_in_it(harness: Harness) -> None:
    constraint = Constraint("lark", 'start: "call " %json {"type": "object", "properties": {"a": {"enum": [1, 2]}}}')
    for seed in SEEDS:
        text, complete = harness.generate(constraint, seed)
        assert complete and json.loads(text.removeprefix("call ")) in ({}, {"a": 1}, {"a": 2})


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
