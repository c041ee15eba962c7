"""A family's way to write an answer: thinking, content and tool calls; and how to read it."""

from dataclasses import dataclass
from typing import ClassVar

from api.parse.calls import Calls
from api.parse.jsontext import Unreadable, json_value
from api.parse.layout import NO_MARKS, Ask, Pair, Thinking
from api.parse.output import Output
from api.parse.scan import Scanner, Sink, Steps, markers


@dataclass(frozen=True, slots=True)
class Format:
    """An answer of optional thinking, then content with calls in it. Families with other shapes derive from it."""

    name: str
    thinking: Thinking | None = None
    content: Pair = NO_MARKS
    calls: Calls | None = None
    stops: tuple[str, ...] = ()  # more texts that end an answer
    fenced: bool = False  # the model likes a ```json fence around a JSON answer
    id_length: int = 32  # of ids made up for calls without one

    FENCES: ClassVar = ("```json", "```")

    def prompt_tail(self, prompt: str) -> str:
        """The part of the generation prompt that already belongs to the answer: from its first mark on."""
        marks = [self.content.start]
        if self.thinking:
            marks += [self.thinking.start, self.thinking.end]
        found = markers(*marks).pattern.search(prompt)
        return prompt[found.start() :] if found else ""

    def read(self, s: Scanner, out: Output, ask: Ask) -> Steps[None]:
        """Read a whole answer into `out`."""
        opener = None
        out.content.trim = bool((ask.calls and self.calls) or self.content.end)
        if self.thinking:
            opener = yield from self.think(s, out, ask, self.thinking)
        if ask.fenced and not opener:
            yield from self.unfence(s, out)
        yield from self.answer(s, out, ask, opener)

    def think(self, s: Scanner, out: Output, ask: Ask, thinking: Thinking) -> Steps[str | None]:
        """Read the thinking, if the answer begins with some; returns a call's opener if that ended it."""
        space = yield from s.space()
        start = ""
        if thinking.start:
            start = (yield from s.literal(thinking.start)) or ""
        elif (yield from s.literal(thinking.end)):
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
        cuts = thinking.cut_by if ask.calls else ()
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
        if not fence:
            out.content.write(s.recorded())
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
        marks = markers(*openers, *self.content)
        while True:
            if calls and opener in openers:
                yield from attempt(calls, s, out, opener or "")
            elif opener == self.content.start:
                out.content.lead = True
            elif opener == self.content.end:
                out.content.drop()
            opener = yield from s.until(marks, out.content.write)
            if opener is None:
                out.content.flush()
                return


def attempt(calls: Calls, s: Scanner, out: Output, opener: str, refuse: Sink | None = None) -> Steps[bool]:
    """Read calls after `opener`; text that turns out to be none goes to `refuse`, the content by default."""
    s.record(opener)
    try:
        yield from calls.read(s, out, opener)
    except Unreadable:
        (refuse or out.content.write)(s.recorded())
        return False
    s.recorded()
    return True
