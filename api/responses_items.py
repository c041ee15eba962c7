"""From the items of the Responses API to chat messages: `spec/chat.md` §8.1."""

from collections.abc import Sequence
from typing import Any

from api.errors import invalid
from api.members import Object, a_list, a_text, an_object, objects, text

Message = dict[str, Any]
Item = dict[str, Any]

CALL = "call_"  # precedes the ids of calls
OUTPUT_KINDS = ("output_text", "input_text", "text")


def input_items(value: Any) -> list[Item]:
    """The `input` of a request as items; a text is one user message."""
    if value is None:
        raise invalid("'input' is required")
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise invalid("'input' must be a string or array of objects")
    return value


def messages_of(items: Sequence[Item], place: str = "input") -> list[Message]:
    """The chat messages that `items` say. Neighbouring items of the assistant make one message."""
    messages: list[Message] = []
    for index, item in enumerate(items):
        message = read_item(item, f"{place}[{index}]")
        if messages and messages[-1]["role"] == message["role"] == "assistant":
            merge(messages[-1], message)
        else:
            messages.append(message)
    return [message for message in messages if message != {"role": "assistant"}]


def merge(message: Message, more: Message) -> None:
    """Put the parts of an assistant's message behind those that are there."""
    for key in ("reasoning_content", "content", "tool_calls"):
        if key not in more:
            continue
        if key not in message:
            message[key] = more[key]
        elif key == "content":
            message[key] = [*as_parts(message[key]), *as_parts(more[key])]
        else:
            message[key] = message[key] + more[key]


def as_parts(content: str | list[Any]) -> list[Any]:
    """A content as a list of parts."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def read_item(item: Item, place: str) -> Message:
    """The message, or the piece of the assistant's message, that an item is."""
    kind = item.get("type") or ("message" if "role" in item else None)
    match kind:
        case "message":
            return read_message(item, place)
        case "function_call":
            return {"role": "assistant", "tool_calls": [read_call(item, place)]}
        case "function_call_output":
            return {"role": "tool", "tool_call_id": own_id(item, place), "content": read_output(item, place)}
        case "reasoning":
            return read_reasoning(item, place)
        case "item_reference":
            raise invalid(f"{place}: 'item_reference' is not supported, send the item itself")
    raise invalid(f"Cannot determine type of 'item' at {place}: {kind!r:.100}")


def read_message(item: Item, place: str) -> Message:
    """A message of either side."""
    role = text(item, "role", place)
    if role not in ("user", "system", "developer", "assistant"):
        raise invalid(f"{place}.role: must be user, assistant, system or developer, but is {role!r:.60}")
    content = item.get("content")
    if content is None and role == "assistant":
        return {"role": role}
    if content is None:
        raise invalid(f"{place}: 'content' is required")
    if isinstance(content, str):
        return {"role": role, "content": content}
    read = read_output_part if role == "assistant" else read_input_part
    return {"role": role, "content": parts_of(content, f"{place}.content", read)}


def parts_of(content: Any, place: str, read: Any) -> str | list[Message]:
    """A list of parts; one that is a single text is that text."""
    parts = [read(part, f"{place}[{index}]") for index, part in enumerate(objects(content, place))]
    if len(parts) == 1 and parts[0]["type"] == "text":
        single: str = parts[0]["text"]
        return single
    return parts


def read_input_part(part: Object, place: str) -> Message:
    """A text, an image or a sound that the model is given."""
    match part.get("type"):
        case "input_text" | "text" | "output_text":
            return {"type": "text", "text": text(part, "text", place)}
        case "input_image":
            return {"type": "image_url", "image_url": {"url": image_url(part, place)}}
        case "input_audio":
            return {"type": "input_audio", "input_audio": an_object(part.get("input_audio"), f"{place}.input_audio")}
        case "input_file":
            raise invalid(f"{place}: 'input_file' is not supported")
    raise invalid(f"{place}: 'type' must be 'input_text', 'input_image' or 'input_audio', not {part.get('type')!r:.60}")


def image_url(part: Object, place: str) -> str:
    """Where an image is."""
    url = part.get("image_url")
    if url is None and part.get("file_id") is not None:
        raise invalid(f"{place}: 'file_id' is not supported, send the image as 'image_url'")
    if isinstance(url, dict):
        url = url.get("url")
    if url is None:
        raise invalid(f"{place}: 'image_url' is required")
    return a_text(url, f"{place}.image_url")


def read_output_part(part: Object, place: str) -> Message:
    """A piece of what the assistant said."""
    if part.get("type") in OUTPUT_KINDS:
        return {"type": "text", "text": text(part, "text", place)}
    if part.get("type") == "refusal":
        return {"type": "text", "text": text(part, "refusal", place)}
    raise invalid(f"{place}: 'type' must be 'output_text' or 'refusal', not {part.get('type')!r:.60}")


def read_call(item: Item, place: str) -> Message:
    """A tool call."""
    function = {"name": text(item, "name", place), "arguments": text(item, "arguments", place)}
    return {"id": own_id(item, place), "type": "function", "function": function}


def own_id(item: Item, place: str) -> str:
    """The id of a call as the model knows it; some templates take only ids of a certain length."""
    return text(item, "call_id", place).removeprefix(CALL)


def read_output(item: Item, place: str) -> str | list[Message]:
    """What a tool returned: a text, or texts and images."""
    output = item.get("output")
    if isinstance(output, str):
        return output
    return parts_of(a_list(output, f"{place}.output"), f"{place}.output", read_input_part)


def read_reasoning(item: Item, place: str) -> Message:
    """What the model thought; its summary if that is all there is, nothing if it is encrypted."""
    thoughts = [text(part, "text", f"{place}.content") for part in objects(item.get("content"), f"{place}.content")]
    if not thoughts:
        summary = objects(item.get("summary"), f"{place}.summary")
        thoughts = ["\n".join(text(part, "text", f"{place}.summary") for part in summary)]
    thought = "".join(thoughts)
    return {"role": "assistant", "reasoning_content": thought} if thought else {"role": "assistant"}
