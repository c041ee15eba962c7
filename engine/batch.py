"""One decode step's tokens: a `llama_batch` over numpy arrays that are allocated once."""

from typing import Literal

import numpy as np
import numpy.typing as npt

from engine import llama

Int32 = npt.NDArray[np.int32]
Output = bool | Literal["last", "all"]


class Batch:
    """Room for `capacity` tokens, each of one sequence. Rows 0…`n_tokens`-1 of the arrays are in use."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.n_tokens = 0
        self.tokens = np.zeros(capacity, np.int32)
        self.positions = np.zeros(capacity, np.int32)
        self.sequences = np.zeros(capacity, np.int32)
        self.outputs = np.zeros(capacity, np.int8)
        self._sequence_counts = np.ones(capacity, np.int32)
        first, step = self.sequences.ctypes.data, self.sequences.itemsize
        self._sequence_pointers = np.arange(first, first + capacity * step, step, dtype=np.uintp)
        self.struct = self.part(0, 0)

    @property
    def room(self) -> int:
        """How many more tokens fit."""
        return self.capacity - self.n_tokens

    def clear(self) -> None:
        """Start the next step."""
        self.n_tokens = self.struct.n_tokens = 0

    def add(self, tokens: Int32, pos: int, seq: int, output: Output = False) -> int:
        """Append `tokens` of sequence `seq` from position `pos` on; returns the first one's row.

        `output`: of which tokens logits are wanted: none, the last, or all (True).
        """
        n, first = len(tokens), self.n_tokens
        if n == 1:
            return self.add_token(int(tokens[0]), pos, seq, bool(output))
        if n > self.room:
            raise ValueError(f"{n} tokens do not fit in the {self.room} rows left")
        end = first + n
        self.tokens[first:end] = tokens
        self.positions[first:end] = np.arange(pos, pos + n, dtype=np.int32)
        self.sequences[first:end] = seq
        self.outputs[first:end] = output is True or output == "all"
        if output == "last" and n:
            self.outputs[end - 1] = 1
        self.n_tokens = self.struct.n_tokens = end
        return first

    def add_token(self, token: int, pos: int, seq: int, output: bool = True) -> int:
        """Append one token; returns its row."""
        row = self.n_tokens
        if row >= self.capacity:
            raise ValueError("1 token does not fit in the 0 rows left")
        self.tokens[row] = token
        self.positions[row] = pos
        self.sequences[row] = seq
        self.outputs[row] = output
        self.n_tokens = self.struct.n_tokens = row + 1
        return row

    def part(self, first: int, count: int) -> llama.llama_batch:
        """Rows `first`…`first`+`count`-1 as C struct; outputs of its decode count from `first`."""
        return llama.llama_batch(
            n_tokens=count,
            token=self.tokens[first:].ctypes.data,
            pos=self.positions[first:].ctypes.data,
            n_seq_id=self._sequence_counts[first:].ctypes.data,
            seq_id=self._sequence_pointers[first:].ctypes.data,
            logits=self.outputs[first:].ctypes.data,
        )
