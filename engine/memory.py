"""What slots hold in libllama's KV memory: copying, cutting and shifting it without harming a neighbour."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from engine.regime import PLAIN
from engine.slot import Slot


class Kv(Protocol):
    """The part of `engine.context.Context` that is used here."""

    can_shift: bool

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool: ...
    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None: ...
    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None: ...
    def seq_pos_min(self, seq: int) -> int: ...
    def state_get(self, seq: int) -> npt.NDArray[np.uint8]: ...
    def state_set(self, seq: int, data: npt.NDArray[np.uint8]) -> bool: ...


class Memory:
    """Owns which cells belong to which slot. In unified mode slots share cells; in stream mode copies are real."""

    def __init__(
        self, kv: Kv, slots: list[Slot], *, unified: bool, n_cells: int, n_swa: int = 0, partial: bool = True
    ) -> None:
        self._kv = kv
        self._slots = slots
        self._unified = unified
        self._n_cells = n_cells
        self._n_swa = n_swa
        self._partial = partial  # recurrent state exists only at its end
        self._names = 0

    @property
    def can_shift(self) -> bool:
        return self._kv.can_shift

    @property
    def can_cut(self) -> bool:
        """Whether a slot can be cut at any position near its end."""
        return self._partial

    def evaluated(self, slot: Slot, n: int) -> None:
        """`n` more tokens of `slot` went through a decode."""
        slot.evaluated(self._fresh(n))

    def clear(self, slot: Slot) -> None:
        """Forget everything `slot` holds."""
        self._kv.seq_rm(slot.id, -1, -1)
        slot.hold(0)
        slot.adapters = PLAIN

    def cut(self, slot: Slot, n: int) -> int:
        """Keep the first `n` positions; returns how many could be kept (0 when the memory cannot be cut there)."""
        if n >= slot.n_past:
            slot.tokens.truncate(slot.n_past)
            return slot.n_past
        possible = self._partial and n > 0 and self._window_intact(slot, n)
        if not possible or not self._kv.seq_rm(slot.id, n, -1):
            self.clear(slot)
            return 0
        slot.hold(n)
        return n

    def copy(self, source: Slot, target: Slot, n: int) -> int:
        """Replace what `target` holds by the first `n` positions of `source`; returns how many it has now."""
        self.clear(target)
        if n < source.n_past and not (self._partial and self._window_intact(source, n)):
            return 0
        self._kv.seq_cp(source.id, target.id, 0, n)
        target.tokens.set(source.tokens.view[:n])
        target.evaluated(source.cells.view[:n] if self._unified else self._fresh(n))
        target.adapters = source.adapters
        return n

    def shift(self, slot: Slot, keep: int, discard: int) -> None:
        """Drop positions [keep, keep+discard) and move the later ones down."""
        self._unshare(slot)
        self._kv.seq_rm(slot.id, keep, keep + discard)
        self._kv.seq_add(slot.id, keep + discard, -1, -discard)
        slot.tokens.remove(keep, discard)
        slot.cells.remove(keep, discard)
        slot.n_exact = min(slot.n_exact, keep)

    def used(self, slots: list[Slot] | None = None) -> int:
        """Cells in use by `slots` (default: all), shared ones counted once."""
        cells = [slot.cells.view for slot in (self._slots if slots is None else slots) if slot.n_past]
        return len(np.unique(np.concatenate(cells))) if cells else 0

    def available(self, keeping: list[Slot]) -> int:
        """Cells that could be had by clearing every slot but `keeping`. Without sharing, room is never the limit."""
        return self._n_cells - self.used(keeping) if self._unified else self._n_cells

    def _window_intact(self, slot: Slot, n: int) -> bool:
        """Whether a sliding-window memory still holds all that a continuation at `n` attends to."""
        if self._n_swa == 0:
            return True
        return 0 <= self._kv.seq_pos_min(slot.id) <= max(0, n - self._n_swa)

    def _unshare(self, slot: Slot) -> None:
        """Give `slot` cells of its own: moving a shared cell would move it under its other owners too."""
        others = [other.cells.view for other in self._slots if other is not slot and other.n_past]
        if not self._unified or not others or not np.isin(slot.cells.view, np.concatenate(others)).any():
            return
        state = self._kv.state_get(slot.id)
        self._kv.seq_rm(slot.id, -1, -1)
        self._kv.state_set(slot.id, state)
        slot.cells.set(self._fresh(slot.n_past))

    def _fresh(self, n: int) -> npt.NDArray[np.int64]:
        """Names for `n` cells that nobody shares yet."""
        start, self._names = self._names, self._names + n
        return np.arange(start, start + n)
