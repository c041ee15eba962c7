"""One row of the option table, and how a row reads the text of a flag, a variable or a TOML value."""

import difflib
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

import msgspec

from ipc.options.text import boolean, csv, json_object, number
from ipc.sections import Config


class ConfigError(Exception):
    """The configuration cannot be used; the text names the option, key or file and the value."""


class Mark(Enum):
    """What becomes of an option that a caller gives."""

    SUPPORTED = "supported"
    LATER = "later"  # refused: "--x is not supported yet"
    REFUSED = "refused"  # refused with the row's note
    IGNORED = "ignored"  # accepted, with the row's note as a warning
    REMOVED = "removed"  # refused, the note points to the new name
    ACTION = "action"  # does something and exits; no setting


LATER, REFUSED, IGNORED, REMOVED, ACTION = Mark.LATER, Mark.REFUSED, Mark.IGNORED, Mark.REMOVED, Mark.ACTION
UNSET: Any = msgspec.UNSET


@dataclass(frozen=True)
class Option:
    """A flag with its variable and its place in the file. Type and default come from the section Struct's field.

    `key` names that field ("engine.parallel"); rows that only refuse, ignore or act have none. A row
    that is not the first of its key is another way to set it: it has flags but no place of its own in the file.
    """

    key: str = ""
    flags: tuple[str, ...] = ()
    env: str = ""
    help: str = ""
    no_flags: tuple[str, ...] = ()
    value: str = ""  # what the help calls the value
    special: Mapping[str, Any] = field(default_factory=dict)  # texts that stand for a value: {"-1": None}
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    parse: Callable[[str], Any] | None = None  # instead of the field's own type
    const: Any = UNSET  # the flag takes no value and sets this
    repeat: bool = False  # every use adds to the tuple
    escapes: bool = False  # `\n` and the like are read in flags and variables
    mark: Mark = Mark.SUPPORTED
    off: Any = UNSET  # a value that asks for nothing, accepted even when the option is not supported yet
    note: str = ""
    secret: bool = False
    n_values: int = 1  # how many words an option without key swallows
    section: str = ""  # heading of a row without key

    @property
    def name(self) -> str:
        """What messages call the option."""
        return self.flags[0] if len(self.flags) == 1 else next((f for f in self.flags if f.startswith("--")), self.key)

    @cached_property
    def type(self) -> Any:
        """Annotation of the section's field."""
        section, name = self.key.split(".")
        return typing.get_type_hints(type(getattr(Config(), section)))[name]

    @cached_property
    def default(self) -> Any:
        """Default of the section's field."""
        section, name = self.key.split(".")
        return getattr(getattr(Config(), section), name)

    @property
    def heading(self) -> str:
        """The section it is listed under."""
        return self.key.split(".")[0] or self.section

    @property
    def is_switch(self) -> bool:
        """Whether the flag takes no value."""
        if self.const is not UNSET:
            return True
        return bool(self.key) and bool in _alternatives(self.type)

    @property
    def no_env(self) -> str:
        """The variable that switches a boolean off by merely being there."""
        return self.env.replace("LLAMA_ARG_", "LLAMA_ARG_NO_", 1) if self.no_flags and self.env else ""

    def from_text(self, text: str) -> Any:
        """The value written as `text`; ValueError says what was expected."""
        if text in self.special:
            return self.special[text]
        return self._check(self.parse(text) if self.parse else self._parse_by_type(text))

    def from_toml(self, value: Any) -> Any:
        """The value given in a file; ValueError says what was expected."""
        if isinstance(value, int | str) and not isinstance(value, bool) and str(value) in self.special:
            return self.special[str(value)]
        try:
            return self._check(msgspec.convert(value, self.type))
        except msgspec.ValidationError:
            raise ValueError(f"expected {type_name(self.type)}, got {value!r}") from None

    def _parse_by_type(self, text: str) -> Any:
        kinds = _alternatives(self.type)
        if bool in kinds:
            return boolean(text)
        if int in kinds:
            return number(text, int)
        if float in kinds:
            return number(text, float)
        if dict in kinds:
            return json_object(text)
        return tuple(csv(text)) if tuple in kinds else text

    def _check(self, value: Any) -> Any:
        for item in value if isinstance(value, tuple) else (value,):
            if self.choices and item is not None and item not in self.choices:
                raise ValueError(f"expected one of {', '.join(self.choices)}, got {item!r}")
            if not isinstance(item, int | float):
                continue
            if (self.low is not None and item < self.low) or (self.high is not None and item > self.high):
                raise ValueError(f"expected {_range(self.low, self.high)}, got {item}")
        return value


def type_name(annotation: Any) -> str:
    """A type as messages and the reference page call it."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is tuple:
        return "a list of " + type_name(arguments[0])
    if origin is dict:
        return "a table"
    if arguments:
        return " or ".join(type_name(a) for a in arguments if a is not type(None))
    return str(annotation.__name__).lower() if annotation in (bool, int, float, str) else "a table"


def closest(word: str, words: Iterable[str]) -> str:
    """A hint at the known word that `word` probably meant, or nothing."""
    matches = difflib.get_close_matches(word, list(words), n=1, cutoff=0.75)
    return f" (did you mean {matches[0]}?)" if matches else ""


def _alternatives(annotation: Any) -> set[Any]:
    parts = typing.get_args(annotation) if typing.get_origin(annotation) not in (tuple, dict) else ()
    return {typing.get_origin(part) or part for part in parts or (annotation,)}


def _range(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f"a value from {low} to {high}"
    return f"at least {low}" if low is not None else f"at most {high}"
