"""The tools of a chat request, and how to tell a model of them whose template has no place for tools.

Then the tools are described in the system text and calls are written in Hermes' way, which many models know and the
parser reads (`TOOL_FORMAT`): `<tool_call>{"name": …, "arguments": …}</tool_call>`, results in `<tool_response>`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from api.chat_errors import ChatError
from api.chat_messages import Message, content_text, shown

TOOL_FORMAT = "hermes"
EMPTY_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}

PREAMBLE = """You can call functions. These are available, each described by a JSON object in <tools></tools>:
<tools>
{tools}
</tools>
To call one, answer with its name and its arguments, in this form and with nothing else:
{example}"""
EXAMPLE = """<tool_call>
{"name": "the function's name", "arguments": {"parameter": "value"}}
</tool_call>
Several calls may follow one another. The results come back in <tool_response></tool_response>."""


def parse_tools(value: Any) -> list[dict[str, Any]]:
    """The `tools` of a request, as templates know them; raises `ChatError`."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise unreadable(f"Expected 'tools' to be an array, got {shown(value)}")
    return [parse_tool(tool) for tool in value]


def parse_tool(tool: Any) -> dict[str, Any]:
    """One tool, with all its members."""
    if not isinstance(tool, dict) or "type" not in tool:
        raise unreadable(f"Missing tool type: {shown(tool)}")
    if tool["type"] != "function":
        raise unreadable(f"Unsupported tool type: {shown(tool)}")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise unreadable(f"Missing tool function: {shown(tool)}")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise unreadable(f"Missing tool name: {shown(tool)}")
    description = function.get("description") or ""
    if not isinstance(description, str):
        raise unreadable(f"Expected the description of tool '{name}' to be a string, got {shown(description)}")
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters_of(name, function)},
    }


def parameters_of(name: str, function: Mapping[str, Any]) -> dict[str, Any]:
    """A function's parameter schema; none at all means an object without properties."""
    schema = function.get("parameters")
    if schema is not None and not isinstance(schema, dict):
        raise unreadable(f"Expected the parameters of tool '{name}' to be an object, got {shown(schema)}")
    return schema or EMPTY_PARAMETERS


def unreadable(reason: str) -> ChatError:
    """The error for tools of the wrong shape."""
    return ChatError(f"Failed to parse tools: {reason}")


def with_tool_prompt(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], native_call: str | None = None
) -> list[Message]:
    """The messages with the tools described in front of them.

    `native_call` is a call as the template itself writes it; without one, calls and results become plain text.
    """
    turns = list(messages) if native_call else with_plain_calls(messages)
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = PREAMBLE.format(tools=listed, example=native_call or EXAMPLE)
    if turns and turns[0]["role"] in ("system", "developer"):
        first = turns[0]
        return [first | {"content": f"{content_text(first['content'])}\n\n{text}"}, *turns[1:]]
    return [{"role": "system", "content": text}, *turns]


def with_plain_calls(messages: Sequence[Message]) -> list[Message]:
    """Calls and results as texts of the assistant and the user; what follows a result joins it."""
    turns: list[Message] = []
    after_result = False
    for message in messages:
        turn, is_result = plain_turn(message)
        if after_result and turn["role"] == "user":
            turns[-1] = merged(turns[-1], turn)
        else:
            turns.append(turn)
        after_result = is_result
    return turns


def plain_turn(message: Message) -> tuple[Message, bool]:
    """A message without calls or results in it, and whether it was a tool's result."""
    if message["role"] == "tool":
        result = f"<tool_response>\n{content_text(message['content'])}\n</tool_response>"
        return {"role": "user", "content": result}, True
    if not message.get("tool_calls"):
        return message, False
    texts = [content_text(message["content"]), *map(call_text, message["tool_calls"])]
    turn = {key: value for key, value in message.items() if key != "tool_calls"}
    return turn | {"content": "\n".join(filter(None, texts))}, False


def call_text(call: Mapping[str, Any]) -> str:
    """One earlier call as the model would have written it."""
    function = call["function"]
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {function["arguments"]}}}\n</tool_call>'


def merged(first: Message, second: Message) -> Message:
    """Two messages of one side as one."""
    if isinstance(first["content"], str) and isinstance(second["content"], str):
        return first | {"content": f"{first['content']}\n{second['content']}"}
    parts: list[Any] = []
    for content in (first["content"], second["content"]):
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else content
    return first | {"content": parts}
