"""What the single values cannot tell: texts that come from other files, options that imply others, contradictions."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from ipc.arguments import Given
from ipc.options import BY_KEY, ConfigError
from ipc.options.text import json_object, json_text
from ipc.sections import Config

TEXT_FILES: tuple[tuple[str, str, Callable[[str], Any]], ...] = (
    ("sampling.grammar", "sampling.grammar_file", str),
    ("sampling.json_schema", "sampling.json_schema_file", json_text),
    ("chat.template", "chat.template_file", str),
    ("http.ui_config", "http.ui_config_file", json_object),
)
IMPLIED = {"engine.reranking": {"engine.embeddings": True, "engine.pooling": "rank"}}
MAX_SOCKET_PATH = 107


def completed(layers: Sequence[Given]) -> tuple[dict[str, Any], dict[str, str]]:
    """Values and sources by key of all layers, the last of which wins; with the texts of files read in."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    ranks: dict[str, int] = {}
    for rank, given in enumerate(layers):
        values.update(given.values)
        sources.update(given.sources)
        ranks.update(dict.fromkeys(given.values, rank))
    for key, file_key, parse in TEXT_FILES:
        if values.get(file_key) is not None and _file_wins(key, file_key, ranks):
            values[key] = _text_of(file_key, values[file_key], parse)
            sources[key] = sources[file_key]
    for key, implied in IMPLIED.items():
        if values.get(key):
            values.update(implied)
            sources.update(dict.fromkeys(implied, sources[key]))
    return values, sources


def _file_wins(key: str, file_key: str, ranks: dict[str, int]) -> bool:
    if ranks.get(key, -1) == ranks[file_key]:
        raise ConfigError(f"{BY_KEY[key].name} and {BY_KEY[file_key].name} say the same thing: give one of them")
    return ranks.get(key, -1) < ranks[file_key]


def _text_of(key: str, path: str, parse: Callable[[str], Any]) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            return parse(file.read())
    except OSError as error:
        raise ConfigError(f"{BY_KEY[key].name}: {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{BY_KEY[key].name}: {path}: {error}") from None


def check(config: Config) -> list[str]:
    """Raise ConfigError for values that cannot be used together; return what is worth a warning."""
    _check_http(config)
    _check_ipc(config)
    for key in ("engine.slot_save_path", "http.media_path"):
        section, name = key.split(".")
        path = getattr(getattr(config, section), name)
        if path is not None and not os.path.isdir(path):
            raise ConfigError(f"{BY_KEY[key].name}: not a directory: {path}")
    if config.engine.ubatch_size > config.engine.batch_size:
        return [f"--ubatch-size {config.engine.ubatch_size} is cut to --batch-size {config.engine.batch_size}"]
    return []


def _check_http(config: Config) -> None:
    http = config.http
    if not http.host:
        raise ConfigError("--host: expected at least one address")
    if http.port == 0 and sum(not host.endswith(".sock") for host in http.host) > 1:
        raise ConfigError("--port 0 is not supported with multiple TCP addresses")
    if http.api_prefix and (not http.api_prefix.startswith("/") or http.api_prefix.endswith("/")):
        raise ConfigError(f"--api-prefix: expected /path without a slash at the end, got {http.api_prefix!r}")
    if (http.ssl_key_file is None) != (http.ssl_cert_file is None):
        raise ConfigError("--ssl-key-file and --ssl-cert-file: TLS needs both, only one is given")
    for name in ("ssl_key_file", "ssl_cert_file", "api_key_file"):
        path = getattr(http, name)
        if path is not None:
            _check_readable(BY_KEY[f"http.{name}"].name, path)
    if http.responses_db is not None and not os.access(os.path.dirname(http.responses_db) or ".", os.W_OK):
        raise ConfigError(f"{BY_KEY['http.responses_db'].name}: no writable folder for {http.responses_db}")


def _check_ipc(config: Config) -> None:
    ipc = config.ipc
    socket_path = config.engine_address().removeprefix("ipc://")
    if len(os.fsencode(socket_path)) > MAX_SOCKET_PATH:
        raise ConfigError(f"--run-dir: the path of a socket may have {MAX_SOCKET_PATH} bytes, too long: {socket_path}")
    if ipc.bind is None:
        return
    if not ipc.bind.startswith("tcp://"):
        raise ConfigError(f"--ipc-bind: expected tcp://HOST:PORT, got {ipc.bind!r}")
    if ipc.curve_key_file is None or ipc.curve_clients_dir is None:
        raise ConfigError("--ipc-bind needs --ipc-curve-key-file and --ipc-curve-clients-dir: tcp is never unencrypted")


def _check_readable(name: str, path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{name}: {path}: {error.strerror}") from None
