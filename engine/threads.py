"""How many threads compute: all that were asked for, fewer while other programs want the same cores.

The threads of a decode wait for each other some hundred times, and each wait for one without a core costs a time
slice: two engines with two threads each on two cores are not half as fast as one but a thirtieth.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

log = logging.getLogger(__name__)

_WINDOW = 0.5  # seconds of work between two looks
_CROWDED = 0.5  # own threads waiting for a core, on average, from which on there are too many
_IDLE = 0.7  # cores nobody uses that another thread needs
_HOLD = (2.0, 60.0)  # seconds until a thread that was taken away may come back: at first, and when it was in vain
_TICKS = os.sysconf("SC_CLK_TCK")


class Computes(Protocol):
    """A context, as far as its threads go."""

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None: ...


class Threads:
    """Adapts the threads of `contexts`: `n` for steps of one token, `n_batch` for larger ones, or fewer of both."""

    def __init__(
        self,
        contexts: Sequence[Computes],
        n: int,
        n_batch: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        waited: Callable[[], float] | None = None,
        idle: Callable[[], float] | None = None,
    ) -> None:
        """`waited`: seconds that threads of this process have waited for a core; `idle`: of cores that had no work."""
        self._contexts, self._n, self._n_batch = contexts, n, n_batch
        self._clock, self._waited, self._idle = clock, waited or _waited, idle or _idle
        self._most = self.count = max(n, n_batch)
        self._begun: float | None = None  # when the window did
        self._before = 0.0  # what had been waited then
        self._idle_since: tuple[float, float] | None = None
        self._hold, self._free_at, self._raised_at = _HOLD[0], 0.0, -_HOLD[1]

    def rest(self) -> None:
        """There is nothing to do: that time does not count."""
        self._begun = None

    def adapt(self) -> None:
        """Call it after each step."""
        moment, begun = self._clock(), self._begun
        if begun is not None and moment - begun < _WINDOW:
            return
        waited = self._waited()
        if begun is not None:
            self._judge(moment, (waited - self._before) / (moment - begun))
        self._begun, self._before = moment, waited

    def _judge(self, moment: float, waiting: float) -> None:
        if waiting > _CROWDED and self.count > 1:
            in_vain = moment - self._raised_at < 4 * _WINDOW
            self._hold = min(2 * self._hold, _HOLD[1]) if in_vain else _HOLD[0]
            self._free_at, self._idle_since = moment + self._hold, None
            self._use(max(1, self.count - max(1, round(waiting))))
        elif self.count < self._most and moment >= self._free_at:
            self._look_for_cores(moment)

    def _look_for_cores(self, moment: float) -> None:
        idle = self._idle()
        if self._idle_since is not None:
            since, before = self._idle_since
            cores = (idle - before) / (moment - since)
            if cores >= _IDLE:
                self._raised_at = moment
                self._use(min(self._most, self.count + max(1, int(cores))))
        self._idle_since = moment, idle

    def _use(self, count: int) -> None:
        why = "cores are free" if count > self.count else "other programs need cores"
        log.info("%d of %d threads compute: %s", count, self._most, why)
        self.count = count
        for context in self._contexts:
            context.set_threads(min(count, self._n), min(count, self._n_batch))


def available() -> bool:
    """Whether the kernel tells how long threads wait."""
    return Path("/proc/self/schedstat").exists() and Path("/proc/stat").exists()


def _waited() -> float:
    """The second number of a thread's schedstat (Linux, Documentation/scheduler/sched-stats) is ns it waited."""
    total = 0
    for thread in os.scandir("/proc/self/task"):
        try:
            with open(f"{thread.path}/schedstat", "rb") as file:
                total += int(file.read().split()[1])
        except (OSError, IndexError):  # it has ended
            continue
    return total * 1e-9


def _idle() -> float:
    """Of the cores this process may use: idle, and waiting for disks (proc(5), /proc/stat)."""
    cores = {b"cpu%d" % core for core in os.sched_getaffinity(0)}
    total = 0
    with open("/proc/stat", "rb") as file:
        for line in file:
            name, *ticks = line.split()
            if not name.startswith(b"cpu"):
                break
            if name in cores:
                total += int(ticks[3]) + int(ticks[4])
    return total / _TICKS
