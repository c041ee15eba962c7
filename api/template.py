"""A model's chat template: compiled once, rendered with limits, and where it comes from."""

import logging
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from traceback import walk_tb
from typing import Any

import jinja2
from jinja2.environment import Template
from msgspec import Struct

from api.builtin_templates import builtin, detect
from api.capabilities import Capabilities, find_call_example, find_capabilities
from api.chat_errors import ChatError, TemplateError
from api.template_dialect import Dialect
from api.template_limits import LimitedContext, Limits
from api.template_sandbox import sandbox
from api.thinking import ThinkingTags, find_thinking_tags

log = logging.getLogger(__name__)

Message = dict[str, Any]

LONGEST_MARK = 64
BEGUN_MARK = re.compile(r"[<\[][^<>\[\]\s]*$")


class Tokens(Struct, frozen=True):
    """The marks that a tokenizer puts around a text, as text, and whether it does so by itself."""

    bos: str = ""
    eos: str = ""
    add_bos: bool = False
    add_eos: bool = False


class ChatTemplate:
    """One template. Rendering is safe from several threads, and belongs off the event loop.

    Raises `TemplateError` for a template that does not compile, and whenever one fails to render.
    """

    def __init__(self, source: str, tokens: Tokens | None = None, limits: Limits | None = None) -> None:
        self.source = source
        self.tokens = tokens or Tokens()
        self.limits = limits or Limits()
        self.dialect = Dialect(source)
        self._template = compile_template(source)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        add_generation_prompt: bool = True,
        enable_thinking: bool = True,
        kwargs: Mapping[str, Any] | None = None,
        now: datetime | None = None,
    ) -> str:
        """The prompt, without the BOS and EOS that the tokenizer adds."""
        moment = now or datetime.now()
        variables: dict[str, Any] = {
            "messages": self.dialect.messages(messages),
            "bos_token": self.tokens.bos,
            "eos_token": self.tokens.eos,
            "enable_thinking": enable_thinking,
            "datetime": moment.strftime("%b %d %Y"),
            "date_string": moment.strftime("%d %b %Y"),
        }
        if tools:
            variables["tools"] = list(tools)
        variables |= reasoning_variables(kwargs or {}) | dict(kwargs or {})
        if add_generation_prompt:
            variables["add_generation_prompt"] = True
        return self._trim_marks(self.dialect.prompt(self.run(variables), add_generation_prompt))

    def run(self, variables: Mapping[str, Any]) -> str:
        """The template's output for exactly these variables."""
        context = self._template.new_context(dict(variables))
        assert isinstance(context, LimitedContext)
        context.start(self.limits)
        pieces: list[str] = []
        chars = 0
        try:
            for piece in self._template.root_render_func(context):
                chars += len(piece)
                context.allow_text(chars)
                pieces.append(piece)
        except TemplateError:
            raise
        except Exception as error:
            raise TemplateError(f"the chat template failed{self._where(error)}: {error}") from error
        return "".join(pieces)

    @cached_property
    def capabilities(self) -> Capabilities:
        """What the template can express, by trial renderings."""
        return find_capabilities(self)

    @cached_property
    def thinking_tags(self) -> ThinkingTags | None:
        """The marks around a thought, as far as the template shows them."""
        return find_thinking_tags(self) if self.capabilities.supports_thinking else None

    @cached_property
    def call_example(self) -> str | None:
        """A tool call as the template writes one, for a model that must be told; None if it does not say."""
        able = self.capabilities
        return find_call_example(self, able.supports_object_arguments) if able.supports_tool_calls else None

    def _where(self, error: Exception) -> str:
        """The template's line that raised `error`."""
        for frame, line in reversed(list(walk_tb(error.__traceback__))):
            if frame.f_code.co_filename == "<template>":
                return f" in line {self._template.get_corresponding_lineno(line)}"
        return ""

    def _trim_marks(self, text: str) -> str:
        if self.tokens.add_bos and self.tokens.bos:
            text = text.removeprefix(self.tokens.bos)
        if self.tokens.add_eos and self.tokens.eos:
            text = text.removesuffix(self.tokens.eos)
        return text


def compile_template(source: str) -> Template:
    """jinja's compiled form of `source`."""
    try:
        return sandbox().from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"the chat template is not valid in line {error.lineno}: {error.message}") from error
    except Exception as error:
        raise TemplateError(f"the chat template is not valid: {error}") from error


def reasoning_variables(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The names under which templates look for `preserve_reasoning` and `reasoning_effort`."""
    names: dict[str, Any] = {}
    keep = kwargs.get("preserve_reasoning")
    if isinstance(keep, bool):
        names = {"preserve_thinking": keep}
        names |= dict.fromkeys(("clear_thinking", "truncate_history_thinking", "drop_thinking"), not keep)
    effort = kwargs.get("reasoning_effort")
    if isinstance(effort, str) and effort:
        names["reasoning_strength"] = effort
    return names


def suffix_between(without: str, whole: str) -> str:
    """What `whole` has after the part that it shares with `without`: the generation prompt. No mark is cut in two."""
    if whole.startswith(without):
        return whole[len(without) :]
    low, high = 0, min(len(without), len(whole))  # by halving: comparing slices costs nothing beside a loop
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if without[:middle] == whole[:middle] else (low, middle - 1)
    begun = BEGUN_MARK.search(whole, max(low - LONGEST_MARK, 0), low)
    return whole[begun.start() if begun else low :]


class ChatTemplates:
    """The template of a model and, where it has one, the variant for requests with tools."""

    def __init__(self, default: ChatTemplate, tool_use: ChatTemplate | None = None, *, jinja: bool = True) -> None:
        self.default = default
        self.tool_use = tool_use
        self.jinja = jinja

    @classmethod
    def of(
        cls,
        model_source: str | None = None,
        tool_use_source: str | None = None,
        *,
        override: str | None = None,
        jinja: bool = True,
        tokens: Tokens | None = None,
    ) -> "ChatTemplates":
        """By `--chat-template` (`override`: text or a built-in name), the model's own, or ChatML.

        Without jinja a template only serves to recognise one of the built-in ones.
        """
        if override:
            return cls(ChatTemplate(resolve(override, jinja), tokens), jinja=jinja)
        source = model_source or tool_use_source or "chatml"
        variant = usable(tool_use_source, tokens) if jinja and tool_use_source else None
        return cls(ChatTemplate(resolve(source, jinja), tokens), variant, jinja=jinja)

    def select(self, tools: Sequence[Any]) -> ChatTemplate:
        """The template for a request with these tools."""
        return self.tool_use if tools and self.tool_use else self.default


def usable(source: str, tokens: Tokens | None) -> ChatTemplate | None:
    """A variant that the model can do without: None, with a warning, if it does not compile."""
    try:
        return ChatTemplate(source, tokens)
    except TemplateError as error:
        log.warning("tool_use template ignored: %s", error.message)
        return None


def resolve(source: str, jinja: bool) -> str:
    """The jinja source that `source` (a built-in name or a template) stands for."""
    named = builtin(source.strip())
    if named is not None:
        return named
    if jinja:
        return source
    known = detect(source)
    if known is None:
        raise ChatError("this custom template is not supported, try using --jinja")
    text = builtin(known)
    assert text is not None
    return text
