"""Structured output: the request's grammar, schema, regex or choice as one `Constraint`; generation.md §4."""

import json
from typing import Any

import msgspec

from api.errors import ApiError, invalid
from api.fields import kind_of
from api.params import Lazy
from ipc.messages import Constraint, Trigger

encode = msgspec.json.Encoder().encode
FORMS = ("grammar", "json_schema", "regex", "choice", "lark", "response_format")
TRIGGERS = ("token", "word", "pattern", "pattern_full")
ANY_OBJECT: dict[str, Any] = {"type": "object"}


def read_constraint(body: dict[str, Any], default: Constraint | None) -> Constraint | None:
    """The constraint that `body` asks for, else `default`. `grammar` wins over `json_schema`, even as null."""
    if "grammar" in body:
        body = {name: value for name, value in body.items() if name != "json_schema"}
        if body["grammar"] is None:
            default = None
    given = [name for name in FORMS if body.get(name) is not None and not is_plain_text(name, body[name])]
    if not given:
        return default
    if len(given) > 1:
        raise invalid(f"Only one of {', '.join(given)} can be used in one request")
    return READ[given[0]](body[given[0]])


def is_plain_text(name: str, value: Any) -> bool:
    """Whether this is a `response_format` or an empty grammar that asks for nothing."""
    if name == "grammar":
        return bool(value == "")
    return name == "response_format" and isinstance(value, dict) and value.get("type", "text") == "text"


def grammar(value: Any) -> Constraint:
    """GBNF text with a rule `root`."""
    if not isinstance(value, str):
        raise invalid(f"Field 'grammar': type must be a string, but is {kind_of(value)}")
    return Constraint("gbnf", value)


def json_schema(value: Any) -> Constraint:
    """A JSON schema; `{}` and `true` mean any object."""
    if isinstance(value, str):
        value = decoded(value)
    if value is False or not isinstance(value, (dict, bool)):
        raise invalid(f"Field 'json_schema': type must be an object, but is {kind_of(value)}")
    return Constraint("json_schema", encode(value if isinstance(value, dict) and value else ANY_OBJECT).decode())


def decoded(text: str) -> Any:
    """A schema that came as text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(f"Field 'json_schema': {error}") from None


def regex(value: Any) -> Constraint:
    """A regular expression that the whole output matches."""
    if not isinstance(value, str) or not value:
        raise invalid("Field 'regex': type must be a non-empty string")
    return Constraint("regex", value)


def choice(value: Any) -> Constraint:
    """One of several texts."""
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
        raise invalid("Field 'choice': must be a non-empty array of non-empty strings")
    return Constraint("lark", "start: " + " | ".join(json.dumps(item) for item in value))


def lark(value: Any) -> Constraint:
    """A grammar in Lark's notation with a rule `start`."""
    if not isinstance(value, str) or not value:
        raise invalid("Field 'lark': type must be a non-empty string")
    return Constraint("lark", value)


def response_format(value: Any) -> Constraint:
    """OpenAI's forms, and `{"type": "json_object", "schema": …}`."""
    if not isinstance(value, dict):
        raise invalid(f"Field 'response_format': type must be an object, but is {kind_of(value)}")
    kind = value.get("type")
    if kind == "json_object":
        return json_schema(unless_null(value.get("schema")))
    if kind == "json_schema":
        inner = value.get("json_schema", {})
        return json_schema(unless_null(inner.get("schema")) if isinstance(inner, dict) else inner)
    raise invalid(f'response_format type must be one of "text", "json_object" or "json_schema", but got: {kind!r:.60}')


def unless_null(schema: Any) -> Any:
    """`schema`, where null means that none is given."""
    return {} if schema is None else schema


READ = {
    "grammar": grammar,
    "json_schema": json_schema,
    "regex": regex,
    "choice": choice,
    "lark": lark,
    "response_format": response_format,
}


def awaken(constraint: Constraint | None, lazy: Lazy, preserved: list[int], vocab: Any) -> Constraint | None:
    """`constraint` with its triggers; they are checked also when there is nothing to wake."""
    triggers = [trigger(item, preserved, vocab) for item in lazy.triggers]
    if lazy.lazy and not triggers:
        raise ApiError(400, "Error: no triggers set for lazy grammar!")
    if constraint is None or not lazy.lazy:
        return constraint
    return Constraint(constraint.kind, constraint.text, lazy=True, triggers=triggers)


def trigger(item: dict[str, Any], preserved: list[int], vocab: Any) -> Trigger:
    """One trigger; a word that is a single token becomes a token trigger."""
    kind, value, token = item.get("type"), item.get("value"), item.get("token")
    if not isinstance(kind, int) or isinstance(kind, bool) or not 0 <= kind < 4 or not isinstance(value, str):
        raise invalid("Field 'grammar_triggers': each needs a type from 0 to 3 and a string value")
    if kind == 0:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab.n_tokens:
            raise invalid("Field 'grammar_triggers': a trigger of type 0 needs a token id of the vocabulary")
        return Trigger("token", value, token)
    if kind == 1:
        return word_trigger(value, preserved, vocab)
    return Trigger(TRIGGERS[kind], value)


def word_trigger(word: str, preserved: list[int], vocab: Any) -> Trigger:
    """A trigger on text, or on the one token that the text is."""
    tokens = vocab.encode(word, add_special=False, parse_special=True)
    if len(tokens) != 1:
        return Trigger("word", word)
    if int(tokens[0]) not in preserved:
        raise invalid(f"Grammar trigger word should be marked as preserved token: {word}")
    return Trigger("token", word, int(tokens[0]))
