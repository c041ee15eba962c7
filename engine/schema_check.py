"""Checks a JSON schema before llguidance compiles it, and puts what people write into the form that it enforces.

Nothing is dropped in silence: a keyword that cannot be enforced is a GrammarError with its place, as a JSON pointer.
"""

import json
import logging
import re
from typing import Any
from urllib.parse import unquote

from engine.grammar import GrammarError
from engine.pattern import PatternError, rust_pattern
from engine.schema_close import close, count_by_names, is_merged
from engine.schema_tree import IN_LISTS, IN_OBJECTS, Schema, children, quoted, resolve

log = logging.getLogger(__name__)

MAX_NODES = 10_000  # schemas
MAX_PROPERTIES = 1000  # of one object: the time for a key's mask grows with the square
MAX_EXACT = 1 << 53  # integers beyond are not exact in JSON

REFUSED = frozenset(
    {
        "not",
        "if",
        "contains",
        "minContains",
        "propertyNames",
        "dependentSchemas",
        "dependentRequired",
        "dependencies",
        "unevaluatedItems",
        "$dynamicRef",
        "$recursiveRef",
    }
)
DROPPED = ("$schema", "$id", "id", "then", "else", "maxContains", "uniqueItems", "unevaluatedProperties")
TYPES = frozenset({"null", "boolean", "object", "array", "number", "string", "integer"})
FORMATS = frozenset({"date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"})
_MERGED = "llamarada-merged-"  # names definitions that stay open because something else is merged with them
SIZES = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")


def prepare_schema(schema: Any) -> Schema:
    """`schema` as llguidance enforces it. Raises GrammarError, which names place and keyword."""
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise GrammarError("a schema must be an object" if schema is not False else "nothing matches the schema false")
    return _Preparation(schema).run()


class _Preparation:
    """Walks over the schema and everything it refers to, and changes its own copy of it."""

    def __init__(self, schema: Schema) -> None:
        self._original = schema
        self._root: Schema = _copy(schema)
        self._seen: set[int] = set()
        self._opened: dict[str, str] = {}  # references to what is merged with something else, and their copies
        self._todo: list[tuple[Any, str, bool]] = []

    def run(self) -> Schema:
        self._todo.append((self._root, "", False))
        while self._todo:
            self._visit(*self._todo.pop())
        return self._root

    def _visit(self, schema: Any, place: str, is_part: bool) -> None:
        """`is_part`: other schemas speak about the same value, so that this one may not close an object."""
        if isinstance(schema, bool) or id(schema) in self._seen:
            return
        if not isinstance(schema, dict):
            raise self._error(place, None, "a schema must be an object or a boolean")
        self._seen.add(id(schema))
        if len(self._seen) > MAX_NODES:
            raise GrammarError(f"more than {MAX_NODES} schemas")
        self._check(schema, place)
        is_merged_here = is_part or is_merged(schema)
        if not is_part:
            close(schema, lambda reference: self._resolve(reference, place))
            if not count_by_names(schema):
                raise self._error(place, "minProperties, maxProperties", "not supported beside optional properties")
        for keyword in DROPPED:
            schema.pop(keyword, None)
        for pointer, child in children(schema):
            joins = pointer.startswith(("/allOf/", "/anyOf/", "/oneOf/"))
            self._todo.append((child, place + pointer, joins and is_merged_here))
        if "$ref" in schema:
            self._follow(schema, place, is_merged_here)

    def _check(self, schema: Schema, place: str) -> None:
        _name_by_pattern(schema)
        for keyword in schema:
            if keyword in REFUSED:
                raise self._error(place, keyword, "not supported")
        if schema.get("uniqueItems") not in (None, False):
            raise self._error(place, "uniqueItems", "not supported")
        if schema.get("unevaluatedProperties") not in (None, True, False):
            raise self._error(place, "unevaluatedProperties", "a schema is not supported here")
        self._check_types(schema, place)
        self._check_properties(schema, place)
        self._check_pattern(schema, place)
        self._check_format(schema, place)
        self._check_sizes(schema, place)
        self._check_bounds(schema, place)
        self._check_exact(schema, place)

    def _check_types(self, schema: Schema, place: str) -> None:
        given = schema.get("type")
        for name in given if isinstance(given, list) else [given] if "type" in schema else []:
            if not isinstance(name, str) or name not in TYPES:
                raise self._error(place, "type", f"{json.dumps(name)} is unknown")
        for keyword in IN_LISTS:
            if keyword in schema and not (isinstance(schema[keyword], list) and schema[keyword]):
                raise self._error(place, keyword, "must be a non-empty array")

    def _check_properties(self, schema: Schema, place: str) -> None:
        for keyword in IN_OBJECTS:
            if not isinstance(schema.get(keyword, {}), dict):
                raise self._error(place, keyword, "must be an object")
        if len(schema.get("properties", ())) > MAX_PROPERTIES:
            raise self._error(place, "properties", f"more than {MAX_PROPERTIES} members")
        required = schema.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise self._error(place, "required", "must be an array of strings")

    def _check_pattern(self, schema: Schema, place: str) -> None:
        try:
            if isinstance(schema.get("pattern"), str):
                schema["pattern"] = rust_pattern(schema["pattern"])
        except PatternError as problem:
            raise self._error(place, "pattern", str(problem)) from None
        try:
            if "patternProperties" in schema:
                members = schema["patternProperties"].items()
                schema["patternProperties"] = {rust_pattern(name): child for name, child in members}
        except PatternError as problem:
            raise self._error(place, "patternProperties", str(problem)) from None

    def _check_format(self, schema: Schema, place: str) -> None:
        """An unknown format is an annotation, as JSON Schema says; so is any format of something else than a string."""
        name = schema.get("format")
        if name is not None and name not in FORMATS:
            log.info("json_schema, #%s: format %r is taken as an annotation", place, name)
            del schema["format"]

    def _check_sizes(self, schema: Schema, place: str) -> None:
        for keyword in SIZES:
            size = schema.get(keyword, 0)
            if isinstance(size, bool) or not isinstance(size, (int, float)) or size < 0 or size != int(size):
                raise self._error(place, keyword, "must be a whole number, 0 or more")

    def _check_bounds(self, schema: Schema, place: str) -> None:
        """Leave out bounds that only numbers break which JSON cannot hold exactly; keep integers to exact ones."""
        for keyword in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
            bound = schema.get(keyword)
            if not isinstance(bound, (int, float)) or abs(bound) <= MAX_EXACT:
                continue
            if (bound > 0) != ("ax" in keyword):
                raise self._error(place, keyword, f"beyond {MAX_EXACT}")
            log.warning("json_schema, #%s: %s %s is left out", place, keyword, bound)
            del schema[keyword]
        if _is_plain_integer(schema):
            if "exclusiveMinimum" not in schema:
                schema.setdefault("minimum", 1 - MAX_EXACT)
            if "exclusiveMaximum" not in schema:
                schema.setdefault("maximum", MAX_EXACT - 1)

    def _check_exact(self, schema: Schema, place: str) -> None:
        for keyword in ("const", "enum"):
            if _has_inexact(schema.get(keyword)):
                raise self._error(place, keyword, f"an integer beyond {MAX_EXACT}")

    def _follow(self, schema: Schema, place: str, is_merged_here: bool) -> None:
        """Prepare what a reference points to; where it is merged, a copy of it that stays open."""
        reference = schema["$ref"]
        target = self._resolve(reference, place)
        if not is_merged_here:
            self._todo.append((resolve(self._root, reference), unquote(reference[1:]), False))
            schema["$ref"] = "#" + quoted(unquote(reference[1:]))
        else:
            if reference not in self._opened:
                self._opened[reference] = f"{_MERGED}{len(self._opened)}"
                opened = _copy(target)
                self._root.setdefault("$defs", {})[self._opened[reference]] = opened
                self._todo.append((opened, unquote(reference[1:]), True))
            schema["$ref"] = f"#/$defs/{self._opened[reference]}"

    def _resolve(self, reference: Any, place: str) -> Any:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise self._error(place, "$ref", f"{json.dumps(reference)} is not of the form #/…")
        try:
            return resolve(self._original, reference)
        except (KeyError, IndexError, TypeError):
            raise self._error(place, "$ref", f"{json.dumps(reference)} points to nothing") from None

    def _error(self, place: str, keyword: str | None, problem: str) -> GrammarError:
        return GrammarError(f"at #{place}: {f'{keyword!r}: ' if keyword else ''}{problem}")


def _name_by_pattern(schema: Schema) -> None:
    """`propertyNames` of a plain map, put as the pattern of its properties."""
    names, values = schema.get("propertyNames"), schema.get("additionalProperties", {})
    if not isinstance(names, dict) or values is False or "properties" in schema or "patternProperties" in schema:
        return
    wanted = set(names) - {"type", "title", "description"}
    if wanted == {"enum"} and isinstance(names["enum"], list):
        texts = [re.escape(name) for name in names["enum"] if isinstance(name, str)]
        pattern = f"^(?:{'|'.join(texts)})$" if texts else "[^\\s\\S]"
    elif wanted <= {"pattern"} and isinstance(names.get("pattern", ""), str):
        pattern = names.get("pattern", "")
    else:
        return
    del schema["propertyNames"]
    schema["patternProperties"], schema["additionalProperties"] = {pattern: values}, False


def _copy(schema: Any) -> Any:
    return json.loads(json.dumps(schema))  # several times as fast as `copy.deepcopy`


def _is_plain_integer(schema: Schema) -> bool:
    """Whether nothing but bounds limits the digits of an integer here; a model may go on with them for ever."""
    types = schema.get("type")
    types = types if isinstance(types, list) else [types]
    return "integer" in types and "number" not in types and not {"const", "enum", "multipleOf"} & schema.keys()


def _has_inexact(value: Any) -> bool:
    if isinstance(value, (list, dict)):
        return any(_has_inexact(item) for item in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and abs(value) > MAX_EXACT
