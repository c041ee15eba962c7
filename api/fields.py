"""One field of a request: its names, type, limits, default and the place its value goes to."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol

from api.errors import ApiError, invalid

INT32_MAX = 2**31 - 1
Limits = tuple[float, float]


class Reader(Protocol):
    """Turns the JSON value of a structured field into the value that is stored; ValueError says what is wrong."""

    def __call__(self, value: Any, vocab: Any, /) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A row of the request schema.

    `into` is a path below `Params`; `source` one below `Config`, whose value is the default.
    `none` is the number by which clients say "not set", stored as None. `settings` says where the value is
    shown again: "reduced" (also in /props and /slots), "full" (answers only) or "" (nowhere).
    """

    name: str
    kind: str  # "int", "float", "bool", "str" or the description of a structured value
    into: str
    help: str
    aliases: tuple[str, ...] = ()
    hard: Limits | None = None
    clamp: Limits | None = None
    none: int | None = None
    source: str = ""
    read: Reader | None = None
    show: Callable[[Any], Any] | None = None
    settings: str = ""
    least: bool = False  # of several aliases the smallest counts, not the first

    def find(self, body: Mapping[str, Any]) -> tuple[str, Any] | None:
        """The name used in `body` and its value, or None when absent or null."""
        value = body.get(self.name)
        if value is not None:
            return self.name, value
        given = [(name, body[name]) for name in self.aliases if body.get(name) is not None]
        if self.least and len(given) > 1:
            return min(given, key=lambda item: unlimited(item[1], self.none))
        return given[0] if given else None

    def parse(self, name: str, value: Any, vocab: Any) -> Any:
        """The checked value; raises `ApiError` that names the field."""
        try:
            if self.read is not None:
                return self.read(value, vocab)
            return self.number(READ[self.kind](value))
        except ValueError as error:
            raise invalid(f"Field '{name}': {error}") from None

    def number(self, value: Any) -> Any:
        """Apply limits and the number for "none"."""
        if self.hard is not None and not self.hard[0] <= value <= self.hard[1]:
            bounds = f"{shown(self.hard[0])} <= value <= {shown(self.hard[1])}"
            raise ValueError(f"Value must be between {bounds}, but got {shown(value)}")
        if self.none is not None and value == self.none:
            return None
        if self.clamp is not None:
            low, high = self.clamp
            return type(value)(min(max(value, low), high))
        return value

    def put(self, params: Any, value: Any) -> None:
        """Store `value` where the field belongs."""
        owner, _, attribute = self.into.rpartition(".")
        setattr(attrgetter(owner)(params) if owner else params, attribute, value)

    def get(self, params: Any) -> Any:
        """The stored value in the form that clients read."""
        value = attrgetter(self.into)(params)
        if value is None and self.none is not None:
            return self.none
        return self.show(value) if self.show is not None else value


def unlimited(value: Any, none: int | None) -> float:
    """Sort key: the number for "no limit" is larger than any other."""
    if isinstance(value, (int, float)) and value != none:
        return float(value)
    return math.inf


def shown(number: float) -> str:
    """A number as an error message shows it."""
    return f"{number:g}" if isinstance(number, float) else str(number)


def integer(value: Any) -> int:
    """A JSON number without fraction, within 64 bits."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"type must be an integer, but is {kind_of(value)}")
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"Value is out of range: {value}")
    return value


def real(value: Any) -> float:
    """A finite JSON number that a float32 can hold."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ValueError(f"type must be a number, but is {kind_of(value)}")
    if not -3.4e38 <= value <= 3.4e38:
        raise ValueError(f"Value is out of range: {value}")
    return float(value)


def boolean(value: Any) -> bool:
    """A JSON boolean."""
    if not isinstance(value, bool):
        raise ValueError(f"type must be a boolean, but is {kind_of(value)}")
    return value


def string(value: Any) -> str:
    """A JSON string."""
    if not isinstance(value, str):
        raise ValueError(f"type must be a string, but is {kind_of(value)}")
    return value


def strings(value: Any) -> list[str]:
    """A JSON array of strings."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("type must be an array of strings")
    return value


def kind_of(value: Any) -> str:
    """The name of a decoded value's JSON type."""
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "an array"}
    return names.get(type(value), "an object")


def flag(body: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """An optional boolean of a request body that has no schema of its own."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ApiError(400, f"Field '{name}': type must be a boolean, but is {kind_of(value)}")
    return value


READ: dict[str, Callable[[Any], Any]] = {"int": integer, "float": real, "bool": boolean, "str": string}
