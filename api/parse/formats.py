"""Which format a template's model answers in."""

from dataclasses import replace
from typing import Any

from api.capabilities import Renders
from api.parse.calls import JsonCalls
from api.parse.families import known
from api.parse.format import Format
from api.parse.infer import FormatError, infer
from api.parse.layout import Pair
from api.parse.trial import Render

HERMES = Format("hermes", calls=JsonCalls(call=Pair("<tool_call>", "</tool_call>")))
CONTENT_ONLY = Format("content-only")
TAUGHT = {HERMES.name: HERMES}

__all__ = ["CONTENT_ONLY", "HERMES", "FormatError", "find_format", "renderer", "shown_apart", "taught"]


def renderer(template: Renders, typed: bool = False) -> Render:
    """How a trial renders `template`; `typed` if that takes contents only as lists of parts."""

    def render(messages: list[dict[str, Any]], tools: list[dict[str, Any]], variables: dict[str, Any]) -> str:
        options = dict(variables)
        asking, thinking = options.pop("add_generation_prompt", True), options.pop("enable_thinking", True)
        turns = [turn | {"content": parts_of(turn["content"])} for turn in messages] if typed else messages
        return template.render(turns, tools, add_generation_prompt=asking, enable_thinking=thinking, kwargs=options)

    return render


def parts_of(content: Any) -> Any:
    """A text as a list of typed parts."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def find_format(source: str, render: Render) -> Format:
    """The format of the template `source`; raises `FormatError`. Renders it some twenty times: keep what it returns."""
    return known(source) or infer(source, render)


def taught(format: Format, tool_format: str | None) -> Format:
    """`format` with the calls that the prompt taught the model, if it did."""
    return replace(format, calls=TAUGHT[tool_format].calls) if tool_format else format


def shown_apart(reasoning_format: str, stream: bool) -> bool:
    """Whether thinking goes to `reasoning_content`, by the request's `reasoning_format`."""
    return reasoning_format != "none" and not (reasoning_format == "deepseek-legacy" and stream)
