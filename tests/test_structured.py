"""Output under JSON schemas, regular expressions, choices and Lark: valid, or refused with the place."""

import json
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import jsonschema
import pytest

from api.constraints import read_constraint
from engine.vocab import Vocab
from ipc.messages import Constraint
from tests.constrained import Harness, schema_of

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
