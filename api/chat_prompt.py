"""From a chat request to the prompt: messages and tools checked, made safe, adapted, rendered."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from api.chat_adapt import adapt
from api.chat_errors import ChatError
from api.chat_messages import Media, MediaPart, Message, parse_messages
from api.chat_tools import TOOL_FORMAT, parse_tools, with_plain_calls, with_tool_prompt
from api.continuation import Mode, continuation_mode, continued_prompt
from api.safe_text import SafeInputs, SafeText, TextGuard
from api.template import ChatTemplate, ChatTemplates, suffix_between

RESERVED = ("messages", "tools")


class ChatDefaults(Struct, frozen=True):
    """What the command line settles for all chat requests."""

    kwargs: dict[str, Any] = {}
    reasoning: bool | None = None  # None: as the template has it
    reasoning_effort: str | None = None
    preserve_reasoning: bool = True
    prefill: bool = True
    plain_content: bool = True  # spelled-out control tokens in messages are text
    media: Media = Media()


class ChatPrompt(Struct, frozen=True):
    """A prompt to tokenise (`TextGuard.tokenize`), and what the parser of the answer must know of it."""

    prompt: SafeText
    generation_prompt: str  # the prompt's end that belongs to the model's turn
    template: ChatTemplate
    tools: list[dict[str, Any]]
    media: list[MediaPart]
    enable_thinking: bool
    tool_format: str | None = None  # a format that the prompt taught; None: the template's own
    continuation: Mode | None = None


def build_chat_prompt(
    templates: ChatTemplates, guard: TextGuard | None, request: Mapping[str, Any], defaults: ChatDefaults
) -> ChatPrompt:
    """The prompt of a `/v1/chat/completions` body; raises `ChatError`. Takes milliseconds: call it off the event loop.

    Without a `guard`, or by `plain_content`, control tokens spelled out in the messages count as such.
    """
    try:
        return built_prompt(templates, guard, request, defaults)
    except RecursionError as error:
        raise ChatError("messages or tools are nested too deeply") from error


def built_prompt(
    templates: ChatTemplates, guard: TextGuard | None, request: Mapping[str, Any], defaults: ChatDefaults
) -> ChatPrompt:
    """As `build_chat_prompt`."""
    parsed = parse_messages(request.get("messages"), defaults.media)
    tools = parse_tools(request.get("tools"))
    if not templates.jinja:
        refuse_tools(request, tools)
    template = templates.select(tools)
    mode = continuation_mode(request, parsed.turns, defaults.prefill)
    kwargs = template_kwargs(request, defaults)
    thinking = settle_thinking(template, request, kwargs, defaults)
    protect = guard.protect if guard and defaults.plain_content else SafeInputs
    inputs = protect(parsed.turns, tools, kwargs)
    rendering = Rendering(template, inputs, thinking)
    wanted = request.get("add_generation_prompt") is not False
    text, turn_start = rendering.continued(mode) if mode else rendering.asking(wanted)
    prompt = inputs.restore(text)
    return ChatPrompt(
        prompt=prompt,
        generation_prompt=inputs.restore(text[turn_start:]).text,
        template=template,
        tools=tools,
        media=parsed.media,
        enable_thinking=thinking,
        tool_format=rendering.tool_format,
        continuation=mode,
    )


class Rendering:
    """The renderings of one request's messages."""

    def __init__(self, template: ChatTemplate, inputs: SafeInputs, thinking: bool) -> None:
        self.template = template
        self.inputs = inputs
        self.thinking = thinking
        self.tools = inputs.tools
        self.tool_format: str | None = None
        self.turns = inputs.messages
        able = template.capabilities
        if self.tools and not able.supports_tools:
            self.teach_tools()
        elif not able.supports_tool_calls and any("tool_calls" in turn for turn in self.turns):
            self.turns = with_plain_calls(self.turns)

    def teach_tools(self) -> None:
        """Describe the tools in the messages, as the template does not."""
        native_call = self.template.call_example
        self.turns = with_tool_prompt(self.inputs.messages, self.tools, native_call)
        self.tools = []
        self.tool_format = None if native_call else TOOL_FORMAT

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        """The prompt for adapted messages."""
        return self.template.render(
            messages,
            self.tools,
            add_generation_prompt=add_generation_prompt,
            enable_thinking=self.thinking,
            kwargs=self.inputs.kwargs,
        )

    def adapted(self, turns: Sequence[Message]) -> list[Message]:
        """`turns` in the form that the template knows."""
        return adapt(turns, self.template.capabilities, self.template.source)

    def asking(self, wanted: bool) -> tuple[str, int]:
        """The prompt that asks for an answer if `wanted`, and where the answer's turn begins in it."""
        turns = self.adapted(self.turns)
        plain = self.render(turns, False)
        if not wanted:
            return plain, len(plain)
        text = self.render(turns, True)
        return text, len(text) - len(suffix_between(plain, text))

    def continued(self, mode: Mode) -> tuple[str, int]:
        """The prompt that goes on with the last message, and where that message's turn begins in it."""
        result = continued_prompt(self, self.adapted(self.turns[:-1]), self.turns[-1], mode)
        return result.text, result.turn_start


def refuse_tools(request: Mapping[str, Any], tools: Sequence[Any]) -> None:
    """Built-in templates without jinja know nothing of tools."""
    if tools:
        raise ChatError("tools param requires --jinja flag")
    if request.get("tool_choice") not in (None, "auto"):
        raise ChatError("tool_choice param requires --jinja flag")


def template_kwargs(request: Mapping[str, Any], defaults: ChatDefaults) -> dict[str, Any]:
    """The template's variables from the command line, with the request's over them."""
    given = request.get("chat_template_kwargs")
    if given is not None and not isinstance(given, dict):
        raise ChatError("chat_template_kwargs: expected an object")
    kwargs = {"preserve_reasoning": defaults.preserve_reasoning, **defaults.kwargs, **(given or {})}
    for name in RESERVED:
        if name in kwargs:
            raise ChatError(f"chat_template_kwargs: '{name}' cannot be set there")
    kwargs.pop("add_generation_prompt", None)
    return kwargs


def settle_thinking(
    template: ChatTemplate, request: Mapping[str, Any], kwargs: dict[str, Any], defaults: ChatDefaults
) -> bool:
    """Whether the model may think; takes `enable_thinking` out of `kwargs` and puts `reasoning_effort` in."""
    thinking = template.capabilities.supports_thinking and defaults.reasoning is not False
    asked = kwargs.pop("enable_thinking", None)
    if isinstance(asked, str):
        raise ChatError('invalid type for "enable_thinking" (expected boolean, got string)')
    if asked is not None:
        thinking = bool(asked)
    effort = request.get("reasoning_effort")
    if effort is not None and not isinstance(effort, str):
        raise ChatError("reasoning_effort: expected a string")
    effort = effort or kwargs.pop("reasoning_effort", None) or defaults.reasoning_effort
    if effort == "none":
        kwargs.pop("reasoning_effort", None)
        return False
    if effort:
        kwargs["reasoning_effort"] = effort
    return thinking
