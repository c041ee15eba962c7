"""From bodies of Ollama's API to those of chat completions and completions."""

from typing import Any

from api.errors import invalid
from api.fields import INT32_MAX, kind_of
from api.members import Object, a_list, a_text, boolean_or, object_or_none, objects, text, text_or

# Top-level keys of /api/chat. A body with any other one is OpenAI's.
CHAT_KEYS = frozenset({
    "model", "messages", "tools", "format", "options", "stream", "keep_alive", "think", "truncate", "shift",
    "logprobs", "top_logprobs",
})  # fmt: skip
ONLY_OLLAMA = frozenset(("format", "options", "keep_alive", "think", "truncate", "shift"))
ONLY_OLLAMA_MESSAGE = frozenset(("images", "thinking", "tool_name"))
# Sampling options by the name that completions have for them.
OPTIONS = {
    **{name: name for name in ("seed", "temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_last_n")},
    **{name: name for name in ("repeat_penalty", "presence_penalty", "frequency_penalty", "stop")},
    **{name: name for name in ("mirostat", "mirostat_tau", "mirostat_eta")},
    "num_predict": "n_predict",
    "num_keep": "n_keep",
}
EFFORTS = ("low", "medium", "high", "max")


def is_openai(body: Object) -> bool:
    """Whether a body of /api/chat is one of chat completions.

    It is when it names no model, when a top-level key is not Ollama's, or when a content is a list of parts; but
    never when a key or a message's key is Ollama's alone.
    """
    messages = body.get("messages")
    turns = [turn for turn in messages if isinstance(turn, dict)] if isinstance(messages, list) else []
    if ONLY_OLLAMA & body.keys() or any(ONLY_OLLAMA_MESSAGE & turn.keys() for turn in turns):
        return False
    foreign = body.keys() - CHAT_KEYS
    return "model" not in body or bool(foreign) or any(isinstance(turn.get("content"), list) for turn in turns)


def chat_body(body: Object) -> dict[str, Any]:
    """/api/chat as a chat completion."""
    chat = common(body)
    chat["messages"] = [read_message(message, f"messages[{i}]") for i, message in enumerate(messages_of(body))]
    tools = objects(body.get("tools"), "tools")
    if tools:
        chat["tools"] = [{"type": "function", **tool} for tool in tools]
    return chat | thinking_of(body)


def messages_of(body: Object) -> list[dict[str, Any]]:
    """The messages of a request; without any the model would only be loaded."""
    return objects(body.get("messages"), "messages")


def read_message(message: Object, place: str) -> dict[str, Any]:
    """One message."""
    turn: dict[str, Any] = {
        "role": text(message, "role", place),
        "content": content_of(text_or(message, "content", place), message.get("images"), place),
    }
    if message.get("thinking"):
        turn["reasoning_content"] = text(message, "thinking", place)
    if message.get("tool_name"):
        turn["name"] = text(message, "tool_name", place)
    if message.get("tool_call_id"):
        turn["tool_call_id"] = text(message, "tool_call_id", place)
    calls = objects(message.get("tool_calls"), f"{place}.tool_calls")
    if calls:
        turn["tool_calls"] = [{"type": "function", **call} for call in calls]
    return turn


def content_of(said: str, images: Any, place: str) -> str | list[dict[str, Any]]:
    """A text, behind its images if there are any."""
    if not images:
        return said
    sources = [a_text(image, f"{place}.images") for image in a_list(images, f"{place}.images")]
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": as_url(source)}} for source in sources]
    return [*parts, {"type": "text", "text": said}] if said else parts


def as_url(image: str) -> str:
    """An image, which comes as bare base64, as a URL."""
    return image if image.startswith("data:") else f"data:image/png;base64,{image}"


def generate_body(body: Object) -> dict[str, Any]:
    """/api/generate as a chat completion of one question."""
    if text_or(body, "template", ""):
        raise invalid("'template' is not supported: the model's own template is used, or none with 'raw'")
    refuse_context(body)
    chat = common(body)
    system = text_or(body, "system", "")
    question = content_of(text_or(body, "prompt", ""), body.get("images"), "")
    turns: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    chat["messages"] = [*turns, {"role": "user", "content": question}]
    return chat | thinking_of(body)


def completion_body(body: Object) -> dict[str, Any]:
    """/api/generate with `raw` or a `suffix` as a completion; its prompt is read by the caller."""
    refuse_context(body)
    if body.get("images"):
        raise invalid("'images' are not supported without the model's template")
    if body.get("logprobs"):
        raise invalid("'logprobs' is not supported without the model's template")
    return common(body)


def refuse_context(body: Object) -> None:
    """No answer ever has a `context`, so none can come back."""
    if body.get("context"):
        raise invalid("'context' is not supported: use /api/chat and send the messages")


def common(body: Object) -> dict[str, Any]:
    """What all requests have in common."""
    mapped = options_of(body) | format_of(body)
    mapped["stream"] = boolean_or(body, "stream", True)
    for name in ("model", "logprobs", "top_logprobs"):
        if body.get(name) is not None:
            mapped[name] = body[name]
    return mapped


def options_of(body: Object) -> dict[str, Any]:
    """`options`; those that say how a model is loaded mean nothing to a loaded one."""
    given = object_or_none(body, "options") or {}
    mapped = {OPTIONS[name]: value for name, value in given.items() if name in OPTIONS and value is not None}
    if is_negative(mapped.get("n_predict")):
        mapped["n_predict"] = -1
    if is_negative(mapped.get("repeat_last_n")):
        mapped["repeat_last_n"] = INT32_MAX  # all there is
    return mapped


def is_negative(value: Any) -> bool:
    """Whether a number says "no limit"."""
    return isinstance(value, int | float) and value < 0


def format_of(body: Object) -> dict[str, Any]:
    """`format`: any JSON object, or one that matches a schema."""
    given = body.get("format")
    if given is None or given == "":
        return {}
    if given == "json":
        return {"response_format": {"type": "json_object"}}
    if isinstance(given, dict):
        return {"response_format": {"type": "json_schema", "json_schema": {"schema": given}}}
    raise invalid(f"Field 'format': must be 'json' or a JSON schema, but is {given!r:.60}")


def thinking_of(body: Object) -> dict[str, Any]:
    """`think`: on, off, or how much."""
    given = body.get("think")
    if given is None:
        return {}
    if isinstance(given, bool):
        return {"chat_template_kwargs": {"enable_thinking": given}}
    if given in EFFORTS:
        return {"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": given}
    shown = kind_of(given) if not isinstance(given, str) else repr(given[:60])
    raise invalid(f"Field 'think': must be a boolean, 'low', 'medium' or 'high', but is {shown}")
