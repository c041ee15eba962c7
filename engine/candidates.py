"""The candidate array that libllama's samplers work on, and the proof-carrying shortcut that keeps it small."""

import ctypes

import numpy as np

from engine import llama

CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
_BLOCKS = 64  # rows of the block maximum: enough blocks for any sensible top-k, few enough to be quick


class Candidates:
    """One `llama_token_data_array` over a numpy buffer, refilled for every sampled token.

    Not re-entrant: the decode loop samples one token at a time.
    """

    def __init__(self, n_vocab: int) -> None:
        self._buffer = np.zeros(n_vocab, CANDIDATE)
        self._ids = np.arange(n_vocab, dtype=np.int32)
        self._array = llama.llama_token_data_array()
        self._pointer = ctypes.pointer(self._array)
        self._data = ctypes.cast(self._buffer.ctypes.data, ctypes.POINTER(llama.llama_token_data))

    def fill(self, logits: np.ndarray, subset: np.ndarray | None = None) -> None:
        """Take all of `logits` [n_vocab], or only the ids in `subset` (ascending)."""
        n = len(logits) if subset is None else len(subset)
        buffer = self._buffer[:n]
        if subset is None:
            buffer["id"] = self._ids
            buffer["logit"] = logits
        else:
            buffer["id"] = subset
            buffer["logit"] = logits[subset]
        buffer["p"] = 0.0
        array = self._array
        array.data, array.size, array.selected, array.sorted = self._data, n, -1, False

    def fill_one(self, token: int) -> None:
        """Take a single candidate with logit 0."""
        self._buffer[0] = (token, 0.0, 0.0)
        array = self._array
        array.data, array.size, array.selected, array.sorted = self._data, 1, -1, False

    def apply(self, sampler: llama.Sampler) -> None:
        """Run `sampler`, which may sort, shrink or change the array."""
        llama.llama_sampler_apply(sampler, self._pointer)

    @property
    def selected(self) -> int:
        """The token the last sampler chose. XTC drops candidates by moving `data` up."""
        return int(self._array.data[self._array.selected].id)

    def view(self) -> np.ndarray:
        """The candidates that are left, as records of (id, logit, p)."""
        first = (ctypes.addressof(self._array.data.contents) - self._buffer.ctypes.data) // CANDIDATE.itemsize
        return self._buffer[first : first + self._array.size]


def top(logits: np.ndarray, k: int) -> np.ndarray:
    """Ids, ascending, of a superset of the `k` largest logits; all ids when `k` is too large to gain anything.

    The maxima of disjoint groups of logits are themselves logits, so the k-th largest group maximum is not above
    the k-th largest logit: whatever reaches it contains the top k.
    """
    n = len(logits)
    groups = n // _BLOCKS
    if k >= groups // 4:
        return np.arange(n, dtype=np.int32)
    maxima: np.ndarray = np.maximum.reduce(logits[: groups * _BLOCKS].reshape(_BLOCKS, groups))
    maxima.partition(groups - k)
    ids: np.ndarray = (logits >= maxima[groups - k]).nonzero()[0]
    return ids
