"""Answers that are a sequence of messages, each with a header that says whom it is for: Harmony, Muse Glimmer."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from api.parse.format import Format, attempt
from api.parse.jsontext import Unreadable
from api.parse.lark import Grammar
from api.parse.layout import Ask, Start, Wake, Wanted
from api.parse.output import Output
from api.parse.params import json_arguments
from api.parse.scan import Scanner, Steps, markers

START = "<|start|>assistant"
MESSAGE = "<|message|>"
RECIPIENT = " to=functions."


@dataclass(frozen=True, slots=True)
class Channels(Format):
    """`HEADER<|message|>TEXT END`, again and again with `<|start|>assistant` between; the template wrote the first."""

    ends: tuple[str, ...] = ()  # of messages; the first is followed by another message
    parallel: bool = True

    @property
    def more_marks(self) -> tuple[str, ...]:
        """The marks of messages and headers, each a token of its own."""
        return ("<|start|>", "<|channel|>", "<|constrain|>", MESSAGE, *self.ends)

    def prompt_tail(self, prompt: str) -> str:
        """What follows the last opening of an assistant's message."""
        return prompt.rpartition(START)[2] if START in prompt else ""

    def aside_header(self) -> str:
        """The header of thinking."""
        return self.thinking.start if self.thinking else ""

    def thought_rule(self, g: Grammar, start: Start, without: Sequence[str] = ()) -> str:
        """Any number of thoughts, each with the beginning of the message after it; these models cannot but think."""
        rest = f"{g.until(self.ends[0])} {g.literal(START)}"
        thoughts = f"({g.literal(self.aside_header())} {rest})*"
        return f"{rest} {thoughts}" if start.opened else thoughts

    def calls_rule(self, g: Grammar, wanted: Wanted, start: Start) -> str:
        """Thoughts and calls."""
        call = self.call_rule(g, wanted)
        more = f"({g.literal(self.ends[0] + START)} {call})*" if wanted.many and self.parallel else ""
        return f"{self.thought_rule(g, start)} {call} {more}"

    def call_rule(self, g: Grammar, wanted: Wanted) -> str:
        """One message that is a call."""
        raise NotImplementedError

    def read(self, s: Scanner, out: Output, ask: Ask) -> Steps[None]:
        """Read message after message."""
        out.content.trim = ask.calls
        while not s.exhausted:
            header: list[str] = []
            s.record()
            mark = yield from s.until(markers(MESSAGE, START, *self.ends), header.append)
            if mark == MESSAGE:
                s.recorded()
                yield from self.message("".join(header), s, out, ask)
            else:
                self.headless("".join(header), out, cut=mark is None)
        out.content.flush()

    def headless(self, text: str, out: Output, cut: bool) -> None:
        """Keep text that stands outside of any message; a header that the answer's end cut short is none."""
        if text.strip() and not (cut and self.is_header(text)):
            out.content.write(text)

    def is_header(self, text: str) -> bool:
        """Whether `text` may be the beginning of a header."""
        return text.lstrip().startswith(("<|", "to="))

    def message(self, header: str, s: Scanner, out: Output, ask: Ask) -> Steps[None]:
        """Read a message after its header, with its end."""
        raise NotImplementedError

    def text(self, s: Scanner, out: Output) -> Steps[None]:
        """Read a message for the user."""
        yield from s.until(markers(START, *self.ends), out.content.write)

    def aside(self, s: Scanner, out: Output, ask: Ask, header: str) -> Steps[None]:
        """Read a message that is thinking."""
        target = out.reasoning if ask.apart else out.content
        if not ask.apart:
            target.write(header)
        out.thinking = True
        end = yield from s.until(markers(START, *self.ends), target.write)
        out.thinking = False
        if ask.apart:
            target.drop()
        elif end:
            target.write(end)

    def rest(self, s: Scanner) -> Steps[None]:
        """Drop what is left of a message."""
        yield from s.until(markers(START, *self.ends), _ignore)


@dataclass(frozen=True, slots=True)
class Harmony(Channels):
    """GPT-OSS: channels `analysis`, `commentary` and `final`; a recipient `functions.NAME` makes a call."""

    blank: bool = False  # a blank follows every special token

    def message(self, header: str, s: Scanner, out: Output, ask: Ask) -> Steps[None]:
        """Read a message by its channel and recipient."""
        recipient = re.search(r"to=(?:functions\.)?([^\s<]+)", header)
        if self.blank:
            yield from s.literal(" ")
        if recipient and recipient[1] != "assistant":
            if ask.calls:
                yield from self.call(recipient[1], s, out)
            yield from self.rest(s)
        elif re.search(r"<\|channel\|>\s*analysis\s*$", header):
            yield from self.aside(s, out, ask, header + MESSAGE)
        else:
            yield from self.text(s, out)

    def call_rule(self, g: Grammar, wanted: Wanted) -> str:
        """A message to a function, which is named before the channel or after it."""
        return f"({self.channel(g)})? {self.addressed_rule(g, wanted)}"

    def woken_rule(self, g: Grammar, wanted: Wanted) -> str:
        """A message from its recipient on, and more messages with calls."""
        more = f"({g.literal(self.ends[0] + START)} {self.call_rule(g, wanted)})*"
        return f"{self.addressed_rule(g, wanted)} {more if wanted.many and self.parallel else ''}"

    def addressed_rule(self, g: Grammar, wanted: Wanted) -> str:
        """The recipient, the rest of the header and the arguments."""
        rest = f'({self.channel(g)})? (" "? ({g.literal("<|constrain|>")})? /[a-z_-]{{1,16}}/)? {g.literal(MESSAGE)}'
        blank = '" "?' if self.blank else ""
        calls = (f"{g.literal(RECIPIENT + name)} {rest} {blank} {g.json(form)}" for name, form in wanted.tools.items())
        return f"{g.either(calls, 'call')} ({g.literal('<|call|>')})?"

    def channel(self, g: Grammar) -> str:
        """The channel of calls."""
        return f'{g.literal("<|channel|>")} " "? ("commentary" | "analysis")'

    def wakes(self, wanted: Wanted) -> list[Wake]:
        """The recipient."""
        return [Wake("word", RECIPIENT)]

    def answer_rule(self, g: Grammar, form: Mapping[str, Any], start: Start) -> str:
        """Thoughts and a message on the final channel."""
        constraint = f'(" "? ({g.literal("<|constrain|>")})? "json")?'
        header = f'{g.literal("<|channel|>")} " "? "final" {constraint} {g.literal(MESSAGE)}'
        return f'{self.thought_rule(g, start)} {header} " "? {g.json(form)}'

    def call(self, name: str, s: Scanner, out: Output) -> Steps[None]:
        """Read a call's arguments; those of an unknown function are content."""
        try:
            sink = out.call(name)
            yield from json_arguments(s, sink)
        except Unreadable:
            yield from self.text(s, out)


@dataclass(frozen=True, slots=True)
class Muse(Channels):
    """Muse Glimmer: recipients `self`, `user` or a tool; a tool's message is XML-like markup."""

    def call_rule(self, g: Grammar, wanted: Wanted) -> str:
        """A message to a tool."""
        return g.either((self._call(g, name, form) for name, form in wanted.tools.items()), "call")

    def _call(self, g: Grammar, name: str, form: Mapping[str, Any]) -> str:
        body = Format.woken_rule(self, g, Wanted({name: form}, many=False))
        return f"{g.literal(f' to={name}{MESSAGE}')} WS? {body}"

    def woken_rule(self, g: Grammar, wanted: Wanted) -> str:
        """The markup of one call, and more messages with calls."""
        first = Format.woken_rule(self, g, Wanted(wanted.tools, many=False))
        more = f"({g.literal(self.ends[0] + START)} {self.call_rule(g, wanted)})*" if wanted.many else ""
        return f"{first} {more}"

    def answer_rule(self, g: Grammar, form: Mapping[str, Any], start: Start) -> str:
        """Thoughts and a message to the user."""
        header = f'(" to=user")? {g.literal(MESSAGE)}'
        return f"{self.thought_rule(g, start)} {header} {self.json_rule(g, form)}"

    def message(self, header: str, s: Scanner, out: Output, ask: Ask) -> Steps[None]:
        """Read a message by its recipient."""
        recipient = re.search(r"to=(\S+)", header)
        to = recipient[1] if recipient else "user"
        if to == "self":
            yield from self.aside(s, out, ask, header + MESSAGE)
        elif to == "user" or not ask.calls or not self.calls:
            yield from self.text(s, out)
        else:
            yield from s.space()
            opener = yield from s.literal(*self.calls.openers(ask))
            if opener and (yield from attempt(self.calls, s, out, opener)):
                yield from self.rest(s)
            else:
                yield from self.text(s, out)


def _ignore(text: str) -> None:
    pass
