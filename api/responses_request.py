"""From a body of the Responses API to one of chat completions: `spec/chat.md` §8.1."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from api.errors import invalid
from api.members import Object, an_object, boolean_or, object_or_none, objects, text, text_or
from api.responses_items import Item, input_items, messages_of

LOGPROBS = "message.output_text.logprobs"
# What is read here, or says nothing to a chat completion.
OWN = frozenset({
    "input", "instructions", "max_output_tokens", "reasoning", "tools", "tool_choice", "text", "include",
    "store", "previous_response_id", "metadata", "truncation", "background", "conversation", "prompt",
    "stream_options", "max_tool_calls", "service_tier", "top_logprobs", "messages", "n", "n_cmpl", "echo",
})  # fmt: skip
MODES = ("auto", "none", "required")


class ResponseRequest(Struct):
    """A checked request: the chat body that answers it, and what only the Responses API knows."""

    chat: dict[str, Any]
    items: list[Item]  # of the request itself, without the earlier ones
    body: dict[str, Any]
    previous: str | None = None
    store: bool | None = None  # None: as the server has it
    warnings: list[str] = []


def read_request(body: dict[str, Any], earlier: Sequence[Item] = ()) -> ResponseRequest:
    """Check `body` and map it; `earlier`: items of the responses that it continues. Raises `ApiError` 400."""
    refuse(body)
    items = input_items(body.get("input"))
    chat = {key: value for key, value in body.items() if key not in OWN}
    chat["messages"] = [*instructions(body), *messages_of(earlier, "previous"), *messages_of(items)]
    chat |= tools_of(body) | format_of(body) | logprobs_of(body) | reasoning_of(body)
    if body.get("max_output_tokens") is not None:
        chat["max_tokens"] = body["max_output_tokens"]
    return ResponseRequest(
        chat=chat,
        items=items,
        body=body,
        previous=previous_id(body),
        store=None if body.get("store") is None else boolean_or(body, "store", False),
        warnings=skipped_tools(body),
    )


def refuse(body: Object) -> None:
    """Raise for what is not supported and would change the answer if it were ignored."""
    if boolean_or(body, "background", False):
        raise invalid("'background' is not supported: a response is generated while its request is open")
    for name in ("conversation", "prompt"):
        if body.get(name) is not None:
            raise invalid(f"'{name}' is not supported")
    if text_or(body, "truncation", "", "disabled") not in ("auto", "disabled"):
        raise invalid("'truncation' must be 'auto' or 'disabled'")


def previous_id(body: Object) -> str | None:
    """The response that this one continues."""
    return text_or(body, "previous_response_id", "") or None


def instructions(body: Object) -> list[dict[str, Any]]:
    """The system message in front of all others."""
    given = text_or(body, "instructions", "")
    return [{"role": "system", "content": given}] if given else []


def tools_of(body: Object) -> dict[str, Any]:
    """`tools` and `tool_choice`; tools that are no functions are left out."""
    mapped: dict[str, Any] = {}
    tools = [read_tool(tool) for tool in objects(body.get("tools"), "tools") if tool.get("type") == "function"]
    if tools:
        mapped["tools"] = tools
    choice = body.get("tool_choice")
    if choice is not None:
        mapped["tool_choice"] = tool_choice(choice)
    return mapped


def read_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A function in the form of chat completions."""
    if isinstance(tool.get("function"), dict):
        return tool
    function = {key: value for key, value in tool.items() if key != "type"}
    return {"type": "function", "function": {"strict": True, **function}}


def skipped_tools(body: Object) -> list[str]:
    """A warning for each tool that only OpenAI could run."""
    kinds = [tool.get("type") for tool in objects(body.get("tools"), "tools")]
    return [f"tools: type {kind!r:.60} is not supported, skipped" for kind in kinds if kind != "function"]


def tool_choice(choice: Any) -> Any:
    """A mode, one function, or several allowed ones."""
    if isinstance(choice, str):
        return choice
    kind = an_object(choice, "tool_choice").get("type")
    if kind == "function":
        nested = choice.get("function")
        name = text(nested if isinstance(nested, dict) else choice, "name", "tool_choice")
        return {"type": "function", "function": {"name": name}}
    if kind == "allowed_tools" or kind in MODES:
        return choice
    raise invalid(f"'tool_choice': type {kind!r:.60} is not supported")


def format_of(body: Object) -> dict[str, Any]:
    """`text.format` as `response_format`."""
    config = object_or_none(body, "text") or {}
    given = config.get("format")
    if given is None:
        return {}
    kind = an_object(given, "text.format").get("type")
    if kind == "text":
        return {}
    if kind == "json_schema":
        schema = an_object(given.get("schema"), "text.format.schema")
        return {"response_format": {"type": kind, "json_schema": {"name": given.get("name"), "schema": schema}}}
    if kind == "json_object":
        return {"response_format": {"type": kind}}
    raise invalid(f"text.format.type must be 'text', 'json_object' or 'json_schema', but is {kind!r:.60}")


def logprobs_of(body: Object) -> dict[str, Any]:
    """`include` and `top_logprobs` as `logprobs` and `top_logprobs`."""
    include = body.get("include") or []
    if not isinstance(include, list):
        raise invalid("Field 'include': type must be an array of strings")
    tops = body.get("top_logprobs")
    if LOGPROBS not in include and not tops:
        return {}
    return {"logprobs": True, "top_logprobs": tops or 0}


def reasoning_of(body: Object) -> dict[str, Any]:
    """`reasoning.effort`."""
    effort = text_or(object_or_none(body, "reasoning") or {}, "effort", "reasoning")
    return {"reasoning_effort": effort} if effort else {}
