"""Answers that go on from a beginning which the request brings as its last message (prefill)."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from api.chat_errors import ChatError, TemplateError
from api.chat_messages import Message, content_text
from api.template import ChatTemplate, suffix_between
from api.thinking import DEFAULT_TAGS, ThinkingTags

Mode = Literal["content", "reasoning_content"]

CONTENT, THOUGHT = "llmrd-the-answer", "llmrd-the-thought"


class Conversation(Protocol):
    """A template with everything but the messages settled."""

    template: ChatTemplate

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str: ...


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


def continued_prompt(talk: Conversation, history: Sequence[Message], last: Message, mode: Mode) -> Continued:
    """The prompt that stops where `last` stops.

    The opener is the template's own: the message is rendered with markers for its texts and cut at a marker. Where
    the template has no place for a text, the generation prompt is taken, with the thought put in.
    """
    before = talk.render(history, False) if history else ""
    thought = last.get("reasoning_content", "")
    head = marked_head(talk, history, last, mode)
    thinks = mode == "content" and talk.template.capabilities.supports_thinking
    if head is None or (thinks and not fits(talk, history, before, head, last)):
        head = opener(talk, history, last, mode, head or "")
    else:
        head = head.replace(THOUGHT, thought)
    tail = thought if mode == "reasoning_content" else content_text(last["content"], "\n\n")
    return Continued(head + tail, len(head) - len(suffix_between(before, head)))


def marked_head(talk: Conversation, history: Sequence[Message], last: Message, mode: Mode) -> str | None:
    """The rendered text up to the marker where the message goes on; None if the template shows none."""
    typed = not talk.template.capabilities.supports_string_content
    try:
        whole = talk.render([*history, marked_message(last, mode, typed)], False)
    except TemplateError:
        if not history:
            raise
        return None
    head, found, _ = whole.rpartition(CONTENT if mode == "content" else THOUGHT)
    return head if found else None


def marked_message(last: Message, mode: Mode, typed: bool) -> Message:
    """The message to continue, with markers in place of its texts."""
    thought = {"reasoning_content": THOUGHT} if mode == "reasoning_content" or last.get("reasoning_content") else {}
    content: Any = [{"type": "text", "text": CONTENT}] if typed else CONTENT
    plain = {key: value for key, value in last.items() if key != "reasoning_content"}
    return plain | thought | {"content": content}


def fits(talk: Conversation, history: Sequence[Message], before: str, head: str, last: Message) -> bool:
    """Whether an answer's `head` shows the thought there is, and closes the thinking that the template opens."""
    if last.get("reasoning_content") and THOUGHT not in head:
        return False
    return not opens_thinking(talk, history) or tags_of(talk).end.strip() in suffix_between(before, head)


def tags_of(talk: Conversation) -> ThinkingTags:
    """The template's thinking marks, or the common ones."""
    return talk.template.thinking_tags or DEFAULT_TAGS


def opens_thinking(talk: Conversation, history: Sequence[Message]) -> bool:
    """Whether the generation prompt leaves the model thinking."""
    return bool(history) and talk.render(history, True).rstrip().endswith(tags_of(talk).start.strip())


def opener(talk: Conversation, history: Sequence[Message], last: Message, mode: Mode, head: str) -> str:
    """A head from the generation prompt and the thought; `head` is the template's own, if that has one."""
    thought, thinks = last.get("reasoning_content", ""), talk.template.capabilities.supports_thinking
    if mode == "reasoning_content" and not thinks:
        raise ChatError("Cannot continue reasoning_content: the chat template does not support thinking.")
    asked = talk.render(history, True) if history else ""
    tags = tags_of(talk)
    if asked.endswith(tags.start.strip()):  # nothing but the mark
        tags = ThinkingTags(tags.start.strip(), tags.end.strip())
    bare = without_thinking(asked, talk.render(history, False) if history else "", tags)
    if mode == "reasoning_content":
        return bare + tags.start
    if thinks and (thought or opens_thinking(talk, history)):
        return f"{bare}{tags.start}{thought}{tags.end}{after_thought(head, bare, tags)}"
    return asked


def without_thinking(asked: str, before: str, tags: ThinkingTags) -> str:
    """A prompt that asks for an answer, up to the first thinking mark of its last turn."""
    begins = len(asked) - len(suffix_between(before, asked))
    places = [asked.find(mark.strip(), begins) for mark in (tags.start, tags.end)]
    return asked[: min((place for place in places if place >= 0), default=len(asked))]


def after_thought(head: str, bare: str, tags: ThinkingTags) -> str:
    """What the template has between a thought and the answer, besides the mark."""
    rest = head.removeprefix(bare) if head.startswith(bare) else ""
    if tags.end.strip() in rest:
        return rest.rpartition(tags.end.strip())[2].lstrip()
    return "" if tags.start.strip() in rest else rest
