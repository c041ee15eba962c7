"""The grammar of a call's arguments."""

from collections.abc import Mapping
from typing import Any

from api.parse import schema
from api.parse.lark import ATTRIBUTES, Grammar, sequence
from api.parse.params import CDATA, JsonArgs, TaggedArgs
from api.parse.rawtext import Unenforceable, raw_value

PLAIN = r"TEXT & ~/<!\[CDATA\[(.|\n)*/"
NEWLINE = "\n"
KEY = r"/[A-Za-z0-9_.$-]{1,64}/"


def arguments_rule(args: JsonArgs | TaggedArgs, g: Grammar, name: str, form: Mapping[str, Any]) -> str:
    """The arguments of the function `name`, with the marks around them."""
    inside = g.json(form, name) if isinstance(args, JsonArgs) else tagged_rule(args, g, name, form)
    return sequence(g.mark(args.marks.start), inside, g.mark(args.marks.end))


def tagged_rule(args: TaggedArgs, g: Grammar, name: str, form: Mapping[str, Any]) -> str:
    """Parameters in marks: the required ones, and others."""
    known = schema.properties(form, form)
    needed = schema.required(form)
    required = [parameter_rule(args, g, name, key, known.get(key, True), form) for key in needed]
    optional = [parameter_rule(args, g, name, key, part, form) for key, part in known.items() if key not in needed]
    if open_ended(form):
        optional.append(g.rule(f"{parameter(args, g, KEY, True, form)} WS?", "any_parameter"))
    return g.any_order(required, optional)


def open_ended(form: Mapping[str, Any]) -> bool:
    """Whether parameters may come that the schema does not name."""
    return bool(form.get("additionalProperties", "properties" not in form))


def parameter_rule(args: TaggedArgs, g: Grammar, name: str, key: str, form: Any, root: Any) -> str:
    """The parameter `key` of the function `name`."""
    try:
        return g.rule(f"{parameter(args, g, g.literal(key), form, root)} WS?", f"{name}_{key}")
    except Unenforceable as error:
        error.path = error.path or key
        raise


def parameter(args: TaggedArgs, g: Grammar, key: str, form: Any, root: Any) -> str:
    """One parameter, its key given as an expression."""
    text = "string" in schema.types(form, root)
    end = args.value.end.strip()
    head = f"{g.mark(args.key.start)} {key} {tag_end(args, g, text)}"
    if args.value.start:
        head = sequence(head, g.mark(args.value.start))
    if not text:
        return sequence(head, g.json(schema.part(form, root)), g.mark(end))
    if args.newline:
        return f"{head} {g.literal(NEWLINE)} {raw_value(g, form, root, NEWLINE + end)}"
    if args.cdata:
        quoted = f"{g.literal(CDATA.start)} {g.until(CDATA.end + end)}"
        return f"{head} ({quoted} | {raw_value(g, form, root, end, PLAIN)})"
    return f"{head} {raw_value(g, form, root, end)}"


def tag_end(args: TaggedArgs, g: Grammar, text: bool) -> str:
    """What stands between the key and the value's start."""
    if args.string_flag:
        flag = args.string_flag if text else args.string_flag.replace("true", "false")
        return g.literal(f"{args.key.end} {flag}{args.attributes}")
    if args.attributes:
        return f"{g.literal(args.key.end)} ({ATTRIBUTES})? {g.literal(args.attributes)}"
    return g.mark(args.key.end)
