"""A GBNF grammar's state within one sequence, and its masks over the whole vocabulary."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from engine.gbnf_machine import DEAD, MAX_WORK, UNKNOWN, Machine
from engine.gbnf_rules import Gbnf
from engine.grammar import GrammarError
from engine.pieces import Level, Pieces, point_range, split
from engine.vocab import Vocab

_KEPT_MASKS = 256
_CREDIT, _CREDIT_PER_TOKEN = 1_000_000, 2_000  # work that a sequence may cause: about a second, and 2 ms a token


class Masks:
    """Which tokens may come next in a state of one machine."""

    def __init__(self, machine: Machine, pieces: Pieces) -> None:
        self.machine = machine
        self._pieces = pieces
        atoms = np.searchsorted(np.array(machine.gbnf.cuts), pieces.chars, "right")
        self._atoms = [atoms[level.chars] for level in pieces.levels]
        self._kept: dict[int, np.ndarray] = {}

    def of(self, state: int) -> np.ndarray:
        """A boolean per token; end-of-generation tokens are left to the caller."""
        packed = self._kept.get(state)
        if packed is None:
            if len(self._kept) >= _KEPT_MASKS:
                self._kept.clear()
            packed = self._kept[state] = np.packbits(self._compute(state))
        return np.unpackbits(packed, count=len(self._pieces.spoken)).view(bool)

    def _compute(self, state: int) -> np.ndarray:
        pieces = self._pieces
        n_tokens = len(pieces.spoken)
        states = self._walk(state)
        mask = np.zeros(n_tokens, bool)
        mask[pieces.tokens] = states[pieces.nodes] >= 0
        self._finish_cut(states, mask)
        for negated, token in self.machine.names_tokens(state):
            named = np.arange(n_tokens) == token
            mask |= pieces.spoken & (~named if negated else named)
        return mask

    def _walk(self, state: int) -> np.ndarray:
        """The state at every node of the tree, DEAD where it cannot be reached."""
        states = np.full(self._pieces.n_nodes, DEAD, np.int32)
        states[0] = state
        above, first = states[:1], 1
        for level, atoms in zip(self._pieces.levels, self._atoms, strict=True):
            here = states[first : first + len(atoms)]
            if not self._descend(level, atoms, above, here):
                break
            above, first = here, first + len(atoms)
        return states

    def _descend(self, level: Level, atoms: np.ndarray, above: np.ndarray, here: np.ndarray) -> bool:
        parents = above[level.parents]
        alive = np.flatnonzero(parents >= 0)
        if not len(alive):
            return False
        before, by = parents[alive], atoms[alive]
        after = self.machine.table[before, by]
        unknown = np.flatnonzero(after == UNKNOWN)
        if len(unknown):
            n_atoms = self.machine.gbnf.n_atoms
            for pair in np.unique(before[unknown].astype(np.int64) * n_atoms + by[unknown]).tolist():
                self.machine.step(*divmod(pair, n_atoms))
            after = self.machine.table[before, by]
        here[alive] = after
        return True

    def _finish_cut(self, states: np.ndarray, mask: np.ndarray) -> None:
        cut, known = self._pieces.cut, dict[tuple[int, str, bytes], bool]()
        reached = states[cut.nodes]
        for i in np.flatnonzero(reached >= 0).tolist():
            key = int(reached[i]), cut.rests[i], cut.tails[i]
            if key not in known:
                known[key] = self._goes_on(*key)
            mask[cut.tokens[i]] = known[key]

    def _goes_on(self, state: int, rest: str, tail: bytes) -> bool:
        state = walk(self.machine, state, rest)
        return state != DEAD and (not tail or may_begin(self.machine, state, tail))


def walk(machine: Machine, state: int, text: str) -> int:
    """The state after `text`."""
    for char in text:
        if state == DEAD:
            break
        state = machine.step(state, machine.gbnf.atom(ord(char)))
    return state


def may_begin(machine: Machine, state: int, tail: bytes) -> bool:
    """Whether a character that begins with the bytes `tail` may come next."""
    first, last = point_range(tail)
    low, high = machine.gbnf.atom(first), machine.gbnf.atom(last)
    return bool(machine.allowed[state] >> low & ((1 << (high - low + 1)) - 1))


class CompiledGbnf:
    """What sequences with the same grammar share; once it is made it belongs to the decode loop's thread."""

    def __init__(self, gbnf: Gbnf, pieces: Pieces) -> None:
        """Raises GrammarError when the grammar is too ambiguous to begin with."""
        self.pieces = pieces
        self._gbnf = gbnf
        self.masks = self._fresh()
        self.masks.of(self.masks.machine.start)

    def renewed(self, full: Machine) -> Masks:
        """Masks and machine to use in the place of a machine that has grown too large."""
        if self.masks.machine is full:
            self.masks = self._fresh()
        return self.masks

    def _fresh(self) -> Masks:
        return Masks(Machine(self._gbnf), self.pieces)


class GbnfGrammar:
    """Same language, token for token, as libllama's grammar sampler; `tests/test_gbnf.py` compares them.

    It forces no tokens ahead, so that the sampler's choices are the peer's, token by token.
    """

    lazy = False

    def __init__(self, compiled: CompiledGbnf, vocab: Vocab) -> None:
        self._compiled = compiled
        self._masks = compiled.masks
        self._vocab = vocab
        self._state = self._machine.start
        self._credit = _CREDIT
        self._tail = b""  # of a character whose other bytes are still to come
        self._seen: tuple[int, tuple[int, bytes] | None] | None = None  # the last token asked about, and its answer

    def allows(self, token: int) -> bool:
        if token in self._vocab.eog:
            return self._may_end()
        with self._working():
            self._seen = token, self._after(token)
        return self._seen[1] is not None

    def mask(self, logits: np.ndarray) -> np.ndarray:
        n = self._vocab.n_tokens
        with self._working():
            allowed = self._mask_within_character() if self._tail else self._masks.of(self._state)
        masked = np.full_like(logits, -np.inf)
        np.copyto(masked[:n], logits[:n], where=allowed)
        if self._may_end():
            ends = list(self._vocab.eog)
            masked[ends] = logits[ends]
        return masked

    def accept(self, token: int) -> None:
        if token in self._vocab.eog and self._may_end():
            return
        if self._seen is None or self._seen[0] != token:
            with self._working():
                self._seen = token, self._after(token)
        after = self._seen[1]
        if after is None:
            raise GrammarError(f"the grammar does not allow token {token} here")
        self._credit += _CREDIT_PER_TOKEN
        self._move(*after)

    def feed(self, text: bytes) -> None:
        """Follow text that is not cut into tokens. Raises GrammarError."""
        with self._working():
            after = self._spelled(text)
        if after is None:
            raise GrammarError(f"the grammar does not allow {text.decode('utf-8', 'replace')[:40]!r} here")
        self._move(*after)

    def forced(self) -> list[int]:
        """The end, where nothing else may come and there is one way to say it."""
        machine, state = self._machine, self._state
        ends = self._vocab.eog
        if len(ends) == 1 and self._may_end() and not machine.allowed[state] and not machine.names_tokens(state):
            return list(ends)
        return []

    def close(self) -> None:
        pass

    def _may_end(self) -> bool:
        return not self._tail and self._machine.done(self._state)

    def _move(self, state: int, tail: bytes) -> None:
        self._state, self._tail, self._seen = state, tail, None
        if self._machine.is_full:
            full, self._masks = self._machine, self._compiled.renewed(self._machine)
            self._state = self._machine.moved(full, state)
            if self._machine.is_full:
                raise GrammarError("the output is nested too deep for the grammar")

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Pay for the work of one token or mask."""
        self._machine.begin(min(MAX_WORK, self._credit))
        try:
            yield
        finally:
            self._credit -= self._machine.work

    @property
    def _machine(self) -> Machine:
        return self._masks.machine

    def _after(self, token: int) -> tuple[int, bytes] | None:
        """State and incomplete character after `token`, None when it may not come."""
        machine, piece = self._machine, self._vocab.piece(token, special=True)
        if not self._compiled.pieces.spoken[token]:
            return None
        spelled = self._spelled(piece)
        named = [] if self._tail else machine.step_token(self._state, token)
        if not named:
            return spelled
        state, tail = spelled or (DEAD, b"")
        return machine.join(DEAD if tail else state, named), b""

    def _spelled(self, raw: bytes) -> tuple[int, bytes] | None:
        text, tail = split(self._tail + raw)
        if tail is None:
            return None
        machine = self._machine
        state = walk(machine, self._state, text)
        if state == DEAD or (tail and not may_begin(machine, state, tail)):
            return None
        return state, tail

    def _mask_within_character(self) -> np.ndarray:
        mask = np.zeros(self._vocab.n_tokens, bool)
        for token in self._compiled.pieces.continuing:
            mask[token] = self._spelled(self._vocab.piece(token, special=True)) is not None
        return mask
