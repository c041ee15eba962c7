"""How many threads compute: all that were asked for, fewer while other programs want the same cores.

The threads of a decode wait for each other some hundred times, and each wait for one without a core costs a time
slice: two engines with two threads each on two cores are not half as fast as one but a thirtieth.
"""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

log = logging.getLogger(__name__)

_WINDOW = 0.5  # seconds of work between two looks
_CROWDED = 0.5  # own threads waiting for a core, on average, from which on there are too many
_IDLE = 0.7  # cores nobody uses that another thread needs
_HOLD = (2.0, 60.0)  # seconds until a thread that was taken away may come back: at first, and when it was in vain
_TRIAL = 4  # looks after which a thread that came back has not come in vain
_TICKS = os.sysconf("SC_CLK_TCK")


class Computes(Protocol):
    """A context, as far as its threads go."""

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None: ...


class Threads:
    """Adapts the threads of `context`: `n` for steps of one token, `n_batch` for larger ones, or fewer of both."""

    def __init__(
        self,
        context: Computes,
        n: int,
        n_batch: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        waited: Callable[[], float] | None = None,
        idle: Callable[[], float] | None = None,
    ) -> None:
        """`waited`: seconds that threads of this process have waited for a core; `idle`: of cores that had no work."""
        self._context, self._n, self._n_batch = context, n, n_batch
        self._clock, self._waited, self._idle = clock, waited or _waited, idle or _idle
        self._most = self.count = max(n, n_batch)
        self._begun: float | None = None  # when the window did
        self._before = 0.0  # what had been waited then
        self._idle_since: tuple[float, float] | None = None
        self._hold, self._free_at = _HOLD[0], 0.0
        self._looks = _TRIAL  # since threads came back

    def rest(self) -> None:
        """There is nothing to do: that time does not count, and the next work may begin with all threads again."""
        self._begun = self._idle_since = None
        if self.count < self._most and self._clock() >= self._free_at:
            self._come_back(self._most)

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
        self._looks += 1
        if waiting > _CROWDED and self.count > 1:
            in_vain = self._looks <= _TRIAL
            self._hold = min(2 * self._hold, _HOLD[1]) if in_vain else _HOLD[0]
            self._free_at, self._idle_since = moment + self._hold, None
            self._use(max(1, self.count - max(1, round(waiting))))
        elif self.count < self._most and moment >= self._free_at:
            self._look_for_cores(moment)

    def _look_for_cores(self, moment: float) -> None:
        idle, before = self._idle(), self._idle_since
        self._idle_since = moment, idle
        if before is not None and (cores := (idle - before[1]) / (moment - before[0])) >= _IDLE:
            self._come_back(min(self._most, self.count + max(1, int(cores))))

    def _come_back(self, count: int) -> None:
        self._looks, self._idle_since = 0, None
        self._use(count)

    def _use(self, count: int) -> None:
        why = "cores may be free" if count > self.count else "other programs need cores"
        log.info("%d of %d threads compute: %s", count, self._most, why)
        self.count = count
        self._context.set_threads(min(count, self._n), min(count, self._n_batch))


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
