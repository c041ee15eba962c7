"""The effective configuration of a server: from flags, variables and a file; handed on to child processes as JSON.

Later wins: default, file, environment, command line. `resolve` keeps where every value came from.
"""

import json
import logging
import os
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from ipc.arguments import Given, read_environment, read_file, read_flags, unescaped
from ipc.checks import check, completed
from ipc.options import BY_KEY, ConfigError
from ipc.sections import (
    Adapter,
    ChatSection,
    Config,
    EngineSection,
    HttpSection,
    IpcSection,
    LogSection,
    ModelSection,
    SamplingSection,
    SpeculativeSection,
)

__all__ = [
    "Adapter",
    "ChatSection",
    "Config",
    "ConfigError",
    "EngineSection",
    "HttpSection",
    "IpcSection",
    "LogSection",
    "ModelSection",
    "Resolved",
    "SamplingSection",
    "SpeculativeSection",
    "ambient",
    "from_json",
    "make_run_dir",
    "pin_port",
    "publish",
    "resolve",
    "to_json",
]

log = logging.getLogger(__name__)
DEMO = Path(__file__).parent.parent / "configs" / "demo.toml"


@dataclass(frozen=True, slots=True)
class Resolved:
    """A configuration, where each key's value came from, the actions asked for (by flag) and what to warn of."""

    config: Config
    sources: dict[str, str]
    actions: dict[str, str]
    warnings: tuple[str, ...]


def resolve(argv: list[str], env: Mapping[str, str]) -> Resolved:
    """Put the configuration together. Raises ConfigError with a text for the user."""
    flags, variables = read_flags(argv), read_environment(env)
    if flags.values.get("sampling.escape", variables.values.get("sampling.escape", True)):
        unescaped(flags)
        unescaped(variables)
    actions = variables.actions | flags.actions
    file = read_file(actions["--config"]) if "--config" in actions else Given()
    values, sources = completed([file, variables, flags])
    config = _built(values)
    warnings = [*file.warnings, *variables.warnings, *flags.warnings, *_overridden(flags, variables), *check(config)]
    return Resolved(config, {key: sources.get(key, "default") for key in BY_KEY}, actions, tuple(warnings))


def _built(values: Mapping[str, Any]) -> Config:
    sections: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, name = key.split(".")
        sections.setdefault(section, {})[name] = value
    default = Config()
    changed = {name: replace(getattr(default, name), **fields) for name, fields in sections.items()}
    return replace(default, given=frozenset(values), **changed)


def _overridden(flags: Given, variables: Given) -> list[str]:
    both = [key for key in flags.sources if key in variables.sources]
    return [
        f"{variables.sources[key].removeprefix('env ')} is set, but {flags.sources[key].removeprefix('command line ')} "
        "on the command line wins"
        for key in both
    ]


def ambient(env: Mapping[str, str] = os.environ) -> Config:
    """The configuration of a process that got no command line: what the parent published in LLAMARADA_CONFIG, else
    the file named by LLAMARADA_CONFIG_FILE and LLAMA_ARG_* variables, else the demo's file.
    """
    published = env.get("LLAMARADA_CONFIG")
    if published:
        return from_json(Path(published).read_bytes())
    resolved = resolve([], env)
    if resolved.config.model == ModelSection() and "--config" not in resolved.actions:
        resolved = resolve(["--config", str(DEMO)], env)
    for warning in resolved.warnings:
        log.warning("%s", warning)
    return resolved.config


def to_json(config: Config) -> bytes:
    """The configuration for child processes. The standard library writes it, for msgspec has no infinite numbers."""
    return json.dumps(msgspec.to_builtins(config), indent=1).encode()


def from_json(text: bytes) -> Config:
    """The inverse of `to_json`."""
    return msgspec.convert(json.loads(text), Config)


def publish(config: Config) -> Path:
    """Write the configuration for child processes into the run folder, readable by this user only.

    The name carries this process's id, so that a start that is going to be refused does not touch a running server.
    """
    folder = make_run_dir(config)
    path = folder / f"config-{os.getpid()}.json"
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(to_json(replace(config, ipc=replace(config.ipc, run_dir=str(folder)))))
    return path


def make_run_dir(config: Config) -> Path:
    """Make the run folder (and its parent, when it is ours to choose) with mode 0700 and return its absolute path.

    Raises ConfigError when it belongs to somebody else or is open to others: sockets in it would be, too.
    """
    folder = config.run_dir().absolute()
    for path in [folder] if config.ipc.run_dir is not None else [folder.parent, folder]:
        try:
            path.mkdir(mode=0o700, exist_ok=True)
            status = path.lstat()
        except OSError as error:
            raise ConfigError(f"run folder {path}: {error.strerror}") from None
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise ConfigError(f"run folder {path}: must be a folder of this user with mode 0700; see --run-dir")
    return folder


def pin_port(config: Config) -> Config:
    """The same configuration with port 0 replaced by a free port, since run folder and children need to know it."""
    tcp = [host for host in config.http.host if not host.endswith(".sock")]
    if config.http.port != 0 or not tcp:
        return config
    family = socket.AF_INET6 if ":" in tcp[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((tcp[0], 0))
        port = probe.getsockname()[1]
    return replace(config, http=replace(config.http, port=port))
