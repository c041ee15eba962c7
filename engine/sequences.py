"""All sequences that have not ended, and the one place where they do."""

import logging
from collections import deque

from engine.emitter import Emitter
from engine.metrics import Metrics
from engine.sequence import Phase, Sequence
from engine.slot import Slot
from ipc.messages import Error

log = logging.getLogger(__name__)


class Sequences:
    """Owns the queue and the table of live sequences."""

    def __init__(self, emitter: Emitter, metrics: Metrics) -> None:
        self._emitter = emitter
        self._metrics = metrics
        self._live: dict[tuple[bytes, int], Sequence] = {}
        self.queue: deque[Sequence] = deque()

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, key: tuple[bytes, int]) -> bool:
        return key in self._live

    def get(self, key: tuple[bytes, int]) -> Sequence | None:
        return self._live.get(key)

    def of_client(self, client: bytes) -> list[Sequence]:
        return [sequence for sequence in self._live.values() if sequence.client == client]

    def all(self) -> list[Sequence]:
        return list(self._live.values())

    def add(self, sequence: Sequence) -> None:
        """Take a new sequence into the queue; one without a prompt ends at once."""
        self._live[sequence.key] = sequence
        self.queue.append(sequence)
        if len(sequence.prompt) == 0:
            self.finish(sequence, "limit")

    def park(self, sequence: Sequence) -> None:
        """Take a running sequence out of its slot; it goes on from its tokens when there is room again."""
        self._leave_slot(sequence)
        sequence.phase, sequence.n_draft = Phase.QUEUED, 0
        self.queue.appendleft(sequence)

    def finish(self, sequence: Sequence, reason: str | None = None, error: Error | None = None) -> None:
        """End `sequence` for `reason` (or the one it has found itself) and send its Final."""
        if reason is not None:
            sequence.finish, sequence.error = reason, error
        del self._live[sequence.key]
        if sequence.phase is Phase.QUEUED:
            self.queue.remove(sequence)
        self._emitter.final(sequence)
        timings = sequence.timings()
        n_past = sequence.slot.n_past if sequence.slot is not None else 0
        self._metrics.released(timings.predicted_n, timings.predicted_ms, n_past)
        self._leave_slot(sequence)
        sequence.sampler.close()

    def fail(self, sequence: Sequence, error: Error) -> None:
        self.finish(sequence, "error", error)

    def abort(self, key: tuple[bytes, int]) -> None:
        """End a sequence whose client does not want it any more; unknown keys are fine."""
        sequence = self._live.get(key)
        if sequence is not None:
            self._metrics.aborted()
            self.finish(sequence, "abort")

    def _leave_slot(self, sequence: Sequence) -> None:
        slot: Slot | None = sequence.slot
        if slot is not None:
            slot.leave(sequence.clock.last_token or sequence.clock.arrived)
            sequence.slot = None
