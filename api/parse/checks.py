"""Whether a JSON schema can be enforced; if not, which keyword at which place is in the way."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher

from api.parse.rawtext import Unenforceable
from api.parse.schema import part
from engine.deep import deeply

MAPS = ("properties", "patternProperties", "$defs", "definitions")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLES = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
KEYWORDS = re.compile(r"Unimplemented keys: \[(.+?)\]")
FORMAT = re.compile(r"Unknown format")


def enforceable(form: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The schema as it will be enforced, and warnings about what is enforced less strictly. Raises `Unenforceable`."""
    text = json.dumps(form)
    relaxed, warnings = _enforceable(text)
    return json.loads(relaxed), list(warnings)


@lru_cache(maxsize=2048)
def _enforceable(text: str) -> tuple[str, tuple[str, ...]]:
    form = json.loads(text)
    if not fault(form):
        return text, ()
    warnings: list[str] = []
    relaxed = relax(form, "", warnings)
    if reason := fault(relaxed):
        raise located(relaxed, relaxed, "", reason)
    return json.dumps(relaxed), tuple(warnings)


def fault(form: Any) -> str:
    """What llguidance has against a schema; nothing if it can enforce it."""
    try:
        message = deeply(LLMatcher.validate_grammar, LLMatcher.grammar_from_json_schema(json.dumps(form)))
    except ValueError as error:
        message = str(error)
    return message.partition("failed to compile JSON schema: ")[2].partition("\n   1 |")[0].strip() or message


def relax(form: Any, path: str, warnings: list[str]) -> Any:
    """`form` with unknown formats, which are annotations, dropped, and overlapping `oneOf`s taken as `anyOf`."""
    if isinstance(form, list):
        return [relax(item, path, warnings) for item in form]
    if not isinstance(form, dict):
        return form
    form = dict(form)
    if isinstance(form.get("format"), str) and FORMAT.search(fault({"type": "string", "format": form["format"]})):
        warnings.append(f"{path or 'schema'}: format {form.pop('format')!r} is not enforced")
    if isinstance(form.get("oneOf"), list) and "anyOf" not in form and "oneOf" in fault({"oneOf": form["oneOf"]}):
        warnings.append(f"{path or 'schema'}: oneOf is enforced as anyOf")
        form["anyOf"] = form.pop("oneOf")
    for inner, child, keys in children(form, path):
        put(form, keys, relax(child, inner, warnings))
    return form


def located(form: Any, root: Any, path: str, reason: str) -> Unenforceable:
    """The fault at the innermost place that has it."""
    for inner, child, _ in children(form, path):
        if why := fault(part(child, root)):
            return located(child, root, inner, why)
    return Unenforceable(culprit(form, root, reason), reason, path)


def culprit(form: Any, root: Any, reason: str) -> str:
    """The keyword of `form` without which it could be enforced."""
    if found := KEYWORDS.search(reason):
        return found[1].replace('"', "")
    if isinstance(form, dict):
        for key in sorted(form, key="type".__eq__):  # the type is blamed last
            if not fault(part({name: item for name, item in form.items() if name != key}, root)):
                return str(key)
    return "schema"


def children(form: Any, path: str) -> Iterator[tuple[str, Any, tuple[str | int, ...]]]:
    """The schemas directly inside `form`: the path of each, itself, and its keys in `form`."""
    if not isinstance(form, dict):
        return
    for key in MAPS:
        if isinstance(form.get(key), dict):
            for name, item in form[key].items():
                yield (f"{path}.{name}" if path else name), item, (key, name)
    for key in LISTS:
        if isinstance(form.get(key), list):
            for i, item in enumerate(form[key]):
                yield path, item, (key, i)
    for key in SINGLES:
        if isinstance(form.get(key), dict):
            yield (f"{path}[]" if key == "items" else path), form[key], (key,)


def put(form: dict[str, Any], keys: tuple[str | int, ...], item: Any) -> None:
    """Replace the schema that stands at `keys`; the containers on the way are copied."""
    if len(keys) == 1:
        form[str(keys[0])] = item
        return
    key, inner = keys
    form[str(key)] = held = form[str(key)].copy()
    held[inner] = item
