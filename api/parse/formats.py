"""Which format a template's model answers in."""

from api.parse.calls import JsonCalls
from api.parse.families import known
from api.parse.format import Format
from api.parse.infer import infer
from api.parse.layout import Pair, Thinking
from api.parse.trial import Render

HERMES = Format("hermes", calls=JsonCalls(call=Pair("<tool_call>", "</tool_call>")))
PLAIN = Format("content-only")
TAUGHT = {"hermes": HERMES.calls}  # call syntaxes that a prompt can teach a model whose template has none


def find_format(source: str, render: Render) -> Format:
    """The format of the template `source`; raises `FormatError`. Renders it some thirty times, so once per template."""
    return known(source) or infer(source, render)


def thinking_of(format: Format) -> Thinking | None:
    """The marks for a reasoning budget."""
    return format.thinking
