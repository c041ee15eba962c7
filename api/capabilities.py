"""What a chat template can express, found by rendering made-up conversations and looking at what comes out."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct, structs

from api.chat_errors import TemplateError

Message = dict[str, Any]

TEXT = "llmrd-text"  # markers: nothing that a template would write by itself
SYSTEM = "llmrd-system"
NAME = "llmrd_tool"
FIRST, SECOND = "llmrd-one", "llmrd-two"
THOUGHT = "llmrd-thought"
QUOTED = "llmrd-not-an-object"
EFFORTS = ("low", "medium", "high")


class Renders(Protocol):
    """What a trial needs of a template."""

    source: str

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        add_generation_prompt: bool = True,
        enable_thinking: bool = True,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str: ...


class Capabilities(Struct, frozen=True):
    """`supports_thinking` is ours; the others are `/props`' `chat_template_caps`."""

    supports_string_content: bool = True
    supports_typed_content: bool = False
    supports_tools: bool = True
    supports_tool_calls: bool = True
    supports_parallel_tool_calls: bool = True
    supports_system_role: bool = True
    supports_preserve_reasoning: bool = False
    supports_reasoning_effort: bool = False
    supports_object_arguments: bool = False
    supports_thinking: bool = False
    supports_tool_role: bool = True

    def to_map(self) -> dict[str, bool]:
        """The object that `/props` shows."""
        ours = ("supports_thinking", "supports_tool_role")
        return {name: value for name, value in structs.asdict(self).items() if name not in ours}


class Probe(str):
    """A text that notices when it is used as a list."""

    indexed = False

    def __getitem__(self, key: Any) -> str:
        self.indexed = self.indexed or isinstance(key, int)
        return super().__getitem__(key)

    def __iter__(self) -> Any:
        self.indexed = True
        return super().__iter__()


class ProbeList(list[Any]):
    """A list of parts that notices when it is read item by item."""

    indexed = False

    def __getitem__(self, key: Any) -> Any:
        self.indexed = True
        return super().__getitem__(key)

    def __iter__(self) -> Any:
        self.indexed = True
        return super().__iter__()


class Arguments(dict[str, Any]):
    """Arguments as an object, which shows when a template prints them as if they were text."""

    def __str__(self) -> str:
        return QUOTED

    __repr__ = __str__


def find_capabilities(template: Renders) -> Capabilities:
    """All capabilities; about twenty renderings."""
    string, typed = content_kinds(template)
    trial = Trial(template, typed=typed and not string)
    objects = trial.shows(FIRST, call_turns(trial, FIRST, objects=True), tools=True)
    calls = objects or trial.shows(FIRST, call_turns(trial, FIRST), tools=True)
    return Capabilities(
        supports_string_content=string,
        supports_typed_content=typed,
        supports_tools=any(trial.shows(NAME, turns, tools=True) for turns in tool_trials(trial, objects)),
        supports_tool_calls=calls,
        supports_parallel_tool_calls=trial.shows(SECOND, call_turns(trial, FIRST, SECOND, objects=objects), tools=True),
        supports_system_role=trial.shows(SYSTEM, [trial.turn("system", SYSTEM), trial.turn("user", TEXT)]),
        supports_preserve_reasoning=trial.shows(THOUGHT, old_thought(trial), kwargs={"preserve_reasoning": True}),
        supports_reasoning_effort=reads_effort(trial),
        supports_object_arguments=objects,
        supports_thinking=thinks(trial),
        supports_tool_role=trial.shows(TEXT + "-result", call_turns(trial, FIRST, objects=objects), tools=True),
    )


class Trial:
    """Renderings of one template, with contents as strings or as lists of typed parts."""

    def __init__(self, template: Renders, typed: bool) -> None:
        self.template = template
        self.typed = typed

    def turn(self, role: str, text: str, **fields: Any) -> Message:
        """A message with `text` as content."""
        return {"role": role, "content": [{"type": "text", "text": text}] if self.typed else text, **fields}

    def render(self, turns: Sequence[Message], tools: bool = False, **options: Any) -> str | None:
        """The prompt, or None if the template fails."""
        try:
            return self.template.render(turns, [TOOL] if tools else [], **options)
        except TemplateError:
            return None

    def shows(self, marker: str, turns: Sequence[Message], tools: bool = False, **options: Any) -> bool:
        """Whether the prompt has `marker`, in whatever case."""
        text = (self.render(turns, tools, **options) or "").lower()
        return marker.lower() in text and QUOTED not in text


def content_kinds(template: Renders) -> tuple[bool, bool]:
    """Whether contents may be strings, and whether they may be lists of typed parts."""
    text = Probe(TEXT)
    prompt = try_render(template, [{"role": "user", "content": text}])
    string = prompt is not None and (TEXT in prompt or not text.indexed)
    parts = ProbeList([{"type": "text", "text": TEXT}])
    prompt = try_render(template, [{"role": "user", "content": parts}])
    shown = prompt is not None and TEXT in prompt
    typed = shown and parts.indexed and not printed_whole(prompt or "")
    return string or not typed, typed


def printed_whole(prompt: str) -> bool:
    """Whether a list of parts came out as the list itself, in Python's or JSON's spelling."""
    return "{'type':" in prompt or '{"type":' in prompt


def try_render(template: Renders, turns: Sequence[Message]) -> str | None:
    """The prompt, or None if the template fails."""
    try:
        return template.render(turns)
    except TemplateError:
        return None


TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "A tool",
        "parameters": {
            "type": "object",
            "properties": {"arg": {"type": "string", "description": "A value"}},
            "required": ["arg"],
        },
    },
}


def tool_trials(trial: Trial, objects: bool) -> list[list[Message]]:
    """Conversations in which a template that knows tools would list them."""
    return [
        [trial.turn("user", TEXT)],
        [trial.turn("system", SYSTEM), trial.turn("user", TEXT)],
        call_turns(trial, FIRST, objects=objects),
    ]


def call_turns(trial: Trial, *values: str, objects: bool = False) -> list[Message]:
    """A conversation in which the assistant calls a tool once for each value."""
    calls = []
    for index, value in enumerate(values, 1):
        arguments: Any = Arguments(arg=value) if objects else f'{{"arg": "{value}"}}'
        call = {"name": "other_tool", "arguments": arguments}
        calls.append({"id": f"call0000{index}", "type": "function", "function": call})
    results = [trial.turn("tool", f"{TEXT}-result", name="other_tool", tool_call_id=call["id"]) for call in calls]
    asked = {"role": "assistant", "content": "", "tool_calls": calls}
    return [trial.turn("user", TEXT), asked, *results, trial.turn("assistant", TEXT), trial.turn("user", TEXT)]


def both_calls(trial: Trial) -> list[list[Message]]:
    """A call with its arguments as an object, and as text."""
    return [call_turns(trial, FIRST, objects=objects) for objects in (True, False)]


def old_thought(trial: Trial) -> list[Message]:
    """A conversation with thinking in an answer that is not the last."""
    return [
        trial.turn("user", TEXT),
        trial.turn("assistant", TEXT, reasoning_content=THOUGHT),
        trial.turn("user", TEXT),
        trial.turn("assistant", TEXT, reasoning_content="later"),
        trial.turn("user", TEXT),
    ]


def reads_effort(trial: Trial) -> bool:
    """Whether the prompt depends on `reasoning_effort`."""
    turns = [trial.turn("user", TEXT)]
    prompts = {trial.render(turns, kwargs={"reasoning_effort": effort}) for effort in EFFORTS}
    return len(prompts | {trial.render(turns)}) > 1


def thinks(trial: Trial) -> bool:
    """Whether the model may think before it answers, as far as the template tells."""
    turns = [trial.turn("user", TEXT)]
    if trial.render(turns) != trial.render(turns, enable_thinking=False):
        return True
    thought = {"reasoning_content": THOUGHT}
    answered = [*turns, trial.turn("assistant", TEXT, **thought)]
    called = [[asked, call | thought, result] for asked, call, result, *_ in both_calls(trial)]
    if any(trial.shows(THOUGHT, end, add_generation_prompt=False) for end in (answered, *called, old_thought(trial))):
        return True
    prompt = (trial.render(turns) or "").rstrip()
    return prompt.endswith(("<think>", "[THINK]")) or "split('</think>')" in trial.template.source


def find_call_example(template: Renders, objects: bool) -> str | None:
    """What the template writes for a tool call, without the marks of the turn around it."""
    trial = Trial(template, typed=not content_kinds(template)[0])
    turns = [trial.turn("user", TEXT)]
    said = trial.render([*turns, trial.turn("assistant", SECOND)], add_generation_prompt=False) or ""
    opening, found, closing = said.rpartition(SECOND)
    arguments: Any = {"parameter": "value"} if objects else '{"parameter": "value"}'
    call = {"type": "function", "function": {"name": "function_name", "arguments": arguments}, "id": "call00001"}
    asked = {"role": "assistant", "content": "", "tool_calls": [call]}
    text = trial.render([*turns, asked], add_generation_prompt=False) or ""
    if not found or not text.startswith(opening) or "function_name" not in text:
        return None
    return text.removeprefix(opening).removesuffix(closing)
