"""When the engine process is started, restarted, drained and killed: decisions only, no process, no clock.

Every happening arrives as an event with its time; the answer is what to do now. `engine.supervisor` carries it out.
"""

from dataclasses import dataclass
from enum import Enum, auto

from ipc.config import EngineSection

FIRST_DELAY = 0.2  # s before the first restart; doubles with each one
LONGEST_DELAY = 30.0
HEALTHY_AFTER = 60.0  # s of readiness that make the next restart quick again
STEP_HANG_FACTOR = 12  # a loop that is alive but finishes no step may take this much longer than a silent one
LOAD_HANG = 600.0  # s of a load without any progress
TERMINATE_GRACE = 2.0  # s between SIGTERM and SIGKILL
SAVE_GRACE = 25.0  # the same for an engine that writes its prompts to disk before it ends
KILL_GRACE = 5.0  # s after SIGKILL in which the kernel must end the process
CLOCK_STEP = 1.0  # s counted at most between two pulses: time that the supervisor itself was frozen proves nothing

GAVE_UP = 3  # exit code: the engine never got ready
STUCK = 4  # exit code: the engine did not end


class Phase(Enum):
    """Where the engine process is in its life."""

    LOADING = auto()
    READY = auto()
    WAITING = auto()  # dead, to be started again
    DRAINING = auto()  # running requests may end, new ones are refused
    TERMINATED = auto()  # SIGTERM sent
    KILLED = auto()  # SIGKILL sent
    ENDED = auto()


class Action(Enum):
    """What the supervisor has to do."""

    SPAWN = auto()
    ANNOUNCE_DRAIN = auto()  # from now on the HTTP workers refuse new requests
    TERMINATE = auto()
    KILL = auto()


def terminate_grace(settings: EngineSection) -> float:
    """How long an engine with these settings has to end after SIGTERM."""
    return TERMINATE_GRACE if settings.cache_disk is None else SAVE_GRACE


@dataclass(frozen=True, slots=True)
class Pulse:
    """What the slab's header says; `beat`, `steps` and `progress` matter by their changes only."""

    ready: bool = False
    beat: int = 0
    steps: int = 0
    progress: float = 0.0
    active: int = 0  # tasks not finished yet


class Policy:
    """Decides for one engine process. `hang`: seconds of silence that mean one; `drain`: seconds that a stop waits.

    `grace`: seconds that the engine then has to end.
    """

    def __init__(self, hang: float, drain: float, grace: float = TERMINATE_GRACE) -> None:
        self.hang, self.drain, self.grace = hang, drain, grace
        self.phase = Phase.WAITING
        self.been_ready = False
        self.stopping = False
        self.exit_code: int | None = None  # of the supervisor, once ENDED
        self.reason = ""  # of the latest decision, for the log
        self.delay = FIRST_DELAY
        self.due: float | None = None  # when `wake` has something to decide
        self._pulse = Pulse()
        self._seen_at = 0.0
        self._ready_at: float | None = None
        self._silent = self._stuck = 0.0  # s without a new beat (while loading: any progress); without a new step

    def start(self, now: float) -> list[Action]:
        """The engine is wanted."""
        self.phase, self.due = Phase.LOADING, None
        self._pulse, self._seen_at, self._silent, self._stuck = Pulse(), now, 0.0, 0.0
        return [Action.SPAWN]

    def exited(self, what: str, now: float) -> list[Action]:
        """The engine process ended; `what` tells how."""
        if self.stopping:
            return self._end(0, f"the engine ended ({what})")
        if not self.been_ready:
            return self._end(GAVE_UP, f"the engine ended before it was ready ({what}); giving up")
        if self._ready_at is not None and now - self._ready_at >= HEALTHY_AFTER:
            self.delay = FIRST_DELAY
        self.phase, self.due, self._ready_at = Phase.WAITING, now + self.delay, None
        self.reason = f"the engine ended ({what}); starting it again in {self.delay:g} s"
        self.delay = min(self.delay * 2, LONGEST_DELAY)
        return []

    def pulse(self, pulse: Pulse, now: float) -> list[Action]:
        """A reading of the slab's header; call it a few times a second."""
        self._count_silence(pulse, now)
        if self.phase is Phase.LOADING and pulse.ready:
            self.phase, self.been_ready, self._ready_at = Phase.READY, True, now
            self.reason = "the engine is ready"
        if self.phase is Phase.DRAINING and not pulse.active:
            return self._terminate(now, "no request is running; stopping the engine")
        hung = self._hung(pulse)
        return self._kill(now, f"the engine hangs ({hung}); killing it") if hung else []

    def stop(self, now: float) -> list[Action]:
        """A stop is asked for: first drain; asked again, stop at once."""
        if self.phase is not Phase.READY or self.drain <= 0:
            return self.stop_now(now)
        self.stopping, self.phase, self.due = True, Phase.DRAINING, now + self.drain
        self.reason = f"stopping: no new requests, running ones have {self.drain:g} s to end"
        return [Action.ANNOUNCE_DRAIN]

    def stop_now(self, now: float) -> list[Action]:
        """Stop without draining; an engine that was told to end already is killed."""
        self.stopping = True
        if self.phase is Phase.WAITING:
            return self._end(0, "stopped")
        if self.phase is Phase.TERMINATED:
            return self._kill(now, "killing the engine")
        return [] if self.phase in (Phase.KILLED, Phase.ENDED) else self._terminate(now, "stopping the engine")

    def orphaned(self, now: float) -> list[Action]:
        """Our parent is gone: nobody needs the engine any more."""
        self.stopping = True
        reason = "the parent is gone"
        return self._end(0, reason) if self.phase is Phase.WAITING else self._kill(now, reason)

    def wake(self, now: float) -> list[Action]:
        """Decide what has become due."""
        if self.due is None or now < self.due:
            return []
        if self.phase is Phase.WAITING:
            return self.start(now)
        if self.phase is Phase.DRAINING:
            return self._terminate(now, f"{self.drain:g} s are over; ending the requests that still run")
        if self.phase is Phase.TERMINATED:
            return self._kill(now, "the engine does not stop; killing it")
        return self._end(STUCK, "the engine does not end, not even by SIGKILL")

    def _count_silence(self, pulse: Pulse, now: float) -> None:
        passed, self._seen_at = min(now - self._seen_at, CLOCK_STEP), now
        before, self._pulse = self._pulse, pulse
        progressed = pulse.progress != before.progress or pulse.ready != before.ready
        self._silent = 0.0 if pulse.beat != before.beat or progressed else self._silent + passed
        self._stuck = 0.0 if pulse.steps != before.steps or not pulse.active else self._stuck + passed

    def _hung(self, pulse: Pulse) -> str:
        if self.phase is Phase.LOADING and self._silent > max(LOAD_HANG, self.hang):
            return f"the load has not moved for {self._silent:.0f} s"
        if self.phase not in (Phase.READY, Phase.DRAINING):
            return ""
        if self._silent > self.hang:
            return f"no sign of life for {self._silent:.0f} s"
        if self._stuck > self.hang * STEP_HANG_FACTOR:
            return f"{pulse.active} tasks, but no step for {self._stuck:.0f} s"
        return ""

    def _terminate(self, now: float, reason: str) -> list[Action]:
        self.phase, self.due, self.reason = Phase.TERMINATED, now + self.grace, reason
        return [Action.TERMINATE]

    def _kill(self, now: float, reason: str) -> list[Action]:
        self.phase, self.due, self.reason = Phase.KILLED, now + KILL_GRACE, reason
        return [Action.KILL]

    def _end(self, exit_code: int, reason: str) -> list[Action]:
        self.phase, self.due, self.exit_code, self.reason = Phase.ENDED, None, exit_code, reason
        return []
