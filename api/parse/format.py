"""A family's way to write an answer: thinking, content and tool calls; and how to read it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from api.parse.calls import Calls
from api.parse.events import LONG_ID
from api.parse.jsontext import Unreadable, json_value
from api.parse.lark import Grammar, sequence
from api.parse.layout import NO_MARKS, Ask, Pair, Start, Thinking, Wake, Wanted
from api.parse.output import Output
from api.parse.rawtext import Unenforceable
from api.parse.scan import Scanner, Steps, markers


@dataclass(frozen=True, slots=True)
class Format:
    """An answer of optional thinking, then content with calls in it. Families with other shapes derive from it."""

    name: str
    thinking: Thinking | None = None
    content: Pair = NO_MARKS
    calls: Calls | None = None
    stops: tuple[str, ...] = ()  # more texts that end an answer
    fenced: bool = False  # the model likes a ```json fence around a JSON answer
    id_length: int = LONG_ID  # of ids made up for calls without one
    noise: tuple[str, ...] = ()  # marks in the content that mean nothing
    thinks_again: bool = False  # thinking may also come after content

    FENCES: ClassVar = ("```json", "```")

    @property
    def marks(self) -> list[str]:
        """The texts that must be visible in the answer: those that are control tokens have to be preserved."""
        thinking = (self.thinking.start, *self.thinking.ends) if self.thinking else ()
        calls = self.calls.marks if self.calls else ()
        texts = (*thinking, *self.content, *calls, *self.noise, *self.more_marks)
        return list(dict.fromkeys(text.strip() for text in texts if text.strip()))

    @property
    def more_marks(self) -> tuple[str, ...]:
        """Marks that only the family has."""
        return ()

    def prompt_tail(self, prompt: str) -> str:
        """The part of the generation prompt that already belongs to the answer: from its first mark on."""
        marks = [self.content.start]
        if self.thinking:
            marks += [self.thinking.start, self.thinking.end]
        found = markers(*marks).pattern.search(prompt)
        return prompt[found.start() :] if found else ""

    def calls_rule(self, g: Grammar, wanted: Wanted, start: Start) -> str:
        """The grammar of an answer that is at least one call, after thinking."""
        openers = self.calls.openers(Ask(wanted.tools)) if self.calls else ()
        return sequence(self.thought_rule(g, start, openers), self.woken_rule(g, wanted))

    def woken_rule(self, g: Grammar, wanted: Wanted) -> str:
        """The grammar of calls from the text on that wakes a lazy constraint."""
        if self.calls is None:
            raise Unenforceable("tools", "the chat template has no way to write tool calls")
        after = "".join(f" ({g.mark(mark)} WS?)?" for mark in self.noise)
        return f"{self.calls.rule(g, wanted)} WS?{after}"

    def wakes(self, wanted: Wanted) -> list[Wake]:
        """What wakes a lazy constraint."""
        return self.calls.wakes(wanted) if self.calls else []

    def answer_rule(self, g: Grammar, form: Mapping[str, Any], start: Start) -> str:
        """The grammar of an answer that is a JSON value, after thinking."""
        ending = f"({g.mark(self.content.end)})?" if self.content.end else ""
        return sequence(self.thought_rule(g, start), g.mark(self.content.start), self.json_rule(g, form), ending)

    def json_rule(self, g: Grammar, form: Mapping[str, Any]) -> str:
        """A JSON value, which may stand in a fence if the model likes that."""
        value = g.json(form)
        return f'({value} | "```json" WS? {value} WS? "```")' if self.fenced else value

    def thought_rule(self, g: Grammar, start: Start, without: Sequence[str] = ()) -> str:
        """Thinking, if some may come; nothing otherwise."""
        if not self.thinking or not (start.opened or start.may):
            return ""
        rest = g.until(self.thinking.end, without=without)
        if start.opened or not self.thinking.start:
            return rest
        return f"({g.literal(self.thinking.start)} {rest})?"

    def read(self, s: Scanner, out: Output, ask: Ask) -> Steps[None]:
        """Read a whole answer into `out`."""
        opener = None
        out.content.lead = ask.fenced
        out.content.trim = bool((ask.calls and self.calls) or self.content.end)
        if self.thinking:
            opener = yield from self.think(s, out, ask, self.thinking)
        if ask.fenced and not opener:
            yield from self.unfence(s, out)
        yield from self.answer(s, out, ask, opener)

    def think(self, s: Scanner, out: Output, ask: Ask, thinking: Thinking) -> Steps[str | None]:
        """Read the thinking, if the answer begins with some; returns a call's opener if that ended it."""
        space = yield from s.space()
        start = (yield from s.literal(thinking.start, thinking.end)) or ""
        if start == thinking.end:  # the answer, or the prompt, says that there is no thinking
            out.content.lead = True
            return None
        if not start and (thinking.start or not ask.thinking):
            out.content.write(space)
            return None
        if not ask.apart:
            out.content.write(space + start)
        out.thinking = True
        end = yield from self.thoughts(s, out, ask, thinking)
        out.thinking = False
        return end if end != thinking.end else None

    def thoughts(self, s: Scanner, out: Output, ask: Ask, thinking: Thinking) -> Steps[str | None]:
        """Read thinking text up to its end or, when calls may cut it, a call's opener; returns that."""
        target = out.reasoning if ask.apart else out.content
        cuts = [mark for mark in thinking.cut_by if ask.calls or mark == self.content.start]
        end = yield from s.until(markers(thinking.end, *cuts), target.write)
        if ask.apart:
            target.drop()
            out.content.lead = True
        elif end == thinking.end:
            target.write(end)
        return end

    def unfence(self, s: Scanner, out: Output) -> Steps[None]:
        """Read a fenced JSON answer without its fence."""
        s.record()
        yield from s.space()
        fence = yield from s.literal(*self.FENCES)
        text = s.recorded()
        if not fence:
            out.content.write(text)
            return
        try:
            yield from json_value(s, out.content.write)
        except Unreadable:
            return
        yield from s.space()
        yield from s.literal("```")
        out.content.lead = True

    def answer(self, s: Scanner, out: Output, ask: Ask, opener: str | None) -> Steps[None]:
        """Read content and calls up to the end; `opener` is a call's that was already read."""
        calls = self.calls if ask.calls else None
        openers = calls.openers(ask) if calls else ()
        again = self.thinking if self.thinks_again and ask.apart else None
        marks = markers(*openers, *self.content, *self.noise, again.start if again else "")
        while True:
            if calls and opener in openers:
                yield from attempt(calls, s, out, opener or "")
            elif again and opener == again.start:
                opener = yield from self.thoughts(s, out, ask, again)
                continue
            elif opener == self.content.start:
                out.content.lead = True
            elif opener:
                out.content.drop()
            opener = yield from s.until(marks, out.content.write)
            if opener is None:
                out.content.flush()
                return


def attempt(calls: Calls, s: Scanner, out: Output, opener: str) -> Steps[bool]:
    """Read calls after `opener`; text that turns out to be none goes to the content."""
    s.record(opener)
    try:
        yield from calls.read(s, out, opener)
    except Unreadable:
        text = s.recorded()
        if not (s.cut and s.exhausted and out.n_calls):  # a further call without a name yet is dropped
            out.content.write(text)
        return False
    s.recorded()
    return True
