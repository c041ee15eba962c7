"""The engine process: `python -m engine [--config FILE] [flags of `llamarada serve`]`."""

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from engine import library, llama, process
from engine.assemble import assemble, row_count
from engine.contexts import open_contexts, warm_up
from engine.download import located
from engine.library import LibraryError
from engine.loop import Engine
from engine.model import Model, ModelError
from engine.process import Busy
from engine.vocab import Vocab
from ipc import logs
from ipc.config import Config, ConfigError, ambient, make_run_dir, pin_port, resolve
from ipc.server import Server, TcpBind
from ipc.slab import Slab, State

log = logging.getLogger("llamarada.engine")

_BEAT_SECONDS = 0.25
_SWITCH_SECONDS = 0.0005  # until the decode loop gets the interpreter from a thread that compiles a constraint
_LOAD_MODES = {
    "auto": llama.LoadMode.AUTO,
    "none": llama.LoadMode.NONE,
    "mmap": llama.LoadMode.MMAP,
    "mlock": llama.LoadMode.MLOCK,
    "mmap+mlock": llama.LoadMode.MMAP_MLOCK,
    "dio": llama.LoadMode.DIRECT_IO,
}


def main(argv: list[str]) -> int:
    """Load, serve, and clean up; the exit code is 0 after a stop that was asked for."""
    try:
        config = _config(argv)
        logs.configure(config.log, "engine")
        _serve(config)
    except (ConfigError, LibraryError, ModelError, Busy, OSError, ValueError, RuntimeError) as problem:
        log.error("%s", problem)
        print(f"llamarada engine: {problem}", file=sys.stderr)
        return 1
    return 0


def _config(argv: list[str]) -> Config:
    """From this command line when there is one, else from the parent process or the environment."""
    if not argv:
        return located(ambient())
    resolved = resolve(argv, os.environ)
    for warning in resolved.warnings:
        log.warning("%s", warning)
    return located(pin_port(resolved.config))


def _serve(config: Config) -> None:
    if config.model.path is None:
        raise ConfigError("no model: give --model FILE, or [model] path in the config file")
    sys.setswitchinterval(_SWITCH_SECONDS)
    folder = make_run_dir(config)
    library.load(config.engine.library)
    if config.engine.numa is not None:
        llama.llama_numa_init(llama.NumaStrategy[config.engine.numa.upper()])
    held = process.lock(str(folder / "engine.lock"), patience=2.0)
    stopping = _Stop()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, held)
        slab = Slab.create(str(config.slab_path()), row_count(config.engine), _vocabulary_size(config.model.path))
        stack.callback(slab.close)
        stack.enter_context(_heart(slab))
        try:
            _load_and_run(config, slab, stopping, stack)
        except BaseException:
            slab.state = State.FAILED
            raise


def _load_and_run(config: Config, slab: Slab, stopping: "_Stop", stack: contextlib.ExitStack) -> None:
    settings = config.engine
    model = _load(config, slab)
    stack.callback(model.close)
    given = "engine.ubatch_size" in config.given
    context, embedding = open_contexts(model, settings, ubatch_given=given)
    for opened in {context, *embedding}:
        stack.callback(opened.close)
        if settings.warmup:
            warm_up(opened, model)
    server = Server(config.engine_address(), slab, _tcp(config))
    stack.callback(server.close)
    engine = assemble(config, model, context, embedding, server, slab)
    stopping.then(engine)
    slab.state = State.READY
    log.info("ready: %s, %d slots of %d tokens", config.model.name, len(engine.slots), engine.slots[0].n_ctx)
    gc.freeze()  # what is there now stays: the collector need not look at it while tokens are due
    engine.run()


def _load(config: Config, slab: Slab) -> Model:
    settings = config.engine

    def progress(done: float) -> None:
        slab.load_progress = done

    params: dict[str, Any] = {} if settings.n_gpu_layers is None else {"n_gpu_layers": settings.n_gpu_layers}
    assert config.model.path is not None
    return Model.load(
        config.model.path,
        progress=progress,
        tensor_split=settings.tensor_split,
        split_mode=llama.SplitMode[settings.split_mode.upper()],
        load_mode=_LOAD_MODES[settings.load_mode],
        main_gpu=settings.main_gpu,
        check_tensors=config.model.check_tensors,
        **params,
    )


def _vocabulary_size(path: str) -> int:
    vocab = Vocab.load(path)
    try:
        return vocab.n_tokens
    finally:
        vocab.close()


def _tcp(config: Config) -> TcpBind | None:
    ipc = config.ipc
    if ipc.bind is None:
        return None
    if ipc.curve_key_file is None or ipc.curve_clients_dir is None:
        raise ConfigError("ipc.bind needs ipc.curve_key_file and ipc.curve_clients_dir")
    return TcpBind.load(ipc.bind, ipc.curve_key_file, ipc.curve_clients_dir)


@contextlib.contextmanager
def _heart(slab: Slab) -> Iterator[None]:
    """Beat on a thread of its own: a long decode is no reason to look dead, a stopped process is."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(_BEAT_SECONDS):
            slab.beat()

    thread = threading.Thread(target=beat, name="heart", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(timeout=2)


class _Stop:
    """SIGTERM and SIGINT: before there is an engine they end the process, afterwards they stop its loop."""

    def __init__(self) -> None:
        self._stop: Callable[[], None] | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def then(self, engine: Engine) -> None:
        self._stop = engine.stop

    def _on_signal(self, number: int, frame: object) -> None:
        if self._stop is None:
            raise SystemExit(0)
        self._stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
