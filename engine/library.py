"""Finds libllama, checks that it is the one `engine.llama` describes, binds it, and sends its log to Python's."""

import ctypes
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine import ctype, llama, paths
from engine.defaults import check_defaults

log = logging.getLogger("llama")
SPINS = "30000"  # about two milliseconds: more than lies between two decodes, less than a time slice
SUFFIX = ".dylib" if sys.platform == "darwin" else ".so"
FIX = "run ./build_llama.sh, or set LLAMARADA_LIB or [engine] library to a folder with the matching build"

LEVELS: dict[int, int] = {
    llama.LogLevel.DEBUG: logging.DEBUG,
    llama.LogLevel.WARN: logging.WARNING,
    llama.LogLevel.ERROR: logging.ERROR,
}


class LibraryError(RuntimeError):
    """libllama is missing or is not the one that this package was written for."""


class Log:
    """The callback that libllama logs through. Joins the pieces of a line; can collect what went wrong."""

    def __init__(self) -> None:
        self.level = logging.INFO
        self.pending = b""
        self.complaints: list[list[str]] = []

    def __call__(self, level: int, text: bytes, user_data: object) -> None:
        if level != llama.LogLevel.CONT:
            self.flush()
            self.level = LEVELS.get(level, logging.INFO)
        *lines, self.pending = (self.pending + text).split(b"\n")
        for line in lines:
            self.emit(line)

    def flush(self) -> None:
        pending, self.pending = self.pending, b""
        self.emit(pending)

    def emit(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip()
        if not text:
            return
        if self.level >= logging.ERROR:
            for complaints in self.complaints:
                complaints.append(text)
        log.log(self.level, "%s", text)

    @contextmanager
    def collect(self) -> Iterator[list[str]]:
        """The error lines logged inside the `with`."""
        complaints: list[str] = []
        self.complaints.append(complaints)
        try:
            yield complaints
        finally:
            self.flush()
            self.complaints = [others for others in self.complaints if others is not complaints]


def _report_abort(message: bytes) -> None:
    _log.flush()
    log.critical("libllama aborts: %s", message.decode("utf-8", "replace").strip())


# libllama calls these for as long as the process lives
_log = Log()
_log_callback = ctype.ggml_log_callback(_log)
_abort_callback = ctype.ggml_abort_callback_t(_report_abort)
_loaded: dict[str, Path] = {}

collect_errors = _log.collect


def load(configured: str | None = None) -> Path:
    """Load libllama once per process and return its folder. `configured` is `[engine] library`.

    LibraryError says what is wrong with the library and what to do.
    """
    if "folder" in _loaded and configured is None:
        return _loaded["folder"]
    folder = find(configured)
    _spare_the_cores()
    if "folder" in _loaded:
        if folder != _loaded["folder"]:
            raise LibraryError(f"libllama is already loaded from {_loaded['folder']}; a process can hold only one")
        return folder
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # ggml would hold a dying process to attach a debugger
    for name in ("libggml-base", "libggml"):
        if (folder / (name + SUFFIX)).exists():
            open_with_dependents(folder / (name + SUFFIX))
    library = open_with_dependents(folder / ("libllama" + SUFFIX))
    check(library, folder)
    ctype.bind(vars(llama), library)
    llama.llama_log_set(_log_callback, None)
    llama.ggml_set_abort_callback(_abort_callback)
    _loaded["folder"] = folder
    return folder


def _spare_the_cores() -> None:
    """Let OpenMP threads that wait for each other sleep soon instead of spinning on a core that somebody needs.

    Read by libgomp when it is loaded. A decode step has hundreds of barriers; with spinning threads and one busy
    neighbour each of them lasts for a time slice, and decoding gets five to ten times slower (docs/benchmarks.md).
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


def load_backends() -> None:
    """Make the compute devices known; loading weights needs them, a vocabulary does not."""
    folder = load()
    if not llama.ggml_backend_reg_count():
        llama.ggml_backend_load_all_from_path(str(folder).encode())
    llama.llama_backend_init()


def find(configured: str | None = None) -> Path:
    """The folder that holds libllama: `configured`, else LLAMARADA_LIB, else the newest usable build in the cache."""
    try:
        return paths.lib_dir(configured)
    except FileNotFoundError as error:
        raise LibraryError(str(error)) from error


def open_with_dependents(path: Path) -> ctypes.CDLL:
    """Open `path`; libraries it needs and the system does not find are taken from its folder."""
    opened: set[str] = set()
    while True:
        try:
            return ctypes.CDLL(str(path))
        except OSError as error:
            needed = re.match(r"(lib[^/:]+): cannot open shared object file", str(error))
            name = needed[1] if needed else ""
            if not name or name in opened or not (path.parent / name).exists():
                raise LibraryError(f"{path} cannot be loaded: {error}; {FIX}") from error
            opened.add(name)
            open_with_dependents(path.parent / name)


def check(library: ctypes.CDLL, folder: Path) -> None:
    """Raise LibraryError unless `library` fits the declarations of `engine.llama`."""
    differences = [f"it has no {name}" for name in ctype.missing(library)] or list(check_defaults(library))
    if differences:
        more = f" (and {len(differences) - 3} more differences)" if len(differences) > 3 else ""
        raise LibraryError(f"{folder} holds another libllama: {', '.join(differences[:3])}{more}; {FIX}")


def device_names() -> list[str]:
    """Names of the compute devices, such as "CPU" and "CUDA0"."""
    return [(llama.ggml_backend_dev_name(device) or b"").decode() for device in _devices()]


def has_gpu() -> bool:
    """Whether layers can go to a GPU; `llama_supports_gpu_offload` is true wherever the RPC backend was built."""
    kinds = (llama.DeviceType.GPU, llama.DeviceType.IGPU, llama.DeviceType.META)
    return any(llama.ggml_backend_dev_type(device) in kinds for device in _devices())


def _devices() -> list[llama.Device]:
    load_backends()
    return [llama.ggml_backend_dev_get(i) for i in range(llama.ggml_backend_dev_count())]
