"""Answers that go on from a beginning which the request brings as its last message (prefill)."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from api.capabilities import Capabilities
from api.chat_errors import ChatError, TemplateError
from api.chat_messages import Message, content_text
from api.template import suffix_between

Mode = Literal["content", "reasoning_content"]

CLOSERS = {  # of thinking that a template opens in its generation prompt
    "<think>": "</think>",
    "[THINK]": "[/THINK]",
    "<seed:think>": "</seed:think>",
    "<mm:think>": "</mm:think>",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|channel>thought": "<channel|>",
    "<|channel|>analysis<|message|>": "<|end|><|start|>assistant<|channel|>final<|message|>",
}
CONTENT, THOUGHT = "llmrd-the-answer", "llmrd-the-thought"


class RendersTurns(Protocol):
    """A template with everything but the messages settled."""

    def __call__(self, messages: Sequence[Message], add_generation_prompt: bool) -> str: ...


class Continued(Struct, frozen=True):
    """A prompt that ends inside the model's turn, and where that turn begins in it."""

    text: str
    turn_start: int


def continuation_mode(request: Mapping[str, Any], turns: Sequence[Message], prefill: bool) -> Mode | None:
    """How the last message is to be continued, if at all; raises `ChatError`."""
    asked = request.get("continue_final_message")
    if asked not in (None, False, True, "content", "reasoning_content"):
        raise ChatError('"continue_final_message" must be a boolean, "content" or "reasoning_content"')
    last = turns[-1]
    explicit = bool(asked)
    if not explicit:
        if not prefill or last["role"] != "assistant":
            return None
        if len(turns) > 1 and turns[-2]["role"] == "assistant":
            raise ChatError("Cannot have 2 or more assistant messages at the end of the list.")
    elif request.get("add_generation_prompt") is not False:
        raise ChatError("Cannot set both add_generation_prompt and continue_final_message to true.")
    if last["role"] == "assistant" and last.get("tool_calls"):
        raise ChatError("Cannot continue an assistant message that contains tool calls.")
    if isinstance(asked, str):
        return "content" if asked == "content" else "reasoning_content"
    return "reasoning_content" if last.get("reasoning_content") and not last["content"] else "content"


def continued_prompt(
    render: RendersTurns, able: Capabilities, history: Sequence[Message], last: Message, mode: Mode
) -> Continued:
    """The prompt that stops where `last` stops.

    The opener is the template's own: the message is rendered with markers for its texts and cut at a marker. Where
    the template has no place for a text, the generation prompt is taken, and the thinking that it opens is closed.
    """
    before = render(history, False) if history else ""
    opened = render(history, True) if history else ""
    thinking = opened_thinking(opened)
    head = head_of(render, history, marked_message(last, mode, typed=not able.supports_string_content), mode)
    if head is None or (thinking and thinking not in suffix_between(before, head)):
        head = opener(opened, thinking, last, mode, able.supports_thinking)
    else:
        head = head.replace(THOUGHT, last.get("reasoning_content", ""))
    tail = last.get("reasoning_content", "") if mode == "reasoning_content" else content_text(last["content"], "\n\n")
    return Continued(head + tail, len(head) - len(suffix_between(before, head)))


def marked_message(last: Message, mode: Mode, typed: bool) -> Message:
    """The message to continue, with markers in place of its texts."""
    thought = {"reasoning_content": THOUGHT} if mode == "reasoning_content" or last.get("reasoning_content") else {}
    content: Any = [{"type": "text", "text": CONTENT}] if typed else CONTENT
    plain = {key: value for key, value in last.items() if key != "reasoning_content"}
    return plain | thought | {"content": content}


def head_of(render: RendersTurns, history: Sequence[Message], marked: Message, mode: Mode) -> str | None:
    """The rendered text up to the marker where the message goes on; None if the template shows none."""
    try:
        whole = render([*history, marked], False)
    except TemplateError:
        if not history:
            raise
        return None
    head, found, _ = whole.rpartition(CONTENT if mode == "content" else THOUGHT)
    return head if found else None


def opened_thinking(opened: str) -> str:
    """The thinking tag that the generation prompt leaves open, or nothing."""
    tail = opened.rstrip()
    return next((tag for tag in CLOSERS if tail.endswith(tag)), "")


def opener(opened: str, thinking: str, last: Message, mode: Mode, thinks: bool) -> str:
    """A head from the generation prompt, where the template does not render the message's parts itself."""
    thought = last.get("reasoning_content", "")
    if mode == "reasoning_content" and not thinks:
        raise ChatError("Cannot continue reasoning_content: the chat template does not support thinking.")
    if thinks and not thinking and (thought or mode == "reasoning_content"):
        thinking = "<think>"
        opened += f"{thinking}\n"
    if mode == "reasoning_content" or not thinking:
        return opened
    return f"{opened}{thought}\n{CLOSERS[thinking]}\n\n"
