"""The life of the whole server: gunicorn's hooks, used by `configs/gunicorn.py`.

The gunicorn master is the top process. It holds the lock of the run folder and keeps one child beside its HTTP
workers, the supervisor, which keeps the engine. Whoever dies takes its children along. A stop goes through the
supervisor: it drains, stops the engine and ends; then the workers end.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gunicorn.arbiter import Arbiter
from gunicorn.errors import HaltServer
from gunicorn.glogging import Logger as GunicornLogger

from api.chat_setup import check_template
from api.listen import CannotListen, listen
from engine import process
from engine.download import located
from engine.policy import FIRST_DELAY, GAVE_UP, KILL_GRACE, LONGEST_DELAY, TERMINATE_GRACE, terminate_grace
from ipc import config, logs
from ipc.config import Config, ConfigError

log = logging.getLogger("llamarada.master")

FLUSH_SECONDS = 3  # for what the workers still have to send when the engine is gone
DYING_SECONDS = 3.0  # that the processes of a killed server may take to be gone
TICK = 0.1  # s between two turns of the arbiter's loop while there is no supervisor


class Master(Arbiter):  # type: ignore[misc]
    """gunicorn's arbiter with the supervisor as one more child, and with a drain before the end."""

    settings: Config
    supervisor: subprocess.Popen[bytes] | None
    announcer: subprocess.Popen[bytes] | None
    lock_fd: int

    def adopt(self, settings: Config) -> None:
        """Take the run folder and the addresses. Raises `Busy`, `ConfigError` or `CannotListen`."""
        self.settings = located(config.pin_port(settings))
        self.supervisor = self.announcer = None
        self.delay, self.spawn_at = FIRST_DELAY, 0.0
        self.stop_by: float | None = None  # set once a stop was asked for
        self.on_terminal = os.isatty(sys.stderr.fileno())
        folder = config.make_run_dir(self.settings)
        self.lock_fd = process.lock(str(folder / "lock"), DYING_SECONDS)
        self._publish(folder)
        try:
            self._listen()
        except BaseException:
            self.leave_run_dir()
            raise

    def _publish(self, folder: Path) -> None:
        """Write the configuration for our children, unless the process that became us did, and drop stale ones."""
        if not os.environ.get("LLAMARADA_CONFIG"):
            os.environ["LLAMARADA_CONFIG"] = str(config.publish(self.settings))
        for path in folder.glob("config-*.json"):
            if str(path) != os.environ["LLAMARADA_CONFIG"]:
                path.unlink(missing_ok=True)

    def leave_run_dir(self) -> None:
        """Remove what we wrote, and the folder if nothing else is in it."""
        folder = self.settings.run_dir()
        _forget_configuration()
        process.unlock(str(folder / "lock"), self.lock_fd)
        with contextlib.suppress(OSError):
            folder.rmdir()

    def _listen(self) -> None:
        addresses = self.cfg.address
        inherited = "LISTEN_FDS" in os.environ or any(isinstance(address, int) for address in addresses)
        if not inherited and not self.cfg.reuse_port:  # those sockets gunicorn makes itself
            self.LISTENERS = listen(addresses, self.cfg, self.log)

    # ------------------------------------------------ the supervisor

    def spawn_supervisor(self) -> None:
        """Start the supervisor. It gets SIGTERM when we die, and then has files to remove."""
        command = process.python("engine.supervisor")
        self.supervisor = process.spawn(command, death_signal=signal.SIGTERM, keep_fds=[self.lock_fd])
        self.spawn_at = time.monotonic() + self.delay
        self.delay = min(self.delay * 2, LONGEST_DELAY)

    def announce(self) -> None:
        """Start the process that shows the load and says when the server can be used."""
        self.announcer = process.spawn(process.python("api.announce"))

    def stop_supervisor(self) -> None:
        """Make the supervisor stop the engine at once, and see it gone."""
        if self.supervisor is None:
            return
        self.supervisor.send_signal(signal.SIGQUIT)
        try:
            self.supervisor.wait(TERMINATE_GRACE + KILL_GRACE)
        except subprocess.TimeoutExpired:
            self.supervisor.kill()
        self.supervisor = None

    def wait_for_signals(self, timeout: float = 1.0) -> list[int]:
        """Called once in every turn of the arbiter's loop."""
        self._watch()
        signals: list[int] = super().wait_for_signals(TICK if self.supervisor is None else timeout)
        return signals

    def reap_workers(self) -> None:
        """Ask for the supervisor's exit code before the arbiter's `waitpid(-1)` throws it away."""
        if self.supervisor is not None:
            self.supervisor.poll()
        super().reap_workers()

    def _watch(self) -> None:
        """See whether the supervisor ended, and what follows."""
        now = time.monotonic()
        if self.stop_by is not None and now > self.stop_by:
            self.stop_supervisor()
        if self.supervisor is not None and self.supervisor.poll() is None:
            return
        code = None if self.supervisor is None else self.supervisor.returncode
        self.supervisor = None
        if self.stop_by is not None:
            self._finish()
        if code == GAVE_UP:
            self.cfg.set("graceful_timeout", 0)
            raise HaltServer("the engine did not start; its messages above say why", 1)
        if code is not None:
            log.error("the supervisor ended (%s)", process.exit_text(code))
        if now >= self.spawn_at:
            self.spawn_supervisor()

    # ------------------------------------------------ stopping

    def handle_term(self) -> None:
        """First signal: drain. Second: stop now."""
        if self.stop_by is not None:
            self._stop_now()
        if self.supervisor is None:
            self._finish()
            return
        drain = self.settings.http.shutdown_timeout
        self.stop_by = time.monotonic() + drain + terminate_grace(self.settings.engine) + KILL_GRACE + 1
        self.supervisor.send_signal(signal.SIGTERM)

    def handle_int(self) -> None:
        """As SIGTERM."""
        self.handle_term()

    def handle_quit(self) -> None:
        """Stop without draining."""
        self._stop_now()

    def handle_hup(self) -> None:
        """A closed terminal stops the server; without a terminal, the workers are renewed."""
        if self.on_terminal:
            self.handle_term()
        else:
            super().handle_hup()

    def handle_usr2(self) -> None:
        """A second master cannot share the run folder."""
        log.warning("SIGUSR2 ignored: the engine belongs to this process; stop it and start another one")

    def _finish(self) -> None:
        """The engine is gone: end the workers, then ourselves."""
        self.cfg.set("graceful_timeout", FLUSH_SECONDS)
        raise StopIteration

    def _stop_now(self) -> None:
        print("Received second interrupt, terminating immediately.", file=sys.stderr, flush=True)
        self._kill_workers()
        self.stop_supervisor()
        raise HaltServer("stopped by a second signal", 1)

    def _kill_workers(self) -> None:
        """Kill and reap them here: the arbiter would suspect a lack of memory."""
        for pid, worker in list(self.WORKERS.items()):
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            worker.tmp.close()
        self.WORKERS.clear()


class Log(GunicornLogger):  # type: ignore[misc]
    """gunicorn's own messages go where all others go."""

    def setup(self, cfg: Any) -> None:
        """Leave the handlers to the root logger."""
        super().setup(cfg)
        self.error_log.handlers.clear()
        self.error_log.propagate = True


def _forget_configuration() -> None:
    """Remove what was published for our children; it may hold API keys."""
    published = os.environ.get("LLAMARADA_CONFIG")
    if published:
        Path(published).unlink(missing_ok=True)


def ambient() -> Config:
    """The configuration that applies to this process; ends it with a readable text when that is wrong."""
    try:
        return config.ambient()
    except ConfigError as error:
        raise SystemExit(f"error: {error}") from None


def n_workers(settings: Config, cores: int | None = None) -> int:
    """HTTP worker processes: as configured, else two, and one more for every 16 cores, up to eight."""
    if settings.http.workers is not None:
        return settings.http.workers
    return min(8, 2 + (cores or len(os.sched_getaffinity(0))) // 16)


def on_starting(server: Any) -> None:
    """gunicorn hook: before anything is opened."""
    server.__class__ = Master  # also under a plain `gunicorn -c`, which makes its own arbiter
    settings = ambient()
    logs.configure(settings.log, "master")
    try:
        check_template(settings.chat)
        server.adopt(settings)
    except (process.Busy, CannotListen, ConfigError) as error:
        _forget_configuration()
        raise SystemExit(f"error: {error}") from None


def when_ready(server: Master) -> None:
    """gunicorn hook: signals are handled and the addresses are open, no worker runs yet."""
    process.release_signals()
    server.spawn_supervisor()
    server.announce()


def post_fork(server: Master, worker: Any) -> None:
    """gunicorn hook, in the new worker: die with the master, and leave a terminal's Ctrl-C to it."""
    process.die_with_parent(worker.ppid)
    os.setpgid(0, 0)
    logs.configure(server.settings.log, "worker")


def on_exit(server: Master) -> None:
    """gunicorn hook: the workers are gone."""
    server.stop_supervisor()
    if server.announcer is not None:
        server.announcer.kill()
    server.leave_run_dir()
