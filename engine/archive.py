"""What slots lose is kept here, in host memory and on disk, and found again by its beginning."""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from engine.diskcache import DiskCache, Entry
from engine.hostcache import MIB, WORTH, HostCache
from engine.memory import Memory
from engine.sequence import Sequence
from engine.slot import Slot, common_prefix
from engine.snapshot import Snapshot, Tokens

log = logging.getLogger(__name__)

_SHARE = 4  # a loss is worth a copy from one part in so many of what the slot holds
_RESTORE_SHARE = 8  # a snapshot is worth restoring for one part in so many of it
_READ_PATIENCE = 10_000.0  # ms that a prompt waits for the disk
_REST = 1_000.0  # ms that a slot must have been idle before it is written to disk
_LOOK = 10_000.0  # ms between looks at what other engines have put on disk
_FLUSH_SECONDS = 20.0  # for writes when the engine stops


@dataclass(slots=True)
class _Reading:
    """A file on its way into memory; every sequence that wants it waits for the same one."""

    snapshot: "Future[Snapshot | None]"
    since: float


class Archive:
    """Copies are taken between decode steps, since taking one may need a decode of its own."""

    def __init__(
        self,
        slots: list[Slot],
        memory: Memory,
        host: HostCache | None,
        disk: DiskCache | None,
        clock: Callable[[], float],
        *,
        move_idle: bool = False,
    ) -> None:
        """`move_idle`: what idle slots hold moves to host memory when something else starts."""
        self._slots = slots
        self._memory = memory
        self._host = host
        self._disk = disk
        self._clock = clock
        self._move_idle = move_idle and host is not None
        self._to_move: list[Slot] = []
        self._reading: dict[Entry, _Reading] = {}
        self._looked = clock()

    def before_loss(self, slot: Slot, kept: int = 0) -> bool:
        """`slot` is about to lose all but its first `kept` tokens: copy what it holds, where that is worth it.

        False when what is worth it could not be copied.
        """
        n = len(slot.reusable)
        return n - kept < max(WORTH, n // _SHARE) or self._is_elsewhere(slot) or self._keep(slot)

    def evict_idle(self, spare: Slot | None = None) -> bool:
        """Clear the idle slot that was unused for longest; False when none (but `spare`) holds anything."""
        idle = [slot for slot in self._slots if slot.idle and slot.n_past and slot is not spare]
        if idle:
            self.clear(min(idle, key=lambda slot: slot.last_used))
        return bool(idle)

    def clear(self, slot: Slot) -> None:
        """Clear `slot`, after copying what is worth it."""
        self.before_loss(slot)
        self._memory.clear(slot)

    def find(self, sequence: Sequence, slot: Slot, have: int) -> "Snapshot | Future[Snapshot | None] | None":
        """A snapshot that saves clearly more than the `have` tokens at hand; a Future while it is read.

        It is one that has room in `slot` beside what the busy ones hold.
        """
        tokens, adapters = sequence.tokens[:-1], sequence.adapters
        busy = [other for other in self._slots if not other.idle and other is not slot]
        room = min(slot.n_ctx, self._memory.available(busy))
        found, n = self._host.best(tokens, adapters) if self._host is not None else (None, 0)
        entry, on_disk = self._disk.best(tokens, adapters) if self._disk is not None else (None, 0)
        if entry is not None and self._is_worth(on_disk, max(have, n), len(entry.tokens), room):
            reading = self._read(entry)
            if reading is not None:
                return reading
        if found is None or not self._is_worth(n, have, len(found.tokens), room):
            return None
        assert self._host is not None
        self._host.use(found)
        return found

    def restore(self, snapshot: Snapshot, slot: Slot) -> bool:
        """Put `snapshot` in the place of what `slot` holds; idle slots make room. False: the slot is empty now."""
        n = len(snapshot.tokens)
        self._memory.clear(slot)
        while self._memory.free() < n and self.evict_idle(spare=slot):
            continue
        return n <= min(slot.n_ctx, self._memory.free()) and self._memory.restore(slot, snapshot)

    def started(self) -> None:
        """A sequence has begun: what idle slots hold would only slow it down, each token attends over all cells."""
        if self._move_idle:
            self._to_move = [slot for slot in self._slots if slot.idle and slot.n_past]

    def tidy(self) -> None:
        """Between two steps: move what one idle slot holds to host memory, if that frees anything."""
        while self._to_move:
            slot = self._to_move.pop()
            if slot.idle and self._memory.own(slot) >= WORTH and len(slot.reusable) >= WORTH:
                if self.before_loss(slot):
                    self._memory.clear(slot)
                return

    def rest(self) -> None:
        """Nothing else is to be done: write a slot to disk that is not there yet."""
        if self._disk is None:
            return
        moment = self._clock()
        if moment - self._looked > _LOOK:
            self._looked = moment
            self._disk.look()
        for slot in self._slots:
            if slot.idle and moment - slot.last_used > _REST and self._write(slot):
                return

    def close(self) -> None:
        """Write what is not on disk yet. The engine stops; no slot will be used again."""
        if self._disk is None:
            return
        for slot in self._slots:
            self._write(slot)
        self._disk.close(_FLUSH_SECONDS)

    def add(self, snapshot: Snapshot) -> bool:
        """Keep `snapshot`; False when there is no place for it."""
        in_memory = self._host is not None and self._host.add(snapshot)
        on_disk = self._disk is not None and self._disk.write(snapshot)
        return in_memory or on_disk

    def _keep(self, slot: Slot) -> bool:
        cache = self._host if self._host is not None else self._disk
        if cache is None:
            return False
        if cache.holds(slot.reusable, slot.adapters):
            return True
        if len(slot.reusable) < slot.n_past:  # what a shift has moved is right for nobody else
            self._memory.cut(slot, len(slot.reusable))
        snapshot = self._snapshot(slot)
        return snapshot is not None and self.add(snapshot)

    def _snapshot(self, slot: Slot) -> Snapshot | None:
        begun = self._clock()
        try:
            snapshot = self._memory.snapshot(slot)
        except MemoryError:
            if self._host is not None:
                self._host.out_of_memory()
            return None
        if snapshot is not None:
            text = "slot %d: %d tokens copied, %.1f MiB in %.1f ms"
            log.debug(text, slot.id, len(snapshot.tokens), snapshot.n_bytes / MIB, self._clock() - begun)
        return snapshot

    def _write(self, slot: Slot) -> bool:
        """Write what `slot` holds to disk, unless it is little or there already."""
        assert self._disk is not None
        tokens: Tokens = slot.reusable
        if len(tokens) < max(WORTH, slot.n_past) or self._disk.holds(tokens, slot.adapters):
            return False
        snapshot = self._snapshot(slot)
        return snapshot is not None and self._disk.write(snapshot)

    def _is_elsewhere(self, slot: Slot) -> bool:
        """Whether another slot holds (nearly) the same."""
        tokens, adapters = slot.reusable, slot.adapters
        others = [other for other in self._slots if other is not slot and other.adapters == adapters]
        shared = (self._memory.usable(other, common_prefix(other.reusable, tokens)) for other in others)
        return max(shared, default=0) > len(tokens) - WORTH

    def _is_worth(self, n: int, have: int, length: int, room: int) -> bool:
        """Whether a snapshot of `length` tokens should be restored for `n` of them, with `have` at hand."""
        return length <= room and n - have >= max(WORTH // 2, length // _RESTORE_SHARE)

    def _read(self, entry: Entry) -> "Snapshot | Future[Snapshot | None] | None":
        """What is in `entry`'s file: now, later, or not within reasonable time."""
        assert self._disk is not None
        if entry not in self._reading:
            self._reading[entry] = _Reading(self._disk.read(entry), self._clock())
        reading = self._reading[entry]
        if reading.snapshot.done():
            del self._reading[entry]
            snapshot = reading.snapshot.result()
            if snapshot is not None and self._host is not None:
                self._host.add(snapshot)
            return snapshot
        return reading.snapshot if self._clock() - reading.since < _READ_PATIENCE else None
