"""Fits messages to what a template can express: content kinds, roles, arguments."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from api.capabilities import Capabilities
from api.chat_errors import ChatError
from api.chat_messages import Message, content_text, has_media
from api.json_repair import closed_json

STEPFUN = "You have access to the following functions in JSONSchema format"


def adapt(messages: Sequence[Message], capabilities: Capabilities, source: str) -> list[Message]:
    """New messages that the template `source` renders as the given ones are meant."""
    turns = [dict(message) for message in messages]
    if STEPFUN in source:
        turns = [trimmed(turn) for turn in turns]
    if "<|channel|>" not in source:
        turns = [turn | {"role": "system"} if turn["role"] == "developer" else turn for turn in turns]
    if not capabilities.supports_system_role:
        turns = without_system(turns)
    if capabilities.supports_object_arguments:
        turns = [with_object_arguments(turn) for turn in turns]
    convert = content_converter(capabilities)
    return [turn | {"content": convert(turn["content"])} for turn in turns]


def content_converter(capabilities: Capabilities) -> Callable[[Any], Any]:
    """Makes a content the kind that the template takes: text, typed parts, or either."""

    def convert(content: Any) -> Any:
        if not capabilities.supports_typed_content or has_media(content):
            content = content_text(content)
        if not capabilities.supports_string_content and isinstance(content, str):
            content = [{"type": "text", "text": content}]
        return content

    return convert


def without_system(turns: Sequence[Message]) -> list[Message]:
    """Each system text in front of the message that follows it, or behind the last one."""
    kept: list[Message] = []
    pending: list[Any] = []
    for turn in turns:
        if turn["role"] == "system":
            pending.append(turn["content"])
            continue
        kept.append(turn | {"content": joined([*pending, turn["content"]])} if pending else turn)
        pending = []
    if pending and kept:
        kept[-1] = kept[-1] | {"content": joined([kept[-1]["content"], *pending])}
    return kept


def joined(contents: Sequence[Any]) -> Any:
    """Contents as one, a line break between them."""
    if all(isinstance(content, str) for content in contents):
        return "\n".join(contents)
    parts: list[Any] = []
    for content in contents:
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else content
    return parts


def with_object_arguments(turn: Message) -> Message:
    """The arguments of a message's calls as objects."""
    if not turn.get("tool_calls"):
        return turn
    calls = [
        call | {"function": call["function"] | {"arguments": parsed_arguments(call["function"]["arguments"])}}
        for call in turn["tool_calls"]
    ]
    return turn | {"tool_calls": calls}


def parsed_arguments(text: str) -> Any:
    """The value that a call's arguments spell; those of a call that was cut short are closed."""
    try:
        return json.loads(text)
    except ValueError as error:
        closed = closed_json(text)
        if closed is None:
            raise ChatError(f"Failed to parse tool call arguments as JSON: {error}") from error
        return closed


def trimmed(turn: Message) -> Message:
    """A message without white space around its texts (StepFun's models loop over it)."""
    content = turn["content"]
    if isinstance(content, str):
        content = content.strip()
    else:
        content = [part | {"text": part["text"].strip()} if part["type"] == "text" else part for part in content]
    turn = turn | {"content": content}
    if "reasoning_content" in turn:
        turn["reasoning_content"] = turn["reasoning_content"].strip()
    return turn
