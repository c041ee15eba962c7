"""The option table: every flag, variable and file key of llamarada, once.

Parser, TOML validation, help and `docs/configuration.md` all come from `OPTIONS`.
"""

from collections.abc import Mapping

from ipc.options import chat, compute, engine, http, model, process, sampling, speculative
from ipc.options.option import ConfigError, Mark, Option, closest

OPTIONS: tuple[Option, ...] = (
    *process.INFORMATION,
    *model.OPTIONS,
    *engine.OPTIONS,
    *compute.OPTIONS,
    *sampling.OPTIONS,
    *speculative.OPTIONS,
    *http.OPTIONS,
    *chat.OPTIONS,
    *process.IPC,
    *process.LOG,
)


def _by_key() -> dict[str, Option]:
    keys: dict[str, Option] = {}
    for option in OPTIONS:
        if option.key:
            keys.setdefault(option.key, option)
    return keys


BY_KEY: Mapping[str, Option] = _by_key()
BY_FLAG: Mapping[str, tuple[Option, bool]] = {
    **{flag: (option, True) for option in OPTIONS for flag in option.flags},
    **{flag: (option, False) for option in OPTIONS for flag in option.no_flags},
}

__all__ = ["BY_FLAG", "BY_KEY", "OPTIONS", "ConfigError", "Mark", "Option", "closest"]
