"""Keeps the engine process alive: `python -m engine.supervisor`, normally a child of the gunicorn master.

One loop over events: a signal, the end of the engine process, a reading of the slab's header, a deadline.
What to do about them is decided by `engine.policy`.

Signals: SIGTERM and SIGINT drain, then stop; the second one, or SIGQUIT, stops at once.
"""

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from engine import process
from engine.policy import Action, Phase, Policy, Pulse, terminate_grace
from ipc import config, logs
from ipc.slab import Slab, SlabError, State, announce_drain

log = logging.getLogger("llamarada.supervisor")

BUSY_TICK = 0.05  # s between two looks at the slab while something is about to change
CALM_TICK = 0.5
ENGINE_MODULE = "LLAMARADA_ENGINE_MODULE"  # for tests: run another module in the engine's place


class Gauge:
    """Reads the header of the current engine's slab, from the moment the engine has made it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._slab: Slab | None = None

    def read(self) -> Pulse:
        """The header now; an empty pulse while there is no slab."""
        slab = self._attached()
        if slab is None:
            return Pulse()
        ready = slab.state is State.READY
        return Pulse(ready, slab.beats, slab.steps, slab.load_progress, slab.active)

    def announce_drain(self) -> None:
        """Tell everybody who reads the header that the server is about to stop."""
        with contextlib.suppress(OSError):  # no slab: the engine is gone, and nobody is told that it is ready
            announce_drain(self.path)

    def close(self) -> None:
        """Forget the slab and delete its file: whoever made it is gone."""
        if self._slab is not None:
            self._slab.close()
            self._slab = None
        process.remove(self.path)

    def _attached(self) -> Slab | None:
        if self._slab is None:
            with contextlib.suppress(SlabError):  # not there yet
                self._slab = Slab.attach(self.path)
        return self._slab


class Supervisor:
    """Runs `command` as the engine. `files` are what a killed one leaves behind, besides its slab."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], policy: Policy, gauge: Gauge, files: Sequence[str] = ()
    ) -> None:
        self.command, self.env, self.policy, self.gauge, self.files = command, env, policy, gauge, files
        self.parent = os.getppid()
        self.engine: subprocess.Popen[bytes] | None = None
        self._engine_fd: int | None = None  # becomes readable when the engine process ends
        self._said = ""

    def run(self) -> int:
        """Keep the engine running until a stop is asked for; returns this process's exit code."""
        with signals_as_bytes() as wakeup:
            self._act(self.policy.start(time.monotonic()))
            while self.policy.exit_code is None:
                for actions in self._events(wakeup):
                    self._act(actions)
        if self.orphaned:
            process.remove(os.environ.get("LLAMARADA_CONFIG", ""))
        return self.policy.exit_code

    @property
    def orphaned(self) -> bool:
        """Whether our parent is gone."""
        return os.getppid() != self.parent

    def _events(self, wakeup: int) -> Iterator[list[Action]]:
        """Wait for the next event; yields the policy's answer to each thing that happened."""
        readable = self._wait(wakeup)
        if self.engine is not None:  # first, so that a stop finds the newest state
            yield self.policy.pulse(self.gauge.read(), time.monotonic())
        for number in os.read(wakeup, 64) if wakeup in readable else b"":
            yield self._signalled(number)
        if self.orphaned:
            yield self.policy.orphaned(time.monotonic())
        if self._engine_fd in readable:
            yield self.policy.exited(self._reap(), time.monotonic())
        yield self.policy.wake(time.monotonic())

    def _wait(self, wakeup: int) -> list[int]:
        poller = select.poll()
        poller.register(wakeup, select.POLLIN)
        if self._engine_fd is not None:
            poller.register(self._engine_fd, select.POLLIN)
        return [fd for fd, _ in poller.poll(self._tick() * 1000)]

    def _tick(self) -> float:
        tick = CALM_TICK if self.policy.phase is Phase.READY else BUSY_TICK
        left = tick if self.policy.due is None else self.policy.due - time.monotonic()
        return max(0.0, min(tick, left))

    def _signalled(self, number: int) -> list[Action]:
        now = time.monotonic()
        if self.orphaned:
            return self.policy.orphaned(now)
        if number in process.STOP_SIGNALS:
            return self.policy.stop(now)
        return self.policy.stop_now(now) if number == signal.SIGQUIT else []

    def _act(self, actions: list[Action]) -> None:
        self._say()
        for action in actions:
            if action is Action.SPAWN:
                self._spawn()
            elif action is Action.ANNOUNCE_DRAIN:
                self.gauge.announce_drain()
            elif self.engine is not None:
                self.engine.send_signal(signal.SIGTERM if action is Action.TERMINATE else signal.SIGKILL)

    def _say(self) -> None:
        if self.policy.reason != self._said:
            self._said = self.policy.reason
            level = logging.INFO if self.policy.stopping or self.policy.phase is Phase.READY else logging.ERROR
            log.log(level, "%s", self._said)

    def _spawn(self) -> None:
        self._clean()  # what an engine of an earlier server left
        self.engine = process.spawn(self.command, self.env)
        self._engine_fd = os.pidfd_open(self.engine.pid)
        log.info("started the engine, process %d", self.engine.pid)

    def _reap(self) -> str:
        assert self.engine is not None and self._engine_fd is not None
        os.close(self._engine_fd)
        code = self.engine.wait(timeout=1)
        self.engine = self._engine_fd = None
        self._clean()
        return process.exit_text(code)

    def _clean(self) -> None:
        self.gauge.close()
        process.remove(*self.files)


@contextlib.contextmanager
def signals_as_bytes() -> Iterator[int]:
    """Signals arrive as bytes on the returned descriptor; none interrupts the code."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer)
    for number in (*process.STOP_SIGNALS, signal.SIGQUIT):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(-1)
        os.close(reader)
        os.close(writer)


def engine_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Environment of the engine process; settings of OpenMP that the user made stay."""
    return dict(env)


def main() -> int:
    """Run the supervisor for the configuration that the environment names."""
    settings = config.ambient()
    logs.configure(settings.log, "supervisor")
    return Supervisor(
        command=process.python(os.environ.get(ENGINE_MODULE, "engine")),
        env=engine_environment(os.environ),
        policy=Policy(
            hang=settings.engine.hang_seconds,
            drain=settings.http.shutdown_timeout,
            grace=terminate_grace(settings.engine),
        ),
        gauge=Gauge(str(settings.slab_path())),
        files=[settings.engine_address().removeprefix("ipc://"), str(settings.run_dir() / "engine.lock")],
    ).run()


if __name__ == "__main__":
    sys.exit(main())
