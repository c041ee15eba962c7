"""Logging of every process as [log] says: one handler on standard error, one on the file."""

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import TextIO

from ipc.sections import LogSection

NOTHING = logging.CRITICAL + 10
LEVELS = (NOTHING, logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
LIBLLAMA = "llama"  # its lines of information are for those who ask for more
COLORS = {
    logging.DEBUG: "\x1b[2m",
    logging.WARNING: "\x1b[33m",
    logging.ERROR: "\x1b[31m",
    logging.CRITICAL: "\x1b[31m",
}
RESET = "\x1b[0m"


def configure(settings: LogSection, process: str) -> None:
    """Send this process's log where `settings` say; `process` is its name in every line."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level(settings))
    logging.getLogger(LIBLLAMA).setLevel(max(root.level, logging.WARNING) if settings.verbosity < 4 else root.level)
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    handlers[0].setFormatter(formatter(settings, process, colored(settings, sys.stderr)))
    if settings.file is not None:
        handlers.append(logging.FileHandler(settings.file, delay=True))
        handlers[1].setFormatter(formatter(settings, process, False))
    for handler in handlers:
        root.addHandler(handler)


def level(settings: LogSection) -> int:
    """Python's level for a verbosity of 0 (nothing) to 4 and more (everything)."""
    return NOTHING if settings.disable else LEVELS[min(settings.verbosity, len(LEVELS) - 1)]


def colored(settings: LogSection, stream: TextIO) -> bool:
    """Whether lines on `stream` get colours; NO_COLOR turns the automatic ones off."""
    if settings.colors == "auto":
        return stream.isatty() and not os.environ.get("NO_COLOR")
    return settings.colors == "on"


def formatter(settings: LogSection, process: str, color: bool) -> logging.Formatter:
    """How lines look."""
    return JsonLines(process) if settings.jsonl else Lines(settings, process, color)


class Lines(logging.Formatter):
    """`12:34:56.789 I engine: text`; time and prefix can be switched off."""

    def __init__(self, settings: LogSection, process: str, color: bool) -> None:
        prefix = f"%(levelname).1s {process}: " if settings.prefix else ""
        stamp = "%(asctime)s.%(msecs)03d " if settings.timestamps else ""
        super().__init__(f"{stamp}{prefix}%(message)s", datefmt="%H:%M:%S")
        self.color = color

    def format(self, record: logging.LogRecord) -> str:
        """The line, in its level's colour."""
        text = super().format(record)
        start = COLORS.get(record.levelno, "") if self.color else ""
        return f"{start}{text}{RESET}" if start else text


class JsonLines(logging.Formatter):
    """One JSON object per line, times in UTC."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        """The object: time, level, process, logger, message and, after a failure, its trace."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self.process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
