"""An argument object built from separate parameters, for formats that write each in marks of its own."""

import json

from api.parse import schema
from api.parse.jsontext import escape, mended
from api.parse.output import CallSink


class Arguments:
    """Writes `{"name":value,…}` into a call, piece by piece."""

    def __init__(self, sink: CallSink) -> None:
        self._sink = sink
        self._any = False
        self._schemas = schema.properties(sink.schema, sink.schema)

    def types(self, name: str) -> frozenset[str]:
        """The JSON types the parameter may have; all of them for one that the tool does not name."""
        if name not in self._schemas:
            return schema.ALL
        return schema.types(self._schemas[name], self._sink.schema)

    def key(self, name: str) -> None:
        """Begin a parameter."""
        self._sink.write(("," if self._any else "{") + json.dumps(name, ensure_ascii=False) + ":")
        self._any = True

    def raw(self, text: str) -> None:
        """Write JSON text."""
        self._sink.write(text)

    def close(self) -> None:
        """The call is complete."""
        if self._any:
            self._sink.write("}")
        self._sink.close()

    def string(self, newline: bool = False) -> "StringSink":
        """Begin a string value."""
        return StringSink(self._sink, newline)

    def value(self, text: str, types: frozenset[str]) -> None:
        """Write a value from its text: JSON or a Python literal of a type that fits, else a string."""
        value = mended(text)
        if value is None or (schema.type_of(json.loads(value)) not in types and "string" in types):
            value = json.dumps(text, ensure_ascii=False)
        self._sink.write(value)


class StringSink:
    """Writes raw text into the arguments as one JSON string; with `newline` without the line breaks around it."""

    def __init__(self, sink: CallSink, newline: bool) -> None:
        self._sink = sink
        self._newline = newline
        self._first = newline
        self._held = ""
        sink.write('"')

    def write(self, text: str) -> None:
        """Add text."""
        if self._first and text:
            text = text.removeprefix("\n")
            self._first = False
        text, self._held = self._held + text, ""
        if self._newline and text.endswith("\n"):
            text, self._held = text[:-1], "\n"
        if text:
            self._sink.write(escape(text))

    def close(self) -> None:
        """The value is complete."""
        self._sink.write('"')
