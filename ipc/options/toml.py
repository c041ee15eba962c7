"""Values and configurations as TOML text: what `llamarada config` prints and `configs/one.toml` holds."""

import json
import textwrap
import typing
from collections.abc import Mapping
from typing import Any

import msgspec

from ipc.options import BY_KEY, Mark, Option
from ipc.sections import Config

COLUMN = 44  # where the comment of a short line begins


def toml_value(value: Any) -> str:
    """One value; None has no TOML form."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml_value(str(k))} = {toml_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, msgspec.Struct):
        return "{" + ", ".join(f"{k} = {toml_value(v)}" for k, v in msgspec.structs.asdict(value).items()) + "}"
    return "[" + ", ".join(toml_value(item) for item in value) + "]"


def value_of(config: Config, key: str) -> Any:
    """The value of "section.name"."""
    section, name = key.split(".")
    return getattr(getattr(config, section), name)


def effective(config: Config, sources: Mapping[str, str]) -> str:
    """The whole configuration; behind every value a comment tells where it came from. Secrets are masked."""
    lines: list[str] = []
    for key, option in BY_KEY.items():
        value = value_of(config, key)
        if option.mark is Mark.LATER and value == option.default:
            continue
        section, name = key.split(".")
        if f"[{section}]" not in lines:
            lines += ["", f"[{section}]"]
        lines.append(_setting(option, name, value, sources[key]))
    return "\n".join(lines[1:]) + "\n"


def _setting(option: Option, name: str, value: Any, source: str) -> str:
    if option.secret and value:
        value = masked(value)
    written = unset_as(option) if value is None else toml_value(value)
    line = f"#{name} =" if written is None else f"{name} = {written}"
    return f"{line:<{COLUMN}} # {source}" + (", not set" if written is None else "")


def masked(value: Any) -> Any:
    """A secret with all but its last four characters hidden; short ones wholly."""
    if isinstance(value, tuple):
        return tuple(masked(item) for item in value)
    return "…" + value[-4:] if len(value) > 8 else "…"


def unset_as(option: Option) -> str | None:
    """How "not set" is written in a file, when it can be: a number or word that stands for it."""
    words = [text for text, value in option.special.items() if value is None]
    if not words:
        return None
    return words[0] if words[0].lstrip("-").isdigit() else toml_value(words[0])


def explained() -> str:
    """Every option with its meaning and default, commented out: the text of `configs/one.toml`."""
    lines = [
        "# Every option of llamarada with its default. Take out the # before a key to set it.",
        "# Written by `python -m ipc.options`, do not edit; `llamarada serve --config FILE` reads files like this one.",
    ]
    section = ""
    for key, option in BY_KEY.items():
        if option.heading != section:
            section = option.heading
            lines += ["", f"[{section}]", *_comment(heading(section))]
        lines += ["", *_comment(_meaning(option)), _default_line(option, key.split(".")[1])]
    return "\n".join(lines) + "\n"


def heading(section: str) -> str:
    """One line about a section: its Struct's docstring."""
    return (type(getattr(Config(), section)).__doc__ or "").strip()


def _meaning(option: Option) -> str:
    later = " (not supported yet)" if option.mark is Mark.LATER else ""
    return f"{option.help[:1].upper()}{option.help[1:]}.{later} {', '.join((*option.flags, *option.no_flags))}"


def _default_line(option: Option, name: str) -> str:
    if option.default is not None:
        return f"#{name} = {toml_value(option.default)}"
    unset = unset_as(option)
    return f"#{name} = {unset}" if unset is not None else f"#{name} = {_placeholder(option)}  # not set"


def _placeholder(option: Option) -> str:
    """Something of the right type."""
    if option.choices:
        return toml_value(option.choices[0])
    kinds = typing.get_args(option.type)
    if bool in kinds:
        return "true"
    return "0" if int in kinds or float in kinds else "[0, 0]" if str not in kinds else '"…"'


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 110, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
