"""Closes JSON that was cut short, so that an answer which hit its limit can be sent back as history."""

import json
import re
from typing import Any

CUT_WORD = re.compile(r"[\w.+-]+$")
CUT_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\(u[0-9a-fA-F]{0,3})?$")


def closed_json(text: str) -> Any | None:
    """The object that begins with `text`, closed where it was cut; None if nothing is missing at its end."""
    closers, quoted = open_ends(text)
    if not closers:
        return None
    if quoted:
        text = CUT_ESCAPE.sub(r"\1", text) + '"'
    bare = text if quoted else CUT_WORD.sub("null", text.rstrip())
    for candidate in (text, bare, f"{bare}:null", f"{bare}null", bare.rstrip(" ,\n")):
        try:
            return json.loads(candidate + closers)
        except ValueError:
            continue
    return None


def open_ends(text: str) -> tuple[str, bool]:
    """The brackets that are still to be closed, innermost first, and whether the text stops inside a string."""
    closers: list[str] = []
    quoted = escaped = False
    for character in text:
        if escaped:
            escaped = False
        elif quoted:
            escaped = character == "\\"
            quoted = character != '"'
        elif character == '"':
            quoted = True
        elif character in "{[":
            closers.append("}" if character == "{" else "]")
        elif character in "}]" and closers:
            closers.pop()
    return "".join(reversed(closers)), quoted
