import io
import json
import os
import sys
import tomllib
from pathlib import Path

import pytest

from api import __main__ as cli
from api.banner import LoadBar, banner, bar, example, security_warnings
from ipc.config import Config, ambient, resolve
from ipc.messages import ModelInfo, Welcome


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [n for n in os.environ if n.startswith(("LLAMA_", "LLAMARADA_CONFIG", "HF_TOKEN"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that would have replaced this process; it ends here instead."""
    commands: list[list[str]] = []

    def become(command: list[str]) -> int:
        commands.append(command)
        return 0

    monkeypatch.setattr(cli, "become", become)
    monkeypatch.setenv("LLAMARADA_CONFIG", "")  # so that it is put back
    return commands


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.gguf"
    path.touch()
    return str(path)


def test_serve_publishes_the_configuration_and_becomes_gunicorn(executed, model: str) -> None:
    assert cli.main(["serve", "-m", model, "--port", "0", "-np", "3"]) == 0
    assert executed == [[sys.executable, "-m", "gunicorn", "-c", str(cli.GUNICORN_SETTINGS), "api.app:app"]]
    served = ambient()
    assert (served.model.path, served.engine.parallel) == (model, 3)
    assert served.http.port > 0


def test_flags_alone_serve_as_in_llama_server(executed, model: str) -> None:
    assert cli.main(["-m", model, "--port", "0"]) == 0
    assert ambient().model.path == model


def test_serve_passes_warnings_on(executed, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["serve", "-m", model, "--port", "0", "-dt", "0.1"])
    assert "warning: -dt is ignored" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["serve", "--nonsense"], "error: invalid argument: --nonsense\n"),
        (["serve", "--port", "x"], 'error while handling argument "--port": expected int'),
        (["serve", "--port", "0"], "error: no model is given: use -m FILE"),
        (["serve", "-m", "/nowhere.gguf"], "error: --model: no such file: /nowhere.gguf\n"),
        (["config", "--config", "/nowhere.toml"], "error: /nowhere.toml: No such file or directory\n"),
        (["dance"], "error: unknown command 'dance'; known: serve, config"),
        (["model"], "error: which model?; known: smollm2"),
        (["model", "gpt-9"], "error: no packaged model named 'gpt-9'; known: smollm2"),
    ],
)
def test_mistakes_end_with_code_1_and_a_reason(argv, text: str, executed, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 1
    assert capsys.readouterr().err.startswith(text)
    assert not executed


def test_config_prints_toml_with_origins(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "512")
    assert cli.main(["config", "--port", "9"]) == 0
    text = capsys.readouterr().out
    assert tomllib.loads(text)["engine"]["ctx_size"] == 512
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "port = 9 # command line --port" in lines
    assert "ctx_size = 512 # env LLAMA_ARG_CTX_SIZE" in lines
    assert "batch_size = 2048 # default" in lines


@pytest.mark.parametrize("argv", [["help"], ["--help"], ["serve", "-h"], ["config", "--usage"]])
def test_help(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 0
    assert capsys.readouterr().out.startswith("usage: llamarada COMMAND")


@pytest.mark.parametrize("argv", [["version"], ["--version"], ["serve", "--version"]])
def test_version(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 0
    assert capsys.readouterr().out.startswith("llamarada 0.")


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 1
    assert "usage:" in capsys.readouterr().err


def test_model_prints_the_path(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli, "fetch_model", lambda name: Path("/models") / name)
    assert cli.main(["model", "smollm2"]) == 0
    assert capsys.readouterr().out == "/models/smollm2\n"


def test_packaged_model_keeps_its_name(executed, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.download.fetch_model", lambda name: Path(model))
    cli.main(["serve", "-m", "smollm2", "--port", "0"])
    assert (ambient().model.path, ambient().model.name) == (model, "smollm2")


# ---------------------------------------------------------------- the start


def welcome(**fields) -> Welcome:
    info = ModelInfo(
        path="m.gguf",
        desc="llama 135M Q4_1",
        architecture="llama",
        n_params=134_515_008,
        size=91_000_000,
        ftype="Q4_1",
        n_vocab=49152,
        n_ctx_train=8192,
        n_embd=576,
        n_embd_out=576,
        n_layer=30,
        vocab_type=2,
    )
    return Welcome(
        **{"protocol": 1, "boot": "b", "model": info, "n_slots": 4, "n_ctx": 8192, "n_ctx_slot": 2048}
        | {"n_batch": 512, "n_ubatch": 512, "slab": "", "build": "b1", "pid": os.getpid()}
        | fields
    )


def config(*argv: str) -> Config:
    return resolve(["-m", "m.gguf", *argv], {}).config


def test_banner_tells_what_is_served_and_where() -> None:
    text = banner(config(), welcome())
    for part in ("m.gguf", "135 million parameters", "87 MiB", "8192 tokens shared by 4 slots, up to 2048 each"):
        assert part in text
    assert "MiB in the engine process" in text
    assert "http://127.0.0.1:8080" in text


def test_banner_leaves_out_what_it_cannot_know() -> None:
    assert "engine process" not in banner(config(), welcome(pid=0))


@pytest.mark.parametrize(
    ("argv", "start"),
    [
        ([], "curl http://127.0.0.1:8080/v1/completions -H 'Content"),
        (["--host", "0.0.0.0", "--port", "1", "--api-prefix", "/x"], "curl http://127.0.0.1:1/x/v1/completions -H"),
        (["--host", "fe80::1"], "curl 'http://[fe80::1]:8080/v1/completions' -H"),
        (["--host", "/run/a.sock"], "curl --unix-socket /run/a.sock http://localhost/v1/completions -H"),
        (["--api-key", "secret"], 'curl http://127.0.0.1:8080/v1/completions -H "Authorization: Bearer $API_KEY"'),
        (["--ssl-key-file", os.devnull, "--ssl-cert-file", os.devnull], "curl https://127.0.0.1:8080/"),
    ],
)
def test_example_reaches_the_server(argv: list[str], start: str) -> None:
    assert example(config(*argv)).startswith(start)


def test_example_body_is_json() -> None:
    assert json.loads(example(config()).split(" -d ")[1].strip("'"))["max_tokens"] == 32


@pytest.mark.parametrize(
    ("argv", "warned"),
    [
        ([], ["any web page"]),
        (["--api-key", "k"], []),
        (["--cors-origins", "localhost"], []),
        (["--host", "0.0.0.0", "--cors-origins", "localhost"], ["anybody who reaches 0.0.0.0"]),
        (["--api-key", "k", "--cors-credentials"], ["CORS credentials are allowed"]),
        (["--api-key", "k", "--props"], ["POST /props enabled - do not expose"]),
    ],
)
def test_security_warnings(argv: list[str], warned: list[str]) -> None:
    warnings = security_warnings(config(*argv))
    assert len(warnings) == len(warned)
    assert all(part in warning for part, warning in zip(warned, warnings, strict=True))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_load_bar_draws_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for stream, drawn in ((Terminal(), True), (io.StringIO(), False)):
        load = LoadBar("m.gguf", stream)
        load.show(0.5)
        load.close()
        assert ("50%" in stream.getvalue()) is drawn


def test_load_bar_redraws_changes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    load = LoadBar("m.gguf", stream)
    load.show(0.5)
    once = stream.getvalue()
    load.show(0.5001)
    assert stream.getvalue() == once


@pytest.mark.parametrize(("progress", "end"), [(-1, "   0%"), (0.25, " 25%"), (2, "100%")])
def test_bar_stays_between_its_ends(progress: float, end: str) -> None:
    assert bar("m", progress, 80).endswith(end)
    assert len(bar("m", progress, 20)) == 19
