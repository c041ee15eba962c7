"""Flags, variables and the file turned into assignments of option keys; `spec/cli.md` §1."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ipc.options import BY_FLAG, BY_KEY, OPTIONS, ConfigError, Mark, Option, closest
from ipc.options.option import UNSET
from ipc.options.text import boolean, unescape


@dataclass(slots=True)
class Given:
    """What one source (flags, variables or a file) sets: values and source by key, actions by flag."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    actions: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def set(self, option: Option, value: Any, source: str) -> None:
        """Set the option's key; a repeated list option grows instead, and an empty value empties it."""
        if option.repeat and option.key in self.values and value:
            value = self.values[option.key] + value
        self.values[option.key] = value
        self.sources[option.key] = source


def read_flags(argv: list[str]) -> Given:
    """The command line. Raises ConfigError for the first argument that cannot be used."""
    given, seen = Given(), set[tuple[str, ...]]()
    words = iter(argv)
    for word in words:
        flag = word.replace("_", "-") if word.startswith("--") else word
        if flag not in BY_FLAG:
            raise ConfigError(f"invalid argument: {word}{_hint(flag)}")
        option, positive = BY_FLAG[flag]
        if option.flags in seen and not option.repeat:
            given.warnings.append(f"{flag} is given more than once: the last value counts")
        seen.add(option.flags)
        _read_flag(given, option, flag, positive, words)
    return given


def _read_flag(given: Given, option: Option, flag: str, positive: bool, words: Iterator[str]) -> None:
    source = f"command line {flag}"
    if not option.key:
        _refuse(option, flag, given.warnings)
        text = "".join(_take(words, option, flag))
        if option.mark is Mark.ACTION:
            given.actions[option.flags[0]] = text
    elif option.const is not UNSET:
        _refuse(option, flag, given.warnings)
        given.set(option, option.const, source)
    elif option.is_switch:
        _set(given, option, positive, flag, source)
    else:
        text = " ".join(_take(words, option, flag))
        _set(given, option, _parsed(option, text, f'error while handling argument "{flag}"', usage=True), flag, source)


def _take(words: Iterator[str], option: Option, flag: str) -> list[str]:
    taken = [word for _, word in zip(range(option.n_values), words, strict=False)]
    if len(taken) < option.n_values:
        raise ConfigError(f'error while handling argument "{flag}": expected value for argument\n\n{describe(option)}')
    return taken


def read_environment(env: Mapping[str, str]) -> Given:
    """The variables of the table, and nothing else of `env`."""
    given = Given()
    for option in OPTIONS:
        if option.no_env and option.no_env in env:
            _set(given, option, False, option.no_env, f"env {option.no_env}")
        elif option.env and option.env in env:
            _read_variable(given, option, env[option.env])
    return given


def _read_variable(given: Given, option: Option, text: str) -> None:
    where = f'error while handling environment variable "{option.env}"'
    if option.mark is Mark.ACTION:
        given.actions[option.flags[0]] = text
    elif not option.key:
        if option.n_values or _parsed_boolean(text, where):
            _refuse(option, option.env, given.warnings)
    elif option.is_switch and not option.no_flags:
        if _parsed_boolean(text, where):
            _set(given, option, True, option.env, f"env {option.env}")
    else:
        _set(given, option, _parsed(option, text, where), option.env, f"env {option.env}")


def read_file(path: str) -> Given:
    """A TOML file. Raises ConfigError naming file, key and value."""
    try:
        with open(path, "rb") as file:
            tables = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    given = Given()
    for section, table in tables.items():
        if section not in SECTIONS:
            raise ConfigError(f"{path}: unknown section [{section}]{closest(section, SECTIONS)}")
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {section}: expected a table, got {table!r}")
        for name, value in table.items():
            _read_entry(given, path, f"{section}.{name}", value)
    return given


SECTIONS = tuple(dict.fromkeys(key.split(".")[0] for key in BY_KEY))


def _read_entry(given: Given, path: str, key: str, value: Any) -> None:
    option = BY_KEY.get(key)
    if option is None:
        raise ConfigError(f"{path}: unknown key {key}{closest(key, BY_KEY)}")
    try:
        converted = option.from_toml(value)
    except ValueError as error:
        raise ConfigError(f"{path}: {key}: {error}") from None
    _set(given, option, converted, f"{path}: {key}", path)


def _set(given: Given, option: Option, value: Any, name: str, source: str) -> None:
    if option.off is UNSET or value != option.off:
        _refuse(option, name, given.warnings)
    given.set(option, value, source)


def _refuse(option: Option, name: str, warnings: list[str]) -> None:
    """Raise for an option that is refused; warn of one that is ignored."""
    if option.mark is Mark.LATER:
        raise ConfigError(f"{name} is not supported yet")
    if option.mark is Mark.REFUSED:
        raise ConfigError(f"{name} is not supported: {option.note}")
    if option.mark is Mark.REMOVED:
        raise ConfigError(f"{name} has been removed: use {option.note}")
    if option.mark is Mark.IGNORED:
        warnings.append(f"{name} is ignored: {option.note}")


def _parsed(option: Option, text: str, where: str, usage: bool = False) -> Any:
    try:
        return option.from_text(text)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}" + (f"\n\n{describe(option)}" if usage else "")) from None


def _parsed_boolean(text: str, where: str) -> bool:
    try:
        return boolean(text)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def describe(option: Option) -> str:
    """Flags, value and meaning of one option."""
    head = ", ".join((*option.flags, *option.no_flags)) + (f" {option.value}" if option.value else "")
    return f"usage:\n{head}\n    {option.help}"


def unescaped(given: Given) -> None:
    """Read the escapes of the texts in `given`, which came from flags or variables."""
    for key, value in given.values.items():
        if BY_KEY[key].escapes:
            given.values[key] = tuple(unescape(text) for text in value)


def _hint(flag: str) -> str:
    name, equals, value = flag.partition("=")
    if equals and name in BY_FLAG:
        return f" (write it as: {name} {value})"
    return closest(flag, BY_FLAG) if flag.startswith("--") else ""
