"""Which tools an answer may, must or must not call, and the constraint that sees to it."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher
from msgspec import Struct

from api.chat_errors import ChatError
from api.parse.checks import enforceable, fault, located
from api.parse.format import Format
from api.parse.lark import Grammar
from api.parse.layout import Ask, Start, Wake, Wanted
from api.parse.rawtext import Unenforceable
from api.parse.schema import part, properties
from engine.deep import deeply
from engine.vocab import Vocab
from ipc.messages import Constraint, Trigger

EMPTY: dict[str, Any] = {"type": "object", "properties": {}}
CONTROL, USER_DEFINED = 1 << 3, 1 << 4  # of `llama_token_attr`
OPENING = {"additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "$ref"}
MODES = ("auto", "none", "required")


class ToolChoice(Struct, frozen=True):
    """`mode` is "auto", "none" or "required"; only the functions of `schemas` may be called."""

    mode: str
    schemas: dict[str, Any]  # of the parameters, by the function's name
    parallel: bool = True

    @property
    def active(self) -> bool:
        """Whether calls can come."""
        return self.mode != "none" and bool(self.schemas)

    def ask(self, **more: Any) -> Ask:
        """What to ask of the parser."""
        return Ask(tools=self.schemas, calls=self.active, **more)


def read_tool_choice(value: Any, tools: Sequence[Mapping[str, Any]], parallel: bool = True) -> ToolChoice:
    """The `tool_choice` of a request. Raises `ChatError`."""
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or EMPTY for tool in tools}
    if value is None:
        value = "auto"
    if isinstance(value, str):
        if value not in MODES:
            raise ChatError(f"Invalid tool_choice: {value}")
        mode, names = value, list(schemas)
    elif isinstance(value, dict):
        mode, names = named_choice(value, list(schemas))
    else:
        raise ChatError(f"Invalid tool_choice: expected a string or an object, got {value!r:.60}")
    if mode == "required" and not names:
        raise ChatError("'tool_choice' is \"required\", but there are no tools")
    for name in names:
        if name not in schemas:
            raise ChatError(f"'tool_choice' names the function '{name:.100}', which is not among the tools")
    return ToolChoice(mode, {name: schemas[name] for name in names}, parallel)


def named_choice(value: Mapping[str, Any], names: list[str]) -> tuple[str, list[str]]:
    """The mode and the functions that an object names: one, several allowed ones, or only a mode."""
    kind = value.get("type")
    if kind == "function":
        return "required", [function_name(value)]
    if kind == "allowed_tools":
        allowed = value.get("allowed_tools", value)
        listed = allowed.get("tools") if isinstance(allowed, dict) else None
        if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
            raise ChatError("Invalid tool_choice: allowed_tools needs a list of tools")
        mode = allowed.get("mode", "auto")
        if mode not in ("auto", "required"):
            raise ChatError(f"Invalid tool_choice: mode {mode!r:.60}")
        return mode, list(dict.fromkeys(map(function_name, listed)))
    if kind in MODES:
        return str(kind), names
    raise ChatError(f"Invalid tool_choice: {dict(value)!r:.100}")


def function_name(value: Mapping[str, Any]) -> str:
    """The name in `{"type": "function", "function": {"name": …}}`, or beside the type as the Responses API has it."""
    function = value.get("function", value)
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name:
        raise ChatError("Invalid tool_choice: the function's name is missing")
    return name


class Constrainer:
    """Makes the constraint of a request to a model whose answers have the given format.

    `specials` are the vocabulary's control tokens by their text, and `start` is where the answer starts.
    Takes milliseconds for many tools: call it off the event loop. Every method raises `ChatError` for a schema that
    cannot be enforced, naming the place.
    """

    def __init__(self, format: Format, specials: Mapping[str, int], start: Start) -> None:
        self.format = format
        self.specials = specials
        self.start = start
        self.warnings: list[str] = []

    def constraint(self, choice: ToolChoice, schema: Mapping[str, Any] | None = None) -> Constraint | None:
        """The constraint for calls, with a `schema` for an answer that is no call; None where neither is asked for."""
        if not choice.active:
            return None if schema is None else self.answer(self.checked(schema, "response_format"))
        forms = {name: self.checked(parameters(form), f"tool '{name}'") for name, form in choice.schemas.items()}
        wanted = Wanted(forms, choice.parallel)
        if choice.mode == "required":
            return self.compiled(wanted, lambda g, w: self.format.calls_rule(g, w, self.start))
        if schema is not None:
            form = self.checked(schema, "response_format")
            return self.compiled(wanted, lambda g, w: self.either(g, w, form))
        woken = self.compiled(wanted, self.format.woken_rule)
        triggers = [self.trigger(wake) for wake in self.format.wakes(wanted)]
        return Constraint("lark", woken.text, lazy=True, triggers=triggers)

    def answer(self, form: Mapping[str, Any]) -> Constraint:
        """The constraint of an answer that is JSON."""
        return self.compiled(Wanted({}), lambda g, _: self.format.answer_rule(g, form, self.start))

    def either(self, g: Grammar, wanted: Wanted, form: Mapping[str, Any]) -> str:
        """Calls, or a JSON answer."""
        calls = g.rule(self.format.calls_rule(g, wanted, self.start), "calls")
        return f"{calls} | {self.format.answer_rule(g, form, self.start)}"

    def checked(self, form: Mapping[str, Any], place: str) -> dict[str, Any]:
        """A schema as it can be enforced; what it loses becomes a warning."""
        try:
            enforced, warnings = enforceable(form)
        except Unenforceable as error:
            raise refusal(place, error) from error
        self.warnings += [f"{place}: {warning}" for warning in warnings]
        return enforced

    def compiled(self, wanted: Wanted, rule: Callable[[Grammar, Wanted], str]) -> Constraint:
        """The grammar that `rule` starts; a fault in it is blamed on the tool that has it."""
        try:
            return Constraint("lark", self.source(wanted, rule))
        except Unenforceable as error:
            for name, form in wanted.tools.items():
                self.blame(f"tool '{name}'", Wanted({name: form}), rule)
            raise refusal("the constraint", error) from error

    def blame(self, place: str, wanted: Wanted, rule: Callable[[Grammar, Wanted], str]) -> None:
        """Raise the fault of one tool, if it has one."""
        try:
            self.source(wanted, rule)
        except Unenforceable as error:
            if not error.path:
                self.blame_parameter(place, wanted)
            raise refusal(place, error) from error

    def blame_parameter(self, place: str, wanted: Wanted) -> None:
        """Raise the fault of one parameter of the only function, if it has one by itself."""
        for form in wanted.tools.values():
            for name, inner in properties(form, form).items():
                if reason := fault(part(inner, form)):
                    raise refusal(place, located(inner, form, name, reason))

    def source(self, wanted: Wanted, rule: Callable[[Grammar, Wanted], str]) -> str:
        """The grammar's text, once llguidance has taken it. Raises `Unenforceable`."""
        g = Grammar(self.specials)
        source = g.source(rule(g, wanted))
        if reason := grammar_fault(source):
            raise Unenforceable("schema", reason.partition("\n")[0])
        return source

    def trigger(self, wake: Wake) -> Trigger:
        """What wakes the constraint, as the engine knows it: a control token by its id."""
        if wake.kind == "word" and wake.text in self.specials:
            return Trigger("token", wake.text, self.specials[wake.text])
        return Trigger(wake.kind, wake.text)


def parameters(form: Mapping[str, Any]) -> Mapping[str, Any]:
    """A function's schema; one that lists no parameters takes none, though JSON Schema would allow any."""
    if form.get("properties") == {} and not set(form) & OPENING:
        return {**form, "additionalProperties": False}
    return form


@lru_cache(maxsize=256)
def grammar_fault(source: str) -> str:
    """What llguidance has against a Lark grammar. Conversations repeat their tools, so it is remembered."""
    found: str = deeply(LLMatcher.validate_grammar, LLMatcher.grammar_from_lark(source))
    return found


def control_tokens(vocab: Vocab) -> dict[str, int]:
    """The tokens that a grammar must name by their ids, by their text. Takes a moment: once per vocabulary.

    They are what the engine takes for control tokens: those marked so, and user-defined ones that look like a tag.
    """
    found: dict[str, int] = {}
    for token, piece in enumerate(vocab.pieces(special=True)):
        attributes = vocab.attributes(token) & (CONTROL | USER_DEFINED)
        if attributes and (attributes & CONTROL or piece[:1] + piece[-1:] == b"<>"):
            found.setdefault(piece.decode("utf-8", "replace"), token)
    found.pop("", None)
    return found


def preserved_tokens(format: Format, specials: Mapping[str, int]) -> list[int]:
    """The control tokens that must stay visible in the answer for the parser to see them."""
    return sorted(token for text, token in specials.items() if any(text in mark for mark in format.marks))


def refusal(place: str, error: Unenforceable) -> ChatError:
    """The answer to a schema that cannot be enforced."""
    where = f", at '{error.path}'" if error.path else ""
    return ChatError(f"The schema of {place}{where}: keyword '{error.keyword}' cannot be enforced: {error}")
