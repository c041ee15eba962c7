"""Grammars of values that a format writes as raw text, where JSON's own grammar is of no use."""

import json
import re
from collections.abc import Mapping
from typing import Any

from api.parse import schema
from api.parse.lark import Grammar

LENGTHS = ("minLength", "maxLength")


class Unenforceable(ValueError):
    """A schema asks for what a constraint cannot enforce: the keyword, and the path of properties to it."""

    def __init__(self, keyword: str, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.keyword = keyword
        self.path = path


def raw_value(g: Grammar, form: Any, root: Any, end: str, body: str = "TEXT") -> str:
    """The text of a value that may be a string, of the pattern `body`, with the `end` after it."""
    form = schema.resolve(form, root)
    if not isinstance(form, Mapping):
        return g.until(end, body)
    for key in ("anyOf", "oneOf"):
        if isinstance(options := form.get(key), list) and options:
            return g.either((raw_option(g, option, root, end, body) for option in options), "value")
    if "allOf" in form:
        raise Unenforceable("allOf", "a combination of schemas for a parameter that is written as raw text")
    choices = [form["const"]] if "const" in form else form.get("enum")
    if isinstance(choices, list) and choices:
        return f"({' | '.join(g.literal(spelled(choice)) for choice in choices)}) {g.literal(end)}"
    if any(key in form for key in LENGTHS):
        low, high = form.get("minLength", 0), form.get("maxLength", "")
        body += f" & /(.|\\n){{{low},{high}}}/"
    if "pattern" in form:
        body += f" & {pattern(str(form['pattern']))}"
    return g.until(end, body)


def raw_option(g: Grammar, form: Any, root: Any, end: str, body: str) -> str:
    """One of the schemas that a value may follow."""
    if "string" in schema.types(form, root):
        return raw_value(g, form, root, end, body)
    return f"{g.json(schema.part(form, root))} WS? {g.mark(end)}"


def spelled(value: Any) -> str:
    """A value as it is written where strings have no quotes."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def pattern(text: str) -> str:
    """A Lark pattern of the texts in which a schema's `pattern` is found. Raises `Unenforceable`."""
    plain = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "", text)  # without escapes and classes
    if re.search(r"\(\?(?:[=!]|<[=!])", plain):
        raise Unenforceable("pattern", f"look-around in {text!r} is not supported")
    start, end = plain.startswith("^"), plain.endswith("$")
    inside = plain[start : len(plain) - end]
    if re.search(r"[$^]", inside) or ((start or end) and "|" in re.sub(r"\([^()]*\)", "", inside)):
        raise Unenforceable("pattern", f"an anchor inside {text!r} is not supported here")
    core = re.sub(r"(?<!\\)/", r"\\/", text[start : len(text) - end])
    return f"/{'' if start else ANYTHING}({core}){'' if end else ANYTHING}/"


ANYTHING = r"(.|\n)*"
