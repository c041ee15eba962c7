import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipc.config import LogSection
from ipc.logs import LIBLLAMA, NOTHING, Lines, colored, configure, formatter, level


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, before = root.handlers[:], (root.level, logging.getLogger(LIBLLAMA).level)
    root.handlers[:] = []
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(before[0])
    logging.getLogger(LIBLLAMA).setLevel(before[1])


def record(message: str = "hello %s", level: int = logging.INFO, **fields) -> logging.LogRecord:
    return logging.LogRecord("ipc.x", level, __file__, 1, message, ("you",), fields.get("exc_info"))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (LogSection(verbosity=0), NOTHING),
        (LogSection(verbosity=1), logging.ERROR),
        (LogSection(), logging.INFO),
        (LogSection(verbosity=10), logging.DEBUG),
        (LogSection(verbosity=10, disable=True), NOTHING),
    ],
)
def test_level_follows_verbosity(settings: LogSection, expected: int) -> None:
    assert level(settings) == expected


def test_line_names_level_and_process() -> None:
    assert Lines(LogSection(timestamps=False), "engine", False).format(record()) == "I engine: hello you"
    assert Lines(LogSection(timestamps=False, prefix=False), "engine", False).format(record()) == "hello you"


def test_warnings_are_coloured() -> None:
    line = Lines(LogSection(timestamps=False), "engine", True).format(record(level=logging.WARNING))
    assert line == "\x1b[33mW engine: hello you\x1b[0m"


def test_json_line_carries_everything() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        line = json.loads(formatter(LogSection(jsonl=True), "worker", False).format(record(exc_info=sys.exc_info())))
    assert (line["level"], line["process"], line["logger"], line["message"]) == ("info", "worker", "ipc.x", "hello you")
    assert "ValueError: why" in line["trace"]


def test_no_colours_away_from_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not colored(LogSection(), io.StringIO())
    assert colored(LogSection(colors="on"), io.StringIO())


def test_file_gets_the_log_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"
    configure(LogSection(file=str(path), colors="on", timestamps=False), "engine")
    logging.getLogger("ipc.x").warning("careful")
    assert path.read_text() == "W engine: careful\n"
    assert "careful" in capsys.readouterr().err


def test_libllama_tells_its_details_to_those_who_ask() -> None:
    configure(LogSection(), "engine")
    assert not logging.getLogger(LIBLLAMA).isEnabledFor(logging.INFO)
    configure(LogSection(verbosity=4), "engine")
    assert logging.getLogger(LIBLLAMA).isEnabledFor(logging.DEBUG)


def test_configuring_again_does_not_repeat_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure(LogSection(), "engine")
    configure(LogSection(), "engine")
    logging.getLogger("ipc.x").info("once")
    assert capsys.readouterr().err.count("once") == 1
