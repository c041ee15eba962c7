"""From the messages and content blocks of the Messages API to chat messages: `spec/chat.md` §9.1."""

import json
import re
from typing import Any

from api.errors import invalid
from api.members import Object, a_text, an_object, objects, text, text_or

Message = dict[str, Any]

BILLING_HEADER = "x-anthropic-billing-header:"
BILLING_STAMP = re.compile(r"cch=[^;]{5}(?=;|$)")  # differs from request to request, which would spoil the prompt cache
ROLES = ("user", "assistant", "system")


def system_messages(value: Any) -> list[Message]:
    """The `system` of a request as the first message."""
    if value is None:
        return []
    if isinstance(value, str):
        return [{"role": "system", "content": steady(value)}]
    texts = [text(block, "text", f"system[{i}]") for i, block in enumerate(objects(value, "system")) if is_text(block)]
    return [{"role": "system", "content": "".join(map(steady, texts))}]


def is_text(block: Object) -> bool:
    """Whether a block is a text."""
    return block.get("type") == "text"


def steady(system: str) -> str:
    """`system` with the stamp of a billing header made the same for all requests."""
    return BILLING_STAMP.sub("cch=fffff", system, count=1) if system.startswith(BILLING_HEADER) else system


def messages_of(value: Any) -> list[Message]:
    """The chat messages of a request's `messages`; the assistant's empty ones are left out."""
    if value is None:
        raise invalid("'messages' is required")
    messages: list[Message] = []
    for index, message in enumerate(objects(value, "messages")):
        messages += read_message(message, f"messages[{index}]")
    return messages


def read_message(message: Object, place: str) -> list[Message]:
    """One message; results of tools in it become messages of their own, in their place."""
    role, content = text(message, "role", place), message.get("content")
    if role not in ROLES:
        raise invalid(f"{place}.role: must be 'user' or 'assistant', but is {role!r:.60}")
    if content is None:
        if role == "assistant":
            return []
        raise invalid(f"{place}: 'content' is required")
    if isinstance(content, str):
        return [{"role": role, "content": content}] if content or role != "assistant" else []
    blocks = [(block, f"{place}.content[{index}]") for index, block in enumerate(objects(content, f"{place}.content"))]
    if role == "assistant":
        return assistant_message(blocks)
    return user_messages(role, blocks)


def assistant_message(blocks: list[tuple[dict[str, Any], str]]) -> list[Message]:
    """What the assistant thought, said and called, as one message."""
    thoughts: list[str] = []
    parts: list[Message] = []
    calls: list[Message] = []
    for block, place in blocks:
        match block.get("type"):
            case "thinking":
                thoughts.append(text(block, "thinking", place))
            case "redacted_thinking":
                pass  # only Anthropic can read it
            case "tool_use":
                calls.append(read_call(block, place))
            case _:
                parts.append(read_part(block, place))
    message: Message = {"role": "assistant", "content": simplified(parts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return [message] if parts or thoughts or calls else []


def read_call(block: Object, place: str) -> Message:
    """A `tool_use` block as a tool call."""
    arguments = an_object(block.get("input") or {}, f"{place}.input")
    function = {"name": text(block, "name", place), "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": text(block, "id", place), "type": "function", "function": function}


def user_messages(role: str, blocks: list[tuple[dict[str, Any], str]]) -> list[Message]:
    """What the user says, with the results of tools as messages between."""
    messages: list[Message] = []
    parts: list[Message] = []
    for block, place in blocks:
        if block.get("type") != "tool_result":
            parts.append(read_part(block, place))
            continue
        if parts:
            messages.append({"role": role, "content": simplified(parts)})
            parts = []
        messages.append(read_result(block, place))
    if parts or not messages:
        messages.append({"role": role, "content": simplified(parts)})
    return messages


def read_result(block: Object, place: str) -> Message:
    """A `tool_result` block as a tool's message: its texts in one, or parts where there are images."""
    content = block.get("content")
    if isinstance(content, str | None):
        said: Any = content or ""
    else:
        where = f"{place}.content"
        said = [read_part(part, f"{where}[{index}]") for index, part in enumerate(objects(content, where))]
        if all(is_text(part) for part in said):
            said = "".join(part["text"] for part in said)
    return {"role": "tool", "tool_call_id": text(block, "tool_use_id", place), "content": said}


def simplified(parts: list[Message]) -> str | list[Message]:
    """Parts as they are; a single text as that text, none as the empty one."""
    if not parts:
        return ""
    single: str | None = parts[0].get("text") if len(parts) == 1 else None
    return parts if single is None else single


def read_part(block: Object, place: str) -> Message:
    """A text, an image or a plain document."""
    match block.get("type"):
        case "text":
            return {"type": "text", "text": text(block, "text", place)}
        case "image":
            return {"type": "image_url", "image_url": {"url": image_url(block.get("source"), f"{place}.source")}}
        case "document":
            return {"type": "text", "text": document_text(block, place)}
        case "search_result":
            texts = objects(block.get("content"), f"{place}.content")
            return {"type": "text", "text": "\n".join(text_or(part, "text", place) for part in texts)}
    raise invalid(f"{place}.type: {block.get('type')!r:.60} is not supported here")


def image_url(source: Any, place: str) -> str:
    """The URL, or the data URL, of an image."""
    match an_object(source, place).get("type"):
        case "base64":
            data = text(source, "data", place)
            return f"data:{text_or(source, 'media_type', place, 'image/jpeg')};base64,{data}"
        case "url":
            return text(source, "url", place)
    raise invalid(f"{place}.type: must be 'base64' or 'url', but is {source.get('type')!r:.60}")


def document_text(block: Object, place: str) -> str:
    """The text of a document that is plain text, under its title."""
    source = an_object(block.get("source"), f"{place}.source")
    match source.get("type"):
        case "text":
            content = text(source, "data", f"{place}.source")
        case "content":
            inner = source.get("content")
            parts = [{"text": inner}] if isinstance(inner, str) else objects(inner, f"{place}.source.content")
            content = "\n".join(a_text(part.get("text"), f"{place}.source.content") for part in parts)
        case kind:
            raise invalid(f"{place}.source.type: {kind!r:.60} is not supported, only 'text' and 'content'")
    return "\n".join(filter(None, [text_or(block, "title", place), content]))
