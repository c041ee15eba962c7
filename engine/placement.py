"""Brings queued sequences into slots and gives each the longest prefix that is evaluated somewhere."""

from collections.abc import Callable

from engine.cache import choose_slot
from engine.emitter import Emitter
from engine.memory import Memory
from engine.reuse import Reuse
from engine.sequence import Phase, Sequence
from engine.sequences import Sequences
from engine.slot import Slot, common_prefix
from ipc.messages import Error

_MARGIN = 8  # a sequence starts in shared KV when prompt and this part of the context (or its limit) fit


class Placement:
    """By priority, then first come, first served; slots by similarity, then by age (spec/engine.md §5)."""

    def __init__(
        self,
        slots: list[Slot],
        memory: Memory,
        reuse: Reuse,
        sequences: Sequences,
        emitter: Emitter,
        clock: Callable[[], float],
        similarity: float,
    ) -> None:
        self._slots = slots
        self._memory = memory
        self._reuse = reuse
        self._sequences = sequences
        self._emitter = emitter
        self._clock = clock
        self._similarity = similarity

    def expire(self) -> None:
        """End what has run out of time before its first token."""
        moment = self._clock()
        for sequence in self._sequences.all():
            if sequence.late(moment):
                text = "the request ran out of time before its first token"
                self._sequences.fail(sequence, Error(408, "timeout_error", text))

    def start_queued(self) -> None:
        """Give free slots to queued sequences, and tell those that stay of their position."""
        if self._sequences.queue:
            self._start_some(sorted(self._sequences.queue, key=lambda queued: queued.urgency))
            self._tell_positions()

    def _tell_positions(self) -> None:
        queue = self._sequences.queue
        if any(sequence.task.queue_position for sequence in queue):
            for position, sequence in enumerate(sorted(queue, key=lambda queued: queued.urgency)):
                self._emitter.queued(sequence, position)

    def _start_some(self, waiting: list[Sequence]) -> None:
        """In this order for as long as there is room; one that waits for a certain slot is passed over."""
        for sequence in waiting:
            slot = self._choose(sequence) or (self._choose(sequence) if self._preempt(sequence) else None)
            if slot is not None:
                if not self._has_room(sequence):
                    return
                self._sequences.queue.remove(sequence)
                self._start(sequence, slot)
            elif sequence.task.slot is None:
                return

    def join_waiting(self) -> None:
        """Let each new sequence begin, unless it is to wait for a neighbour or a file that saves it work."""
        for slot in self._slots:
            sequence = slot.sequence
            if sequence is not None and sequence.phase is Phase.WAITING:
                self._join(sequence, slot)

    def _choose(self, sequence: Sequence) -> Slot | None:
        """A task that reuses nothing takes the longest unused slot: another's cache is worth more to others."""
        similarity = self._similarity if sequence.task.cache_prompt else 0.0
        return choose_slot(
            self._slots,
            sequence.tokens,
            sequence.task.slot,
            similarity,
            sequence.adapters,
            compact=not self._memory.unified,
        )

    def _preempt(self, sequence: Sequence) -> bool:
        """Park a running sequence of lower priority, the lowest and youngest, where `sequence` could run."""
        slots = self._slots if sequence.task.slot is None else [self._slots[sequence.task.slot]]
        running = [slot.sequence for slot in slots if slot.sequence is not None]
        lower = [other for other in running if other.task.priority < sequence.task.priority]
        if lower:
            self._sequences.park(max(lower, key=lambda other: other.precedence))
        return bool(lower)

    def _has_room(self, sequence: Sequence) -> bool:
        """Whether shared KV has space for all tokens and some output; an engine at rest always tries."""
        running = [slot for slot in self._slots if slot.sequence is not None]
        if not running:
            return True
        tokens = sequence.tokens
        shared = max(common_prefix(slot.reusable, tokens) for slot in running) if sequence.task.cache_prompt else 0
        promised = sum(len(slot.sequence.tokens) - slot.n_past for slot in running if slot.sequence is not None)
        margin = sequence.slot_margin(_MARGIN, running[0].n_ctx)
        return len(tokens) - shared + margin <= self._memory.available(running) - promised

    def _start(self, sequence: Sequence, slot: Slot) -> None:
        slot.sequence, sequence.slot = sequence, slot
        sequence.phase = Phase.WAITING
        moment = self._clock()
        if sequence.clock.started is None:
            sequence.clock.started = moment
            sequence.sampler.prime(sequence.prompt)

    def _join(self, sequence: Sequence, slot: Slot) -> None:
        n = self._reuse.bring(sequence, slot)
        if n is None:
            return
        sequence.phase = Phase.PREFILL
        if not sequence.output:
            sequence.n_cached = n
        self._emitter.progress(sequence, n, self._clock())
