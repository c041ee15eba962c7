"""JSON schemas as trees: read within bounds, followed along pointers."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote

from engine.grammar import GrammarError

MAX_TEXT = 1_000_000  # characters
MAX_DEPTH = 100  # of arrays and objects within each other
MAX_VALUES = 100_000  # of JSON

Schema = dict[str, Any]

IN_OBJECTS = ("properties", "patternProperties", "$defs", "definitions")
IN_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")


def read_schema(text: str) -> Any:
    """The schema in `text`. Raises GrammarError when it is too large or nested too deep."""
    if len(text) > MAX_TEXT:
        raise GrammarError(f"the schema has {len(text)} characters, more than {MAX_TEXT}")
    try:
        schema = json.loads(text)
    except RecursionError:
        raise GrammarError(f"the schema is nested more than {MAX_DEPTH} deep") from None
    except ValueError as problem:
        raise GrammarError(f"the schema is not JSON: {problem}") from None
    _measure(schema)
    return schema


def resolve(root: Schema, reference: str) -> Any:
    """What a local reference points to. Raises KeyError."""
    node: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        node = node[int(name)] if isinstance(node, list) and name.isdigit() else node[name]
    return node


def children(schema: Schema) -> Iterator[tuple[str, Any]]:
    """Sub-schemas, each with its pointer from `schema`."""
    for keyword in IN_OBJECTS:
        if isinstance(schema.get(keyword), dict):
            yield from ((f"/{keyword}/{escaped(name)}", child) for name, child in schema[keyword].items())
    for keyword in (*IN_LISTS, "items"):
        if isinstance(schema.get(keyword), list):
            yield from ((f"/{keyword}/{i}", child) for i, child in enumerate(schema[keyword]))
    for keyword in ("items", "additionalItems", "additionalProperties"):
        if isinstance(schema.get(keyword), (dict, bool)):
            yield f"/{keyword}", schema[keyword]


def escaped(name: str) -> str:
    """A member's name within a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def quoted(pointer: str) -> str:
    """A JSON pointer as the fragment of a URI."""
    return quote(pointer, safe="/~$!'()*+,;=:@&")


def _measure(value: Any) -> None:
    """Raise GrammarError when a value is nested too deep or holds too many values. Never recurses."""
    level, n = [value], 1
    for _ in range(MAX_DEPTH + 1):
        nested = [item for item in level if isinstance(item, (dict, list))]
        if not nested:
            return
        level = [child for item in nested for child in (item.values() if isinstance(item, dict) else item)]
        n += len(level)
        if n > MAX_VALUES:
            raise GrammarError(f"the schema holds more than {MAX_VALUES} values")
    raise GrammarError(f"the schema is nested more than {MAX_DEPTH} deep")
