"""The messages of a chat request: checked, with every content as text or as parts, and the media they carry."""

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from api.chat_errors import ChatError

Message = dict[str, Any]

MEDIA_KINDS = {"image_url": "image", "input_audio": "audio", "input_video": "video", "video_url": "video"}
SHOWN = 200  # characters of a bad value in an error


class Media(Struct, frozen=True):
    """Which media the model takes, and the text that stands for one in the prompt."""

    image: bool = False
    audio: bool = False
    video: bool = False
    marker: str = "<__media__>"

    def takes(self, kind: str) -> bool:
        """Whether there is a projector for `kind`."""
        return bool(getattr(self, kind))


class MediaPart(Struct, frozen=True):
    """One file of the prompt, still as the client gave it: a URL, a data URL or base64."""

    kind: str  # image, audio or video
    source: str


class Messages(Struct, frozen=True):
    """Checked messages, in the form that templates know, and their media in the order of the markers."""

    turns: list[Message]
    media: list[MediaPart]


def parse_messages(value: Any, media: Media | None = None) -> Messages:
    """The `messages` of a request; raises `ChatError`."""
    if value is None:
        raise ChatError("'messages' is required")
    if not isinstance(value, list):
        raise ChatError("Expected 'messages' to be an array")
    if not value:
        raise ChatError("'messages' must not be empty")
    for message in value:
        check_presence(message)
    files: list[MediaPart] = []
    return Messages([parse_message(message, media or Media(), files) for message in value], files)


def check_presence(message: Any) -> None:
    """Raise unless the message says something."""
    if not isinstance(message, dict):
        raise unreadable(f"Expected 'message' to be an object, got {shown(message)}")
    if message.get("role") == "assistant":
        said = "content" in message or message.get("tool_calls") is not None or message.get("reasoning_content")
        if not said:
            raise ChatError("Assistant message must contain either 'content' or 'tool_calls'!")
    elif "content" not in message:
        raise ChatError("All non-assistant messages must contain 'content'")


def parse_message(message: Mapping[str, Any], media: Media, files: list[MediaPart]) -> Message:
    """One message, with only the keys that mean something, null ones left out and content never null."""
    if message.get("role") is None:
        raise unreadable(f"Missing 'role' in message: {shown(message)}")
    turn: Message = {
        "role": text_field(message, "role"),
        "content": parse_content(message.get("content"), media, files),
    }
    for key in ("reasoning_content", "name", "tool_call_id"):
        if message.get(key):
            turn[key] = text_field(message, key)
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise unreadable(f"Expected 'tool_calls' to be an array, got {shown(calls)}")
    if calls:
        turn["tool_calls"] = [parse_call(call) for call in calls]
    return turn


def parse_content(content: Any, media: Media, files: list[MediaPart]) -> str | list[dict[str, str]]:
    """A text, or a list of `text` and `media_marker` parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ChatError("Expected 'content' to be a string or an array")
    return [parse_part(part, media, files) for part in content]


def parse_part(part: Any, media: Media, files: list[MediaPart]) -> dict[str, str]:
    """One content part."""
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise unreadable(f"Missing content part type: {shown(part)}")
    kind = part["type"]
    if kind == "text":
        return {"type": "text", "text": text_field(part, "text")}
    if kind not in MEDIA_KINDS:
        raise ChatError("unsupported content[].type")
    medium = MEDIA_KINDS[kind]
    if not media.takes(medium):
        hint = "hint: if this is unexpected, you may need to provide the mmproj"
        raise ChatError(f"{medium} input is not supported - {hint}")
    files.append(MediaPart(medium, media_source(kind, part.get(kind))))
    return {"type": "media_marker", "text": media.marker}


def media_source(kind: str, payload: Any) -> str:
    """Where the file is: `url`, or for audio and video also `data`. A bare string is taken as one."""
    if isinstance(payload, str):
        return payload
    keys = ("url",) if kind == "image_url" else ("data", "url")
    values = [payload.get(key) for key in keys] if isinstance(payload, dict) else []
    for value in values:
        if isinstance(value, str) and value:
            return value
    raise ChatError(f"content[].{kind} must be an object with {' or '.join(repr(key) for key in keys)}")


def parse_call(call: Any) -> dict[str, Any]:
    """One tool call of an assistant's message; its arguments as JSON text."""
    if not isinstance(call, dict):
        raise unreadable(f"Expected a tool call to be an object, got {shown(call)}")
    if call.get("type") not in (None, "function"):
        raise unreadable(f"Unsupported tool call type: {shown(call)}")
    function = call.get("function")
    if not isinstance(function, dict):
        raise unreadable(f"Missing tool call function: {shown(call)}")
    if not isinstance(function.get("name"), str):
        raise unreadable(f"Missing tool call name: {shown(call)}")
    parsed: dict[str, Any] = {
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments_text(function.get("arguments"))},
    }
    if call.get("id"):
        parsed["id"] = text_field(call, "id")
    return parsed


def arguments_text(arguments: Any) -> str:
    """A call's arguments as JSON text; none at all is an empty object."""
    if arguments is None or arguments == "":
        return "{}"
    if isinstance(arguments, str):
        return arguments
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))


def text_field(value: Mapping[str, Any], key: str) -> str:
    """A text member; null is the empty text."""
    text = value.get(key)
    if text is None:
        return ""
    if not isinstance(text, str):
        raise unreadable(f"Expected '{key}' to be a string, got {shown(text)}")
    return text


def unreadable(reason: str) -> ChatError:
    """The error for a message of the wrong shape."""
    return ChatError(f"Failed to parse messages: {reason}")


def shown(value: Any) -> str:
    """A JSON value as it may stand in an error."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def content_text(content: str | list[dict[str, str]], delimiter: str = "\n") -> str:
    """A content as one text: parts joined by `delimiter`, but none of it beside a medium."""
    if isinstance(content, str):
        return content
    text = ""
    after_medium = False
    for part in content:
        medium = part["type"] == "media_marker"
        if text and not medium and not after_medium:
            text += delimiter
        text += part["text"]
        after_medium = medium
    return text


def has_media(content: str | list[dict[str, str]]) -> bool:
    """Whether a content has a medium in it."""
    return isinstance(content, list) and any(part["type"] == "media_marker" for part in content)
