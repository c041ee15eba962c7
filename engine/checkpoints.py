"""Checkpoints: where a sliding window or a recurrent state is copied, so that a later prompt can branch off there."""

import logging

from engine.memory import Memory
from engine.sequence import Phase, Sequence
from engine.slot import Slot

log = logging.getLogger(__name__)

_NEAR_END = 4  # tokens before the prompt's end that a template often puts differently the next time
_CLOSEST = 64  # tokens between two checkpoints that are worth their place
_PARTS = 8  # a prompt without long messages is divided into so many parts


class Checkpoints:
    """At most `limit` per slot, `n_bytes` together in each. Models whose memory can be cut anywhere have none."""

    def __init__(self, memory: Memory, *, limit: int, min_step: int, n_ubatch: int, n_bytes: int) -> None:
        self._memory = memory
        self._limit = limit if memory.n_window is not None else 0
        self._min_step = min_step
        self._n_ubatch = n_ubatch
        self._n_bytes = n_bytes

    def plan(self, sequence: Sequence, slot: Slot) -> None:
        """Decide where reading `sequence`'s prompt pauses for a checkpoint."""
        n = len(sequence.prompt)
        sequence.pauses = []
        if self._limit and slot.n_exact == slot.n_past and n > (self._memory.n_window or 0):
            positions = wanted(sequence.task.message_starts, n, self._n_ubatch, self._min_step)
            held = {checkpoint.n for checkpoint in slot.checkpoints}
            sequence.pauses = [p for p in positions if p > slot.n_past and p not in held]

    def take(self, slots: list[Slot]) -> None:
        """Copy what the next step would overwrite, in slots that have come to a pause."""
        for slot in slots:
            sequence = slot.sequence
            if sequence is None or sequence.phase is not Phase.PREFILL or slot.n_past not in sequence.pauses:
                continue
            sequence.pauses.remove(slot.n_past)
            if self._limit and slot.n_exact == slot.n_past:
                self._take(slot)

    def _take(self, slot: Slot) -> None:
        try:
            checkpoint = self._memory.checkpoint(slot)
        except MemoryError:
            log.warning("there is no memory for a checkpoint")
            return
        if checkpoint is None or len(checkpoint.data) > self._n_bytes:
            return
        kept = [old for old in slot.checkpoints if old.n < checkpoint.n]
        n_bytes = len(checkpoint.data) + sum(len(old.data) for old in kept)
        while kept and (len(kept) >= self._limit or n_bytes > self._n_bytes):
            gone = kept.pop(least_useful([old.n for old in kept], checkpoint.n))
            n_bytes -= len(gone.data)
        slot.checkpoints = [*kept, checkpoint]
        log.debug("slot %d: checkpoint at %d, %d bytes", slot.id, checkpoint.n, len(checkpoint.data))


def wanted(message_starts: list[int], n: int, n_ubatch: int, min_step: int) -> list[int]:
    """Positions of a prompt of `n` tokens that are worth a checkpoint: the last user message, the end, and others in
    between, preferably where a user message begins; the longer the prompt the wider apart, up to `min_step`.
    """
    step = max(1, min(min_step, max(n_ubatch, n // _PARTS)))
    starts = [start for start in message_starts if 0 < start < n]
    fixed = {*starts[-1:], *(p for p in (n - _NEAR_END - n_ubatch, n - _NEAR_END) if p > 0)}
    regular = {nearest(starts, p, step // 2) for p in range(step, n, step)}
    return sorted(fixed | {p for p in regular if all(abs(p - other) >= _CLOSEST for other in fixed)})


def nearest(starts: list[int], position: int, distance: int) -> int:
    """The message start closest to `position`, or `position` itself when none is within `distance`."""
    best = min(starts, key=lambda start: abs(start - position), default=position)
    return best if abs(best - position) <= distance else position


def least_useful(held: list[int], new: int) -> int:
    """Index of the checkpoint whose loss leaves the smallest gap between its neighbours."""
    edges = [0, *held, new]
    return min(range(len(held)), key=lambda i: edges[i + 2] - edges[i])
