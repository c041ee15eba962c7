"""The parts a format is described with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Pair(NamedTuple):
    """The marks before and after something; an empty one is absent."""

    start: str = ""
    end: str = ""


NO_MARKS = Pair()


@dataclass(frozen=True, slots=True)
class Thinking:
    """How an answer shows its thinking. An empty `start` means that an answer begins with thinking."""

    start: str
    end: str
    cut_by: tuple[str, ...] = ()  # call openers that end the thinking too

    @property
    def ends(self) -> tuple[str, ...]:
        """Every text that ends the thinking; the first is the one to force."""
        return (self.end, *self.cut_by)


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request asks of the parsing of its answer."""

    tools: Mapping[str, Any] = field(default_factory=dict)  # parameter schema of each function by its name
    calls: bool = False  # tool calls are looked for
    apart: bool = True  # thinking goes to the reasoning text; False leaves it, marks included, in the content
    thinking: bool = True  # the model may think
    fenced: bool = False  # a ```json fence around the answer is removed


@dataclass(frozen=True, slots=True)
class Wanted:
    """The calls that an answer is constrained to."""

    tools: Mapping[str, Any]  # parameter schema of each function by its name
    many: bool = True  # more than one call


@dataclass(frozen=True, slots=True)
class Start:
    """Where a constrained answer starts: with the thinking `opened` by the prompt, or with some that `may` come."""

    opened: bool = False
    may: bool = True


@dataclass(frozen=True, slots=True)
class Wake:
    """What wakes a lazy constraint, which begins with it; `kind` is "word" or "pattern"."""

    kind: str
    text: str
