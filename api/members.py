"""Typed reading of JSON objects that have no schema of their own; every fault is a 400 that names the place."""

from collections.abc import Mapping
from typing import Any

from api.errors import invalid
from api.fields import kind_of

Object = Mapping[str, Any]


def an_object(value: Any, place: str) -> dict[str, Any]:
    """`value`, which must be an object."""
    if not isinstance(value, dict):
        raise invalid(f"Field '{place}': type must be an object, but is {kind_of(value)}")
    return value


def a_text(value: Any, place: str) -> str:
    """`value`, which must be a string."""
    if not isinstance(value, str):
        raise invalid(f"Field '{place}': type must be a string, but is {kind_of(value)}")
    return value


def a_list(value: Any, place: str) -> list[Any]:
    """`value`, which must be an array."""
    if not isinstance(value, list):
        raise invalid(f"Field '{place}': type must be an array, but is {kind_of(value)}")
    return value


def objects(value: Any, place: str) -> list[dict[str, Any]]:
    """`value`, which must be an array of objects; null is an empty one."""
    if value is None:
        return []
    return [an_object(item, f"{place}[{index}]") for index, item in enumerate(a_list(value, place))]


def text(owner: Object, key: str, place: str) -> str:
    """The string member `key` of the object at `place`."""
    return a_text(owner.get(key), f"{place}.{key}" if place else key)


def text_or(owner: Object, key: str, place: str, default: str = "") -> str:
    """The string member `key`, `default` when it is absent or null."""
    return default if owner.get(key) is None else text(owner, key, place)


def object_or_none(owner: Object, key: str) -> dict[str, Any] | None:
    """The object member `key` of a request, None when it is absent or null."""
    value = owner.get(key)
    return None if value is None else an_object(value, key)


def boolean_or(owner: Object, key: str, default: bool) -> bool:
    """The boolean member `key` of a request."""
    value = owner.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise invalid(f"Field '{key}': type must be a boolean, but is {kind_of(value)}")
    return value
