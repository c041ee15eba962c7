"""Answers that are a sequence of messages, each with a header that says whom it is for: Harmony, Muse Glimmer."""

import re
from dataclasses import dataclass

from api.parse.format import Format, attempt
from api.parse.jsontext import Unreadable
from api.parse.layout import Ask
from api.parse.output import Output
from api.parse.params import json_arguments
from api.parse.scan import Scanner, Steps, markers

START = "<|start|>assistant"
MESSAGE = "<|message|>"


@dataclass(frozen=True, slots=True)
class Channels(Format):
    """`HEADER<|message|>TEXT END`, again and again with `<|start|>assistant` between; the template wrote the first."""

    ends: tuple[str, ...] = ()

    def prompt_tail(self, prompt: str) -> str:
        """What follows the last opening of an assistant's message."""
        return prompt.rpartition(START)[2] if START in prompt else ""

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
