"""What a JSON schema lets a value be, as far as parsing needs to know."""

from typing import Any

ALL = frozenset({"string", "number", "boolean", "null", "object", "array"})
MAX_DEPTH = 20


def properties(schema: Any, root: Any, depth: int = 0) -> dict[str, Any]:
    """The properties of an object schema, through references and combinations."""
    schema = resolve(schema, root)
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return {}
    found: dict[str, Any] = {}
    for key in ("allOf", "anyOf", "oneOf"):
        for part in _list(schema.get(key)):
            found |= properties(part, root, depth + 1)
    own = schema.get("properties")
    return found | own if isinstance(own, dict) else found


def required(schema: Any) -> list[str]:
    """The names an object schema requires."""
    names = schema.get("required") if isinstance(schema, dict) else None
    return [name for name in _list(names) if isinstance(name, str)]


def resolve(schema: Any, root: Any) -> Any:
    """The schema that `schema` refers to inside `root`, itself without a reference."""
    for _ in range(MAX_DEPTH):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#"):
            break
        schema = _pointer(root, reference[1:])
    return schema


def types(schema: Any, root: Any, depth: int = 0) -> frozenset[str]:
    """The JSON types a value may have; "number" stands for integers too."""
    schema = resolve(schema, root)
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return ALL
    found = _own_types(schema)
    for key in ("anyOf", "oneOf"):
        if parts := _list(schema.get(key)):
            found &= frozenset().union(*(types(part, root, depth + 1) for part in parts))
    for part in _list(schema.get("allOf")):
        found &= types(part, root, depth + 1)
    return found


def _own_types(schema: dict[str, Any]) -> frozenset[str]:
    if "const" in schema:
        return frozenset({type_of(schema["const"])})
    if "enum" in schema:
        return frozenset(map(type_of, _list(schema["enum"])))
    names = schema.get("type")
    names = [names] if isinstance(names, str) else _list(names)
    if not names:
        return ALL
    return frozenset("number" if name == "integer" else name for name in names)


def type_of(value: Any) -> str:
    """The JSON type of `value`."""
    match value:
        case bool():
            return "boolean"
        case None:
            return "null"
        case str():
            return "string"
        case int() | float():
            return "number"
        case list():
            return "array"
    return "object"


def part(form: Any, root: Any) -> dict[str, Any]:
    """A schema inside `root` as a schema of its own, with what it refers to."""
    if form is True or form is None:
        return {}
    if not isinstance(form, dict):
        return {"not": {}}
    if not _refers(form):
        return form
    return {**rebased(form), "$defs": {"root": rebased(root)}}


def rebased(form: Any) -> Any:
    """`form` with its references into the root pointed at `#/$defs/root`."""
    if isinstance(form, list):
        return [rebased(item) for item in form]
    if not isinstance(form, dict):
        return form
    return {
        key: f"#/$defs/root{item[1:]}" if key == "$ref" and isinstance(item, str) and item[:1] == "#" else rebased(item)
        for key, item in form.items()
    }


def _refers(form: Any) -> bool:
    if isinstance(form, dict):
        return isinstance(form.get("$ref"), str) or any(map(_refers, form.values()))
    return isinstance(form, list) and any(map(_refers, form))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _pointer(root: Any, path: str) -> Any:
    for part in path.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(root, dict):
            root = root.get(part)
        elif isinstance(root, list) and part.isdigit() and int(part) < len(root):
            root = root[int(part)]
        else:
            return None
    return root
