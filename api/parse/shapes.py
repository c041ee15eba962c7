"""Grammars of nested values in notations that are not JSON, made from a schema."""

import json
from collections.abc import Mapping
from typing import Any

from api.parse import schema
from api.parse.lark import Grammar
from api.parse.rawtext import Unenforceable, raw_value

SCALARS = {"number", "boolean", "null"}
UNKNOWN = ("patternProperties", "propertyNames", "prefixItems", "not", "if", "contains", "uniqueItems")


class Shapes:
    """Turns schemas into expressions. `end` is what closes a value, in notations where something does."""

    def __init__(self, g: Grammar, root: Any) -> None:
        self.g = g
        self.root = root
        self._rules: dict[str, str] = {}

    def value(self, form: Any, end: str = "") -> str:
        """A value of `form` and its `end`."""
        form = schema.resolve(form, self.root)
        if not isinstance(form, Mapping):
            form = {}
        key = json.dumps([form, end], sort_keys=True)
        if key not in self._rules:
            self._rules[key] = self.g.reserve("value")
            self.g.define(self._rules[key], self._body(form, end))
        return self._rules[key]

    def _body(self, form: Mapping[str, Any], end: str) -> str:
        for keyword in UNKNOWN:
            if keyword in form:
                raise Unenforceable(keyword, f"{keyword} is not supported in this model's call format")
        options = form.get("anyOf") or form.get("oneOf")
        if isinstance(options, list):
            return " | ".join(self.value(option, end) for option in options)
        if "enum" in form or "const" in form:
            choices = [form["const"]] if "const" in form else form["enum"]
            return " | ".join(f"{self.g.literal(self.spelled(choice))} {self.g.literal(end)}" for choice in choices)
        return " | ".join(self._typed(form, kind, end) for kind in sorted(schema.types(form, self.root))) or '""'

    def _typed(self, form: Mapping[str, Any], kind: str, end: str) -> str:
        if kind == "string":
            return self.text({key: item for key, item in form.items() if key != "type"}, end)
        if kind == "object":
            return self.object(form, schema.properties(form, self.root), schema.required(form), end)
        if kind == "array":
            return self.array(form, end)
        return f"{self.scalar(form, kind)} {self.g.literal(end)}"

    def scalar(self, form: Mapping[str, Any], kind: str) -> str:
        """A number, boolean or null."""
        if kind == "number" and form.get("type") in ("integer", ["integer"]):
            kind = "integer"
        limits = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
        return self.g.json({"type": kind} | {key: form[key] for key in limits if key in form})

    def text(self, form: Mapping[str, Any], end: str) -> str:
        """A string."""
        return raw_value(self.g, form, self.root, end)

    def spelled(self, value: Any) -> str:
        """A given value."""
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def object(self, form: Mapping[str, Any], known: Mapping[str, Any], needed: list[str], end: str) -> str:
        """An object with the `known` properties, some `needed`."""
        raise NotImplementedError

    def array(self, form: Mapping[str, Any], end: str) -> str:
        """An array."""
        raise NotImplementedError


def repeated(item: str, separator: str, form: Mapping[str, Any]) -> str:
    """`item` as often as an array schema allows."""
    low, high = form.get("minItems", 0), form.get("maxItems")
    if high == 0:
        return ""
    rest = f"({separator} {item}){{{max(low - 1, 0)},{'' if high is None else high - 1}}}"
    return f"{item} {rest}" if low else f"({item} {rest})?"


def object_form(form: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a call's arguments, which are an object whatever the schema says."""
    return {**form, "type": "object"}
