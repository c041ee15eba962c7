"""From a body of the Messages API to one of chat completions: `spec/chat.md` §9.1."""

from typing import Any

from msgspec import Struct

from api.anthropic_blocks import messages_of, system_messages
from api.errors import invalid
from api.members import Object, a_list, an_object, boolean_or, object_or_none, objects, text, text_or

DEFAULT_MAX_TOKENS = 4096
DEFAULT_BUDGET = 10000
EFFORTS = {"max": "high", "xhigh": "high"}  # Anthropic's words that templates do not know
# What is read here, or says nothing to a chat completion.
OWN = frozenset({
    "system", "messages", "tools", "tool_choice", "stop_sequences", "max_tokens", "thinking", "metadata",
    "output_config", "output_format", "service_tier", "container", "mcp_servers", "context_management",
    "cache_control", "inference_geo", "betas", "speed", "n", "n_cmpl", "echo", "logprobs", "top_logprobs",
})  # fmt: skip


class MessagesRequest(Struct):
    """The chat body that answers a request, and what the caller is told was left out."""

    chat: dict[str, Any]
    warnings: list[str] = []


def read_request(body: dict[str, Any]) -> MessagesRequest:
    """Check `body` and map it. Raises `ApiError` 400."""
    chat = {key: value for key, value in body.items() if key not in OWN}
    chat["messages"] = [*system_messages(body.get("system")), *messages_of(body.get("messages"))]
    chat["max_tokens"] = DEFAULT_MAX_TOKENS if body.get("max_tokens") is None else body["max_tokens"]
    if body.get("stop_sequences") is not None:
        chat["stop"] = a_list(body["stop_sequences"], "stop_sequences")
    chat |= tools_of(body) | choice_of(body) | output_of(body)
    add_thinking(chat, object_or_none(body, "thinking") or {})
    return MessagesRequest(chat, skipped_tools(body))


def is_function(tool: Object) -> bool:
    """Whether the caller runs this tool and has told its arguments."""
    return tool.get("type") in (None, "custom")


def tools_of(body: Object) -> dict[str, Any]:
    """`tools`; those that only Anthropic could run are left out."""
    tools = [read_tool(tool, f"tools[{i}]") for i, tool in enumerate(objects(body.get("tools"), "tools"))]
    kept = [tool for tool in tools if tool is not None]
    return {"tools": kept} if kept else {}


def read_tool(tool: Object, place: str) -> dict[str, Any] | None:
    """A tool as a function; None for one of Anthropic's own."""
    if not is_function(tool):
        return None
    function: dict[str, Any] = {"name": text(tool, "name", place), "description": text_or(tool, "description", place)}
    if tool.get("input_schema") is not None:
        function["parameters"] = an_object(tool["input_schema"], f"{place}.input_schema")
    return {"type": "function", "function": function}


def skipped_tools(body: Object) -> list[str]:
    """A warning for each tool that was left out."""
    kinds = [tool.get("type") for tool in objects(body.get("tools"), "tools") if not is_function(tool)]
    return [f"tools: type {kind!r:.60} is not supported, skipped" for kind in kinds]


def choice_of(body: Object) -> dict[str, Any]:
    """`tool_choice`, and whether calls may come in parallel."""
    choice = object_or_none(body, "tool_choice")
    if choice is None:
        return {}
    mapped: dict[str, Any] = {}
    match choice.get("type"):
        case "auto" | "none" as mode:
            mapped["tool_choice"] = mode
        case "any":
            mapped["tool_choice"] = "required"
        case "tool":
            mapped["tool_choice"] = {"type": "function", "function": {"name": text(choice, "name", "tool_choice")}}
        case kind:
            raise invalid(f"tool_choice.type: must be 'auto', 'any', 'tool' or 'none', but is {kind!r:.60}")
    if boolean_or(choice, "disable_parallel_tool_use", False):
        mapped["parallel_tool_calls"] = False
    return mapped


def output_of(body: Object) -> dict[str, Any]:
    """`output_config`: how much effort, and a schema for the answer."""
    config = object_or_none(body, "output_config") or {}
    effort = text_or(config, "effort", "output_config")
    mapped: dict[str, Any] = {"reasoning_effort": EFFORTS.get(effort, effort)} if effort else {}
    given = config.get("format") if config.get("format") is not None else body.get("output_format")
    if given is not None:
        form = an_object(given, "output_config.format")
        if form.get("type") != "json_schema":
            raise invalid(f"output_config.format.type: must be 'json_schema', but is {form.get('type')!r:.60}")
        schema = an_object(form.get("schema"), "output_config.format.schema")
        mapped["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
    return mapped


def add_thinking(chat: dict[str, Any], thinking: Object) -> None:
    """Set the budget of `thinking`, or turn it off unless the template's variables say otherwise."""
    kind = thinking.get("type")
    if kind == "enabled":
        budget = thinking.get("budget_tokens")
        chat["thinking_budget_tokens"] = DEFAULT_BUDGET if budget is None else budget
    elif kind == "disabled":
        kwargs = chat.get("chat_template_kwargs")
        if isinstance(kwargs, dict | None):
            chat["chat_template_kwargs"] = {"enable_thinking": False, **(kwargs or {})}
    elif kind not in (None, "adaptive"):
        raise invalid(f"thinking.type: must be 'enabled', 'disabled' or 'adaptive', but is {kind!r:.60}")
