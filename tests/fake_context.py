"""A KV memory and a "model" in plain Python: the next token is a function of all tokens before it.

What a sequence generates therefore tells whether its KV held exactly its own tokens, however it was put together.
"""

import pickle
import zlib
from collections.abc import Iterable

import numpy as np

from engine.batch import Batch

N_VOCAB = 64


def next_token(tokens: list[int]) -> int:
    """The model: what follows `tokens`; never 0, which ends a generation."""
    return 1 + zlib.crc32(bytes(tokens)) % (N_VOCAB - 1)


def continuation(prompt: list[int], n: int, tag: int = 0, start: int = 0) -> list[int]:
    """The `n` tokens that the model generates after `prompt` under adapters `tag`, which act from `start` on."""
    mark = N_VOCAB * tag
    cells = [token + mark * (i >= start) for i, token in enumerate(prompt)]
    tokens = []
    for _ in range(n):
        tokens.append(next_token(cells))
        cells.append(tokens[-1] + mark)
    return tokens


class FakeVocab:
    """Letters for tokens; 0 ends a generation."""

    n_tokens = N_VOCAB
    ptr = None
    add_bos = False
    eog = frozenset({0})
    suppress: tuple[int, ...] = ()

    def piece(self, token: int, special: bool = False) -> bytes:
        return b"" if token == 0 else bytes([64 + token])

    def decode(self, tokens: Iterable[int], special: bool = True) -> bytes:
        return b"".join(self.piece(int(token)) for token in tokens)

    def pieces(self, special: bool) -> list[bytes]:
        return [self.piece(token) for token in range(N_VOCAB)]


class FakeContext:
    """Cells are (position, token, sequences); unified memory shares them, streams copy them.

    With `n_swa`, a sliding window forgets at once what nothing new attends to; with `recurrent`, a state per sequence
    knows its tokens up to its end only. What either holds decides about the output.
    """

    can_shift = True

    def __init__(self, n_cells: int, n_seq: int, unified: bool, n_swa: int = 0, recurrent: bool = False) -> None:
        self.n_cells, self.unified = n_cells, unified
        self.n_swa, self.recurrent = n_swa, recurrent
        self.can_shift = not n_swa and not recurrent
        self.sequences: list[dict[int, list[int]]] = [{} for _ in range(n_seq)]  # position -> cell [token]
        self.windows: list[dict[int, int]] = [{} for _ in range(n_seq)]  # position -> token
        self.states: list[list[int]] = [[] for _ in range(n_seq)]  # all tokens so far
        self.outputs: dict[int, int] = {}
        self.n_evaluated = 0
        self.tag = 0  # of the adapters in force

    def used(self) -> int:
        return len({id(cell) for cells in self.sequences for cell in cells.values()})

    def decode(self, batch: Batch) -> int:
        n = batch.n_tokens
        if self.unified and self.used() + n > self.n_cells:
            return 1
        self.outputs.clear()
        for row in range(n):
            seq, position = int(batch.sequences[row]), int(batch.positions[row])
            cells = self.sequences[seq]
            assert position == len(cells), f"sequence {seq}: position {position} after {len(cells)} cells"
            cells[position] = [int(batch.tokens[row]) + N_VOCAB * self.tag]
            seen = self._attend(seq, position)
            if batch.outputs[row]:
                self.outputs[row] = next_token(seen)
        for seq in range(len(self.windows)):
            self._forget(seq)
        self.n_evaluated += n
        return 0

    def _attend(self, seq: int, position: int) -> list[int]:
        """The tokens that the newest one sees, itself included, through the kinds of memory there are."""
        tokens = [self.sequences[seq][i][0] for i in range(position + 1)]
        if self.n_swa:
            window = self.windows[seq]
            window[position] = tokens[-1]
            start = max(0, position - self.n_swa + 1)
            tokens[start:] = [window[i] for i in range(start, position + 1)]
        if self.recurrent:
            assert len(self.states[seq]) == position, "a recurrent state goes on only at its end"
            self.states[seq] = [*self.states[seq], tokens[-1]]
            tokens = self.states[seq]
        return tokens

    def _forget(self, seq: int) -> None:
        end = max(self.windows[seq], default=-1)
        self.windows[seq] = {p: token for p, token in self.windows[seq].items() if end + 1 - p < self.n_swa}

    def logits(self, row: int) -> np.ndarray:
        logits = np.zeros(N_VOCAB, np.float32)
        logits[self.outputs[row]] = 10.0
        return logits

    def set_lora(self, adapters: Iterable[tuple[object, float]]) -> None:
        self.tag = sum(adapter.tag for adapter, _ in adapters)  # type: ignore[attr-defined]

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        if p0 <= 0 and p1 < 0:
            self.states[seq] = []
        elif self.recurrent and p0 < len(self.states[seq]):
            return False
        for position in self._range(seq, p0, p1):
            del self.sequences[seq][position]
            self.windows[seq].pop(position, None)
        return True

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        for p in self._range(src, p0, p1):
            cell = self.sequences[src][p]
            self.sequences[dst][p] = cell if self.unified else list(cell)
            if p in self.windows[src]:
                self.windows[dst][p] = self.windows[src][p]
        self.states[dst] = self.states[src]

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        moving = self._range(seq, p0, p1)
        owners = [s for s in self.sequences if s is not self.sequences[seq]]
        for position in moving:
            cell = self.sequences[seq][position]
            assert not any(cell is other for s in owners for other in s.values()), "a shared cell was moved"
        moved = {position + delta: self.sequences[seq].pop(position) for position in moving}
        assert not moved.keys() & self.sequences[seq].keys(), "moved onto another cell"
        self.sequences[seq].update(moved)

    def seq_pos_min(self, seq: int) -> int:
        return min(self.windows[seq] if self.n_swa else self.sequences[seq], default=-1)

    def seq_pos_max(self, seq: int) -> int:
        return max(self.sequences[seq], default=-1)

    def state_get(self, seq: int, flags: int = 0) -> np.ndarray:
        cells = [] if flags else [(p, cell[0]) for p, cell in sorted(self.sequences[seq].items())]
        return np.frombuffer(pickle.dumps((cells, self.windows[seq], self.states[seq])), np.uint8)

    def state_set(self, seq: int, data: np.ndarray, flags: int = 0) -> bool:
        cells, window, state = pickle.loads(np.asarray(data).tobytes())
        if not flags:
            self.sequences[seq] = {}
            if self.unified and self.used() + len(cells) > self.n_cells:
                return False
            self.sequences[seq] = {p: [token] for p, token in cells}
        self.windows[seq], self.states[seq] = dict(window), list(state)
        return True

    def _range(self, seq: int, p0: int, p1: int) -> list[int]:
        return [p for p in sorted(self.sequences[seq]) if p >= p0 and (p1 < 0 or p < p1)]
