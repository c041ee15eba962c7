"""Closes objects: unless a schema says otherwise, an object with declared properties has no others.

JSON Schema leaves such objects open. A model that may invent keys does, so the peer closes them, and what it then
writes is valid by the open schema too.
"""

from collections.abc import Callable
from typing import Any

from engine.schema_tree import Schema

_OF_OBJECTS = ("properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties")
_JOINED = ("allOf", "anyOf", "oneOf")
_OPEN = ("additionalProperties", "patternProperties")

Resolve = Callable[[Any], Any]


def is_merged(schema: Schema) -> bool:
    """Whether several schemas speak about one object here, so that none of them alone knows all its keys."""
    voices = int(any(keyword in schema for keyword in _OF_OBJECTS)) + ("$ref" in schema)
    voices += len(schema.get("allOf", ())) + ("anyOf" in schema) + ("oneOf" in schema)
    return voices > 1


def close(schema: Schema, resolve: Resolve) -> None:
    """Allow no other properties than those that are named in `schema` and what is merged into it."""
    wants_closed = schema.get("unevaluatedProperties") is False
    names: dict[str, None] = {}
    if is_merged(schema):
        closable = _collect(schema, resolve, names, set())
    else:
        closable = ("properties" in schema or wants_closed) and not any(keyword in schema for keyword in _OPEN)
        names.update(dict.fromkeys(_named(schema)))
    if schema.get("unevaluatedProperties") is True or not closable or not (names or wants_closed):
        return
    if len(names) < schema.get("minProperties", 0):
        return
    properties = schema.setdefault("properties", {})
    for name in names:
        properties.setdefault(name, {})
    schema["additionalProperties"] = False


def count_by_names(schema: Schema) -> bool:
    """Put bounds on the number of properties in terms of their names, which is how optional ones can be counted."""
    properties, required = schema.get("properties", {}), set(schema.get("required", ()))
    optional = [name for name in properties if name not in required]
    if not optional:
        return True
    if schema.get("minProperties", 0) <= len(required):
        schema.pop("minProperties", None)
    if schema.get("additionalProperties") is False and schema.get("maxProperties", 0) >= len(properties):
        schema.pop("maxProperties", None)
    if schema.get("minProperties") == len(required) + 1 and "anyOf" not in schema:
        del schema["minProperties"]
        schema["anyOf"] = [{"required": [name]} for name in optional]
    return "minProperties" not in schema and "maxProperties" not in schema


def _collect(schema: Any, resolve: Resolve, names: dict[str, None], seen: set[str]) -> bool:
    """Gather the names of properties; False when `schema` leaves the object open on purpose."""
    if not isinstance(schema, dict):
        return True
    if any(keyword in schema for keyword in _OPEN):
        return False
    names.update(dict.fromkeys(_named(schema)))
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        seen.add(reference)
        if not _collect(resolve(reference), resolve, names, seen):
            return False
    branches = [branch for keyword in _JOINED for branch in _list(schema, keyword)]
    return all(_collect(branch, resolve, names, seen) for branch in branches)


def _named(schema: Schema) -> list[str]:
    properties = schema.get("properties")
    declared = list(properties) if isinstance(properties, dict) else []
    return declared + [name for name in _list(schema, "required") if isinstance(name, str)]


def _list(schema: Schema, keyword: str) -> list[Any]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []
