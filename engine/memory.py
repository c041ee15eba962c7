"""What slots hold in libllama's KV memory: copying, cutting and moving it without harming a neighbour."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engine.regime import PLAIN
from engine.slot import Slot
from engine.snapshot import Blob, Checkpoint, Snapshot, reachable

PARTIAL_ONLY = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: of sliding windows and recurrent states only


class Kv(Protocol):
    """The part of `engine.context.Context` that is used here."""

    can_shift: bool

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool: ...
    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None: ...
    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None: ...
    def seq_pos_min(self, seq: int) -> int: ...
    def seq_pos_max(self, seq: int) -> int: ...
    def state_get(self, seq: int, flags: int = 0) -> Blob: ...
    def state_set(self, seq: int, data: Blob, flags: int = 0) -> bool: ...


@dataclass(frozen=True, slots=True)
class Move:
    """`n` positions from `start` on go to `to`, which lies before."""

    start: int
    to: int
    n: int


class Memory:
    """Owns which cells belong to which slot. In unified mode slots share cells; in stream mode copies are real."""

    def __init__(
        self, kv: Kv, slots: list[Slot], *, unified: bool, n_cells: int, n_swa: int = 0, partial: bool = True
    ) -> None:
        """`n_swa`: width of the sliding window, 0 without; `partial`: False where recurrent state has only an end."""
        self._kv = kv
        self._slots = slots
        self.unified = unified
        self._n_cells = n_cells
        self._n_swa = n_swa
        self._partial = partial
        self._names = 0

    @property
    def can_shift(self) -> bool:
        """Whether tokens can be dropped from the middle."""
        return self._kv.can_shift

    @property
    def can_move(self) -> bool:
        """Whether a stretch of tokens can be reused at another position."""
        return self._kv.can_shift and self._partial and not self._n_swa

    @property
    def can_cut(self) -> bool:
        """Whether a slot can be cut at any position near its end."""
        return self._partial

    @property
    def n_window(self) -> int | None:
        """Tokens before the end that can be cut off without a checkpoint; None: all of them."""
        if not self._partial:
            return 0
        return self._n_swa or None

    def held(self, slot: Slot) -> tuple[int, int]:
        """First and last position that libllama itself holds for `slot`; -1 for none."""
        return self._kv.seq_pos_min(slot.id), self._kv.seq_pos_max(slot.id)

    def evaluated(self, slot: Slot, n: int) -> None:
        """`n` more tokens of `slot` went through a decode."""
        slot.evaluated(self._fresh(n))

    def clear(self, slot: Slot) -> None:
        """Forget everything `slot` holds."""
        self._kv.seq_rm(slot.id, -1, -1)
        slot.hold(0)
        slot.adapters = PLAIN

    def usable(self, slot: Slot, n: int) -> int:
        """The last position up to `n` at which `slot` can be continued."""
        return reachable(n, slot.n_past, self._divisible_at(slot, n), slot.checkpoints)

    def cut(self, slot: Slot, n: int) -> int:
        """Keep the first `n` positions, or what is `usable` of them; returns how many."""
        if n >= slot.n_past:
            slot.tokens.truncate(slot.n_past)
            return slot.n_past
        kept = self.usable(slot, n)
        restored = kept > 0 and (self._divisible_at(slot, kept) or self._to_checkpoint(slot, slot.checkpoints, kept))
        if not restored or not self._kv.seq_rm(slot.id, kept, -1):
            self.clear(slot)
            return 0
        slot.hold(kept)
        return kept

    def copy(self, source: Slot, target: Slot, n: int) -> int:
        """Replace what `target` holds by the first `n` positions of `source`; returns how many it has now."""
        n = self.usable(source, n)
        self.clear(target)
        if not n or not self._copy(source, target, n):
            self.clear(target)
            return 0
        target.tokens.set(source.tokens.view[:n])
        target.evaluated(source.cells.view[:n] if self.unified else self._fresh(n))
        target.adapters = source.adapters
        target.checkpoints = list(source.checkpoints)
        target.limit_exact(min(n, source.n_exact))
        return n

    def shift(self, slot: Slot, keep: int, discard: int) -> bool:
        """Drop positions [keep, keep+discard) and move the later ones down; False (nothing done) without the room."""
        end = keep + discard
        if not self._can_unshare(slot, end, slot.n_past - discard):
            return False
        self._kv.seq_rm(slot.id, keep, end)
        slot.tokens.remove(keep, discard)
        slot.cells.remove(keep, discard)
        slot.limit_exact(keep)
        self._unshare(slot, keep)
        self._kv.seq_add(slot.id, end, -1, -discard)
        return True

    def move(self, slot: Slot, n: int, moves: list[Move]) -> int:
        """Keep `n` positions and put `moves` behind them; returns how many positions that makes.

        What was moved saw other tokens before it than it has now: it is an approximation.
        """
        if not self._can_unshare(slot, n, slot.n_past):
            return self.cut(slot, n)
        self._unshare(slot, n)
        end, parts = n, [np.arange(n)]
        for move in moves:
            self._kv.seq_rm(slot.id, move.to, move.start)
            self._kv.seq_add(slot.id, move.start, move.start + move.n, move.to - move.start)
            parts.append(np.arange(move.start, move.start + move.n))
            end = move.to + move.n
        self._kv.seq_rm(slot.id, end, -1)
        kept = np.concatenate(parts)
        slot.tokens.set(slot.tokens.view[kept])
        slot.cells.set(slot.cells.view[kept])
        slot.limit_exact(n)
        return end

    def snapshot(self, slot: Slot) -> Snapshot | None:
        """A copy of what `slot` holds; None when it cannot be had now. MemoryError when there is no memory for it."""
        state = self._kv.state_get(slot.id)
        if not len(state):
            return None
        tokens = slot.tokens.view[: slot.n_past].copy()
        divisible = self._partial and (not self._n_swa or slot.n_past <= self._n_swa)
        return Snapshot(tokens, slot.adapters, state, tuple(slot.checkpoints), divisible)

    def restore(self, slot: Slot, snapshot: Snapshot) -> bool:
        """Replace what `slot` holds by `snapshot`. False when that fails; the slot is empty then."""
        self.clear(slot)
        n = len(snapshot.tokens)
        if not self._kv.state_set(slot.id, snapshot.state) or self._kv.seq_pos_max(slot.id) != n - 1:
            self.clear(slot)
            return False
        slot.tokens.set(snapshot.tokens)
        slot.evaluated(self._fresh(n))
        slot.adapters = snapshot.adapters
        slot.checkpoints = list(snapshot.checkpoints)
        return True

    def checkpoint(self, slot: Slot) -> Checkpoint | None:
        """A copy of what cannot be cut, at the slot's present end."""
        data = self._kv.state_get(slot.id, PARTIAL_ONLY)
        return Checkpoint(slot.n_past, data) if len(data) else None

    def used(self, slots: list[Slot] | None = None) -> int:
        """Cells in use by `slots` (default: all), shared ones counted once."""
        cells = [slot.cells.view for slot in (self._slots if slots is None else slots) if slot.n_past]
        return len(np.unique(np.concatenate(cells))) if cells else 0

    def own(self, slot: Slot) -> int:
        """Cells that clearing `slot` would free."""
        return int((~self._shared(slot, 0)).sum()) if slot.n_past else 0

    def available(self, keeping: list[Slot]) -> int:
        """Cells that could be had by clearing every slot but `keeping`. Without sharing, room is never the limit."""
        return self._n_cells - self.used(keeping) if self.unified else self._n_cells

    def free(self) -> int:
        """Cells that nobody uses."""
        return self.available(self._slots)

    def _divisible_at(self, slot: Slot, n: int) -> bool:
        """Whether all that a continuation at `n` attends to is still there."""
        if not self._partial:
            return False
        if not self._n_swa:
            return True
        return 0 <= self._kv.seq_pos_min(slot.id) <= max(0, n - self._n_swa + 1)

    def _to_checkpoint(self, slot: Slot, checkpoints: list[Checkpoint], n: int) -> bool:
        """Bring back what cannot be cut, as it was after `n` tokens."""
        data = next(checkpoint.data for checkpoint in checkpoints if checkpoint.n == n)
        return self._kv.state_set(slot.id, data, PARTIAL_ONLY)

    def _copy(self, source: Slot, target: Slot, n: int) -> bool:
        whole = n == source.n_past or self._divisible_at(source, n)
        if not self.unified and not whole:  # libllama puts copies between streams off: no state could be set after one
            state = self._kv.state_get(source.id)
            if not len(state) or not self._kv.state_set(target.id, state):
                return False
        else:
            self._kv.seq_cp(source.id, target.id, 0, n)
        if not whole:
            return self._to_checkpoint(target, source.checkpoints, n) and self._kv.seq_rm(target.id, n, -1)
        return not self.unified or not self._n_swa or self._own_window(target)

    def _own_window(self, slot: Slot) -> bool:
        """Cells of a sliding window are used again when the window has passed, but not while two slots share them."""
        return self._kv.state_set(slot.id, self._kv.state_get(slot.id, PARTIAL_ONLY), PARTIAL_ONLY)

    def _shared(self, slot: Slot, start: int) -> npt.NDArray[np.bool_]:
        """For each position from `start` on, whether another slot uses its cell too."""
        cells = slot.cells.view[start:]
        others = [other.cells.view for other in self._slots if other is not slot and other.n_past]
        if not self.unified or not others:
            return np.zeros(len(cells), bool)
        return np.isin(cells, np.concatenate(others))

    def _can_unshare(self, slot: Slot, start: int, n: int) -> bool:
        """Whether there is room to give `slot` `n` cells of its own, should it share any from `start` on."""
        return not self._shared(slot, start).any() or n <= self.free() + self.own(slot)

    def _unshare(self, slot: Slot, start: int) -> None:
        """Give `slot` cells of its own from `start` on: moving a shared one would move it under its other owners."""
        if not self._shared(slot, start).any():
            return
        state = self._kv.state_get(slot.id)
        self._kv.seq_rm(slot.id, -1, -1)
        self._kv.state_set(slot.id, state)
        slot.cells.set(self._fresh(slot.n_past))

    def _fresh(self, n: int) -> npt.NDArray[np.int64]:
        """Names for `n` cells that nobody shares yet."""
        start, self._names = self._names, self._names + n
        return np.arange(start, start + n)
