"""From the body of a chat request to its `ChatRun`: `spec/chat.md` §1."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from api.chat_errors import ChatError
from api.chat_messages import content_text, parse_content
from api.chat_model import ChatModel
from api.chat_prompt import ChatPrompt, build_chat_prompt
from api.chat_run import ChatRun, new_id
from api.fields import flag, integer, kind_of
from api.message_starts import message_starts
from api.params import Params
from api.parse.events import Content, Event, Reasoning
from api.parse.format import Format
from api.parse.formats import shown_apart
from api.parse.layout import Start
from api.parse.stream import Parser
from api.service import Service
from api.thinking_budget import reasoning_budget
from api.tools import Constrainer, ToolChoice, preserved_tokens, read_tool_choice
from ipc.messages import Constraint

REASONING_FORMATS = ("none", "auto", "deepseek", "deepseek-legacy")


async def start_chat(service: Service, body: Mapping[str, Any]) -> ChatRun:
    """A request read, rendered and tokenised; nothing is submitted yet. Raises `ApiError`."""
    return await asyncio.to_thread(plan_chat, service, body)


def plan_chat(service: Service, body: Mapping[str, Any]) -> ChatRun:
    """As `start_chat`, in the calling thread: some milliseconds."""
    return Plan(service, {key: value for key, value in body.items() if value is not None}).run()


class Plan:
    """The parts of one request, made in the order in which its faults are reported."""

    def __init__(self, service: Service, body: dict[str, Any]) -> None:
        """`body`: without null members."""
        self.service = service
        self.model: ChatModel = service.chat
        self.body = body
        tops = read_tops(body)
        check_constraints(body)
        self.params: Params = service.fields.read(engine_body(body, tops))
        self.tops = tops if tops is not None else self.params.task.n_probs or None
        self.schema = schema_of(self.params.task.constraint)
        if self.params.reasoning_format not in REASONING_FORMATS:
            raise ChatError(f"Unknown reasoning format: {self.params.reasoning_format:.60}")
        setup = self.model.setup
        self.prompt: ChatPrompt = build_chat_prompt(setup.templates, setup.guard, body, setup.defaults)
        self.format: Format = self.model.format(self.prompt)
        self.choice = self.tool_choice()
        self.ask = self.choice.ask(
            apart=shown_apart(self.params.reasoning_format, self.params.stream),
            thinking=self.prompt.enable_thinking,
            fenced=self.schema is not None,
        )
        self.closed = self.is_closed()
        self.opened = self.parser().thinking or self.begins_thinking()

    def tool_choice(self) -> ToolChoice:
        """Which calls may come. Without parsing, none can be told from text."""
        able = self.prompt.template.capabilities.supports_parallel_tool_calls
        parallel = flag(self.body, "parallel_tool_calls", able)
        choice = read_tool_choice(self.body.get("tool_choice"), self.prompt.tools, parallel)
        if self.body.get("logprobs") and choice.active and self.params.stream:
            raise ChatError("logprobs is not supported with tools + stream")
        return ToolChoice("none", {}) if self.model.section.skip_parsing else choice

    def parser(self) -> Parser:
        """A parser for one answer."""
        return Parser(self.format, self.ask, self.prompt.generation_prompt)

    def run(self) -> ChatRun:
        """The whole."""
        constrainer = Constrainer(self.format, self.model.specials, self.start())
        self.complete(self.constraint(constrainer))
        tokens = self.model.setup.guard.tokenize(self.prompt.prompt)
        task = self.params.task
        task.message_starts = message_starts(self.prompt.prompt.text, tokens, self.body["messages"], self.model.lengths)
        task.label = new_id()
        tasks = self.params.tasks(tokens)
        parsers = [self.parser() for _ in tasks]
        run = ChatRun(self.service, self.params, tasks, parsers, self.echo())
        run.prompt = self.prompt.prompt.text
        run.model = self.service.alias(self.body.get("model"))
        run.tops = self.tops
        run.warnings = constrainer.warnings
        return run

    def is_closed(self) -> bool:
        """Whether the prompt leaves no room for thinking."""
        thinking, prompt = self.format.thinking, self.prompt
        tail = self.format.prompt_tail(prompt.generation_prompt)
        return prompt.continuation == "content" or (thinking is not None and thinking.end in tail)

    def begins_thinking(self) -> bool:
        """Whether the model thinks from the first token on, without a mark."""
        thinking = self.format.thinking
        return thinking is not None and not thinking.start and self.prompt.enable_thinking and not self.closed

    def start(self) -> Start:
        """Where the answer goes on from the prompt."""
        return Start(self.opened, self.prompt.enable_thinking and not self.closed)

    def constraint(self, constrainer: Constrainer) -> Constraint | None:
        """What the answer must look like."""
        asked = self.params.task.constraint
        if asked is not None and self.schema is None:
            if not self.choice.active:
                return asked
            if asked != self.service.fields.constraint:
                raise ChatError("Cannot use custom grammar constraints with tools.")
        found = constrainer.constraint(self.choice, self.schema)
        if found is not None and self.schema is not None and self.prompt.continuation == "content":
            found.prefix = self.tokens(self.last_content)
        return found

    def complete(self, constraint: Constraint | None) -> None:
        """Settle what the schema of the fields cannot know."""
        task, format = self.params.task, self.format
        task.constraint = constraint
        task.prompt_probs, self.params.prompt_logprobs = False, None
        task.stop = [*task.stop, *(stop for stop in format.stops if stop not in task.stop)]
        task.preserved_tokens = sorted({*task.preserved_tokens, *preserved_tokens(format, self.model.specials)})
        lazy = constraint is not None and constraint.lazy
        task.reasoning = reasoning_budget(self.params.thinking, format.thinking, self.opened, lazy, self.tokens)
        self.params.generation_prompt = self.prompt.generation_prompt
        self.params.chat_format = format.name

    def tokens(self, text: str) -> list[int]:
        """The tokens of a piece of text or a mark."""
        found: list[int] = self.model.vocab.encode(text, add_special=False, parse_special=True).tolist()
        return found

    def echo(self) -> list[Event]:
        """The beginning of the answer that the request brought along, if the answer is to repeat it."""
        if not self.params.echo or self.prompt.continuation is None:
            return []
        thought = self.body["messages"][-1].get("reasoning_content")
        news: list[Event] = [Reasoning(thought)] if thought and self.ask.apart else []
        if self.prompt.continuation == "content" and self.last_content:
            news.append(Content(self.last_content))
        return news

    @property
    def last_content(self) -> str:
        """The text of the last message."""
        content = parse_content(self.body["messages"][-1].get("content"), self.model.setup.defaults.media, [])
        return content_text(content, "\n\n")


def read_tops(body: Mapping[str, Any]) -> int | None:
    """How many alternatives are listed per token; None: no log-probabilities. Checks `logprobs` and `top_logprobs`."""
    asked, tops = body.get("logprobs", False), body.get("top_logprobs")
    if not isinstance(asked, bool):
        raise ChatError(f"Field 'logprobs': type must be a boolean, but is {kind_of(asked)}")
    try:
        n = 0 if tops is None else integer(tops)
    except ValueError as error:
        raise ChatError(f"Field 'top_logprobs': {error}") from None
    if n < 0:
        raise ChatError(f"Field 'top_logprobs': Value must be at least 0, but got {n}")
    if n and not asked:
        raise ChatError("top_logprobs requires logprobs to be set to true")
    return n if asked else None


def check_constraints(body: Mapping[str, Any]) -> None:
    """Raise for constraints that contradict each other."""
    if "grammar" in body and "json_schema" in body:
        raise ChatError("Cannot use both json_schema and grammar")


def engine_body(body: Mapping[str, Any], tops: int | None) -> dict[str, Any]:
    """The request as its generation sees it: with the native names of what chat requests call otherwise."""
    native = {key: value for key, value in body.items() if key not in ("logprobs", "top_logprobs")}
    if tops is not None:
        native["n_probs"] = max(tops, 1)  # of the chosen token itself, too
    given = [body[name] for name in ("reasoning_budget_tokens", "thinking_budget_tokens") if name in body]
    native.pop("reasoning_budget_tokens", None)
    if given and given[0] != -1:  # which stands for the server's budget
        native["reasoning_budget_tokens"] = given[0]
    return native


def schema_of(constraint: Constraint | None) -> dict[str, Any] | None:
    """The JSON schema of the whole answer, None without one."""
    if constraint is None or constraint.kind != "json_schema" or constraint.lazy:
        return None
    found: dict[str, Any] = msgspec.json.decode(constraint.text)
    return found
