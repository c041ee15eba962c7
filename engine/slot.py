"""A slot: one sequence's seat in the KV memory, and what it still holds when nobody sits there."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from engine.regime import PLAIN, Key, Regime, acting

if TYPE_CHECKING:
    from engine.sequence import Sequence
    from engine.snapshot import Checkpoint


class GrowArray:
    """A numpy array with amortised append, of which a prefix is in use."""

    def __init__(self, dtype: type, capacity: int = 256) -> None:
        self._array: np.ndarray = np.zeros(capacity, dtype)
        self._n = 0

    def __len__(self) -> int:
        return self._n

    @property
    def view(self) -> np.ndarray:
        return self._array[: self._n]

    def set(self, values: np.ndarray) -> None:
        self._n = 0
        self.extend(values)

    def append(self, value: int) -> None:
        self._reserve(1)
        self._array[self._n] = value
        self._n += 1

    def extend(self, values: np.ndarray) -> None:
        n = len(values)
        self._reserve(n)
        self._array[self._n : self._n + n] = values
        self._n += n

    def truncate(self, n: int) -> None:
        self._n = min(self._n, n)

    def remove(self, start: int, count: int) -> None:
        """Drop `count` values from `start` on and close the gap."""
        end = self._n - count
        self._array[start:end] = self._array[start + count : self._n].copy()
        self._n = end

    def _reserve(self, n: int) -> None:
        if self._n + n > len(self._array):
            grown = np.zeros(max(2 * len(self._array), self._n + n), self._array.dtype)
            grown[: self._n] = self.view
            self._array = grown


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """Number of leading elements that `a` and `b` share."""
    n = min(len(a), len(b))
    if n == 0:
        return 0
    differs = a[:n] != b[:n]
    first = int(differs.argmax())
    return first if differs[first] else n


@dataclass(slots=True, eq=False)
class Slot:
    """`tokens` are known to belong here; the first `n_past` of them are evaluated and lie in the KV memory.

    `cells` names each evaluated position by a number that copies of it share, so that the union over slots counts
    the cells really used. `n_exact` positions were evaluated in exactly this context; what a shift has moved is not.
    """

    id: int
    n_ctx: int
    tokens: GrowArray = field(default_factory=lambda: GrowArray(np.int32))
    cells: GrowArray = field(default_factory=lambda: GrowArray(np.int64))
    n_exact: int = 0
    sequence: "Sequence | None" = None
    previous: "Sequence | None" = None  # for `/slots`
    last_used: float = 0.0
    adapters: Regime = PLAIN  # what its KV was computed under
    checkpoints: "list[Checkpoint]" = field(default_factory=list)  # by position; all within the exact part

    @property
    def n_past(self) -> int:
        return len(self.cells)

    @property
    def idle(self) -> bool:
        return self.sequence is None

    @property
    def todo(self) -> np.ndarray:
        """Known tokens that are not evaluated yet."""
        return self.tokens.view[self.n_past :]

    @property
    def reusable(self) -> np.ndarray:
        """Tokens whose KV another prompt with the same beginning may use."""
        return self.tokens.view[: min(self.n_past, self.n_exact)]

    @property
    def runnable(self) -> bool:
        """Whether the slot's sequence has begun to read or to generate."""
        return self.sequence is not None and self.sequence.evaluates

    @property
    def acting(self) -> Key:
        """The adapters that act on the next token to evaluate."""
        return acting(self.adapters, self.n_past)

    @property
    def n_alike(self) -> int:
        """Tokens from the next one on that the same adapters act on."""
        key, start = self.adapters
        return start - self.n_past if key and self.n_past < start else 1 << 30

    def evaluated(self, cells: np.ndarray) -> None:
        """The next `len(cells)` tokens are in the KV memory now."""
        if self.n_exact == self.n_past:
            self.n_exact += len(cells)
        self.cells.extend(cells)

    def hold(self, n: int) -> None:
        """Keep the first `n` evaluated positions, forget the rest."""
        self.tokens.truncate(n)
        self.cells.truncate(n)
        self.limit_exact(n)

    def limit_exact(self, n: int) -> None:
        """What follows the first `n` positions is not as if evaluated in exactly this context."""
        self.n_exact = min(self.n_exact, n)
        self.checkpoints = [checkpoint for checkpoint in self.checkpoints if checkpoint.n <= n]

    def leave(self, moment: float) -> None:
        """The sequence is done here; what is evaluated stays as cache."""
        self.tokens.truncate(self.n_past)
        self.previous, self.sequence = self.sequence, None
        self.last_used = moment
