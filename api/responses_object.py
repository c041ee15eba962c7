"""The objects of the Responses API: a response and the items of its output; `spec/chat.md` §8.2."""

from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

IN_PROGRESS, COMPLETED, INCOMPLETE, FAILED = "in_progress", "completed", "incomplete", "failed"
encode = msgspec.json.Encoder().encode


class OutputText(Struct):
    """The text of a message."""

    text: str = ""
    type: str = "output_text"
    annotations: list[Any] = []
    logprobs: list[Raw] = []


class ReasoningText(Struct):
    """The text of a thought."""

    text: str = ""
    type: str = "reasoning_text"


class ReasoningItem(Struct):
    """What the model thought."""

    id: str
    type: str = "reasoning"
    status: str = IN_PROGRESS
    summary: list[Any] = []
    content: list[ReasoningText] = []
    encrypted_content: str = ""


class MessageItem(Struct):
    """What the model said."""

    id: str
    type: str = "message"
    status: str = IN_PROGRESS
    role: str = "assistant"
    content: list[OutputText] = []


class CallItem(Struct):
    """A tool call."""

    id: str
    call_id: str
    name: str
    arguments: str = ""
    type: str = "function_call"
    status: str = IN_PROGRESS


OutputItem = ReasoningItem | MessageItem | CallItem


class InputDetails(Struct):
    """Parts of the input tokens."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputDetails(Struct):
    """Parts of the output tokens."""

    reasoning_tokens: int = 0


class Usage(Struct):
    """Counts of tokens."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputDetails
    output_tokens_details: OutputDetails


class Incomplete(Struct):
    """Why a response ended before its time."""

    reason: str = "max_output_tokens"


class Failed(Struct):
    """Why there is no answer."""

    code: str
    message: str


class ResponseObject(Struct):
    """A response; settings that the server has no use for are echoed."""

    id: str
    created_at: int
    model: str
    object: str = "response"
    status: str = IN_PROGRESS
    completed_at: int | None = None
    background: bool = False
    error: Failed | None = None
    incomplete_details: Incomplete | None = None
    instructions: Any = None
    max_output_tokens: int | None = None
    max_tool_calls: Any = None
    metadata: Any = field(default_factory=dict)
    output: list[OutputItem] = []
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: Any = None
    reasoning: Any = None
    safety_identifier: Any = None
    service_tier: str = "default"
    store: bool = False
    temperature: float | None = None
    text: Any = None
    tool_choice: Any = "auto"
    tools: list[Any] = []
    top_logprobs: int = 0
    top_p: float | None = None
    truncation: str = "disabled"
    usage: Usage | None = None
    user: Any = None
    timings: dict[str, Any] | UnsetType = UNSET


def echoed(body: dict[str, Any]) -> dict[str, Any]:
    """The members of a response that repeat what was asked."""
    reasoning = body.get("reasoning") or {}
    text = body.get("text") or {}
    names = ("instructions", "max_output_tokens", "max_tool_calls", "prompt_cache_key", "safety_identifier", "user")
    return {
        **{name: body.get(name) for name in names},
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "previous_response_id": body.get("previous_response_id") or None,
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "text": {"format": text.get("format") or {"type": "text"}, "verbosity": text.get("verbosity") or "medium"},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_logprobs": body.get("top_logprobs") or 0,
        "truncation": body.get("truncation") or "disabled",
    }
