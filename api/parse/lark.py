"""Builds grammars in the notation of llguidance's Lark."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

ANY = r"/(.|\n)*/"
SPACE = r"/ |\n{1,2}[ \t]{0,20}/"  # bounded, so that a model cannot go on with white space for ever
OPTIONS = {"whitespace_pattern": r" |\n{1,2}[ \t]{0,20}"}
ATTRIBUTES = r'/( [a-z_]+="[^"<>\n]{0,40}")+/'
IDENTIFIER = r"/[A-Za-z0-9_:.-]{1,64}/"
MAX_PERMUTED = 4  # required members that may come in any order
NAME_CHAR = re.compile(r"[^a-z0-9_]")


class Grammar:
    """Collects rules. Methods return expressions to be put into other rules.

    `specials` are the vocabulary's control tokens by their text: they match as tokens, never as text.
    """

    def __init__(self, specials: Mapping[str, int] | None = None) -> None:
        self._specials = specials or {}
        self._split = re.compile("|".join(map(re.escape, sorted(self._specials, key=len, reverse=True))) or r"(?!)")
        self._rules: dict[str, str] = {}
        self._names: dict[tuple[str, str], str] = {}

    def source(self, start: str) -> str:
        """The grammar of texts that match `start`."""
        lines = [f"{head}: {body}" for head, body in self._rules.items()]
        return "\n".join([f"start: {start}", f"WS: {SPACE}", f"TEXT: {ANY}", *lines]) + "\n"

    def rule(self, body: str, hint: str = "r", attributes: str = "") -> str:
        """A rule with this body; the same body gives the same rule."""
        key = (body, attributes)
        if key not in self._names:
            name = self._named(hint)
            self._names[key] = name
            self._rules[name + attributes] = body
        return self._names[key]

    def reserve(self, hint: str) -> str:
        """A rule's name whose body is `define`d later, for rules that refer to themselves."""
        name = self._named(hint)
        self._names[(name, "reserved")] = name
        return name

    def _named(self, hint: str) -> str:
        """A new rule's name. It begins with a letter, also where `hint` has none of Lark's letters."""
        name = NAME_CHAR.sub("_", hint.lower())[:40]
        return f"{name if name[:1].isalpha() else 'r' + name}_{len(self._names)}"

    def define(self, name: str, body: str) -> None:
        """Give a reserved rule its body."""
        self._rules[name] = body

    def terminal(self, body: str) -> str:
        """A terminal with this body."""
        key = (body, "terminal")
        if key not in self._names:
            self._names[key] = f"T{len(self._names)}"
            self._rules[self._names[key]] = body
        return self._names[key]

    def literal(self, text: str) -> str:
        """Exactly `text`."""
        parts, pos = [], 0
        for found in self._split.finditer(text):
            parts += [quoted(text[pos : found.start()]), f"<[{self._specials[found.group()]}]>"]
            pos = found.end()
        return " ".join(filter(None, [*parts, quoted(text[pos:])])) or '""'

    def mark(self, text: str) -> str:
        """`text` without the white space around it, which may differ; nothing for an empty one."""
        return self.literal(text.strip()) if text.strip() else ""

    def json(self, schema: Mapping[str, Any], hint: str = "json") -> str:
        """A JSON value of `schema`."""
        return self.rule(f"%json {json.dumps({**schema, 'x-guidance': OPTIONS})}", hint)

    def until(self, end: str, body: str = "TEXT", without: Sequence[str] = ()) -> str:
        """Text that ends in the first `end`; `body` is what it must match, `without` are texts it may not contain."""
        plain = [text for text in without if text and not self._split.search(text)]
        for text in plain:
            body += f" & ~/(.|\\n)*{escaped(text)}(.|\\n)*/"
        if body != "TEXT":
            body = self.terminal(body)
        found = self._split.search(end)
        if found and not found.start():
            return f"{self.rule(body, 'text')} {self.literal(end)}"
        head, tail = (end[: found.start()], end[found.start() :]) if found else (end, "")
        lazy = self.rule(f"{body} {quoted(head)}", "until", "[lazy]")
        return f"{lazy} {self.literal(tail)}" if tail else lazy

    def either(self, options: Iterable[str], hint: str = "either") -> str:
        """One of the expressions."""
        return self.rule(" | ".join(options), hint)

    def members(self, items: Sequence[tuple[str, bool]], separator: str) -> str:
        """Expressions in order, separated; those that are not required may be left out."""
        tail = ""
        head = '""'
        for item, required in reversed(items):
            following = tail
            tail = self.rule(f"{separator} {item} {following}" if required else f"({separator} {item})? {following}")
            head = self.rule(f"{item} {following}" + ("" if required else f" | {head}"))
        return head

    def any_order(self, required: Sequence[str], optional: Sequence[str]) -> str:
        """Each required expression once, in any order if they are few, with optional ones anywhere between."""
        extra = f"({' | '.join(optional)})*" if optional else ""
        if len(required) > MAX_PERMUTED:
            return " ".join(f"{extra} {item}" for item in required) + f" {extra}"
        states: dict[frozenset[int], str] = {frozenset(): extra or '""'}
        return self._permuted(frozenset(range(len(required))), required, extra, states)

    def _permuted(
        self, left: frozenset[int], required: Sequence[str], extra: str, states: dict[frozenset[int], str]
    ) -> str:
        if left not in states:
            ways = [f"{required[i]} {self._permuted(left - {i}, required, extra, states)}" for i in sorted(left)]
            states[left] = f"{extra} {self.rule(' | '.join(ways), 'order')}"
        return states[left]


def quoted(text: str) -> str:
    """A Lark string; nothing for an empty text."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def escaped(text: str) -> str:
    """`text` inside a Lark regular expression."""
    return re.sub(r"([\\/.^$*+?()\[\]{}|#~-])", r"\\\1", text).replace("\n", "\\n")


def sequence(*expressions: str) -> str:
    """Expressions one after the other, with optional white space between."""
    return " WS? ".join(filter(None, expressions))
