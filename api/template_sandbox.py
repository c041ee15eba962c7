"""The jinja2 environment of chat templates: immutable sandbox, Hugging Face's helpers, limits compiled in."""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache, wraps
from typing import Any, NoReturn

from jinja2 import ChainableUndefined, Undefined, nodes, pass_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from api.chat_errors import TemplateError
from api.template_limits import MAX_ITEMS, LimitedContext, LimitExceeded, allow_count, allow_numbers, size

LIST_CHANGES = frozenset(("append", "extend", "insert", "pop"))
ITERATING_FILTERS = ("map", "select", "reject", "selectattr", "rejectattr")


class LimitedCode(CodeGenerator):
    """Compiles a template so that each statement first asks the context whether it may run."""

    def blockvisit(self, nodes: Any, frame: Frame) -> None:
        super().blockvisit([], frame)
        for node in nodes:
            self.writeline("context.tick()")
            super().blockvisit([node], frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("context.concat((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training; here it only stands around it."""

    tags = {"generation"}  # noqa: RUF012 (jinja's own declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Where chat templates run. Compiled templates may be rendered by several threads at once."""

    code_generator_class = LimitedCode
    context_class = LimitedContext
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, loopcontrols],
            undefined=ChainableUndefined,
            cache_size=0,
        )
        self.filters = {name: guarded(name, function) for name, function in self.filters.items()}
        self.filters |= {"tojson": tojson, "_tick": tick}
        del self.globals["lipsum"]
        self.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            if loop.test is not None:
                loop.test = nodes.Filter(loop.test, "_tick", [], [], None, None, environment=self)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if type(obj) is list and attr in LIST_CHANGES:  # the template's own: it is given copies
            return True
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        assert isinstance(context, LimitedContext)
        if operator == "+" and isinstance(left, str) != isinstance(right, str):
            left, right = without_gaps(left, right)
        context.allow_binop(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        assert isinstance(__context, LimitedContext)
        named = [value for key, value in kwargs.items() if key not in ("_loop_vars", "_block_vars")]
        allow_numbers((*args, *named))
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            if method.__name__ == "join" and len(args) == 1 and not isinstance(args[0], str):
                args = (list(args[0]),)
            __context.allow_method(owner, method.__name__, (*args, *named))
        elif isinstance(owner, list) and args:
            allow_count(len(owner) + (len(args[0]) if isinstance(args[0], list) else 1), MAX_ITEMS)
        return super().call(__context, __obj, *args, **kwargs)


@cache
def sandbox() -> TemplateSandbox:
    """The one environment of the process; it holds no state of any rendering."""
    return TemplateSandbox()


def raise_exception(message: str) -> NoReturn:
    """How a template refuses its input."""
    raise TemplateError(str(message))


def strftime_now(format: str) -> str:
    """The local time."""
    return datetime.now().strftime(format)


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face's templates render it: no HTML escapes, text as it is."""
    if size(indent) > 64 or (isinstance(indent, int) and indent > 64):
        raise LimitExceeded("tojson: an indent above 64")
    pair = (separators[0], separators[1]) if separators else None
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=pair, sort_keys=sort_keys)


def without_gaps(left: Any, right: Any) -> tuple[Any, Any]:
    """The terms of a sum with the empty text in place of what is missing; llama.cpp's templates count on it."""

    def filled(value: Any) -> Any:
        return "" if value is None or isinstance(value, Undefined) else value

    return filled(left), filled(right)


@pass_context
def tick(context: LimitedContext, value: Any) -> Any:
    """`value`; stands around the condition of a filtered loop, which is no statement."""
    context.tick()
    return value


def guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """jinja's filter with the checks that its arguments need."""
    if name in ITERATING_FILTERS:
        return ticking(function)
    if name in GROWING_FILTERS:
        return growing(GROWING_FILTERS[name], function)

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        allow_numbers(args[1:])
        allow_numbers(kwargs.values())
        return function(*args, **kwargs)

    return checked


def ticking(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter over many items that looks at the clock for each."""

    @wraps(function)
    def checked(context: LimitedContext, value: Any, *args: Any, **kwargs: Any) -> Any:
        return function(context, context.ticked(() if value is None else value), *args, **kwargs)

    return checked


def growing(method: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that works as the string method of the same name does, and can make as long a text."""
    passes = getattr(function, "jinja_pass_arg", None)

    @pass_context
    def checked(context: LimitedContext, value: Any, *args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        allow_numbers(given)
        if method == "join":
            value = list(value)
            context.allow_method(str(given[0]) if given else "", method, (value,))
        elif method == "%":
            context.allow_format(str(value), "%", given)
        elif method == "indent":
            width = max((item if isinstance(item, int) else size(item) for item in given), default=4)
            context.allow_text(size(value) + str(value).count("\n") * width)
        else:
            context.allow_method(str(value), method, tuple(map(str, given)))
        first = () if passes is None else (context.eval_ctx if passes.name == "eval_context" else context,)
        return function(*first, value, *args, **kwargs)

    return checked


GROWING_FILTERS: Mapping[str, str] = {"replace": "replace", "join": "join", "format": "%", "indent": "indent"}
