"""Bounds a thinking block: counts its tokens and forces its end when the budget is used up.

The states are those of spec/generation.md §10.
"""

from enum import Enum

from engine.vocab import Vocab
from ipc.messages import ReasoningBudget


class _State(Enum):
    IDLE = "idle"
    COUNTING = "counting"
    FORCING = "forcing"
    DONE = "done"


class _Matcher:
    """Recognises a token sequence at the end of what was fed."""

    def __init__(self, sequence: list[int]) -> None:
        self._sequence = sequence
        self._seen: list[int] = []

    def feed(self, token: int) -> bool:
        self._seen = [*self._seen, token][-len(self._sequence) :] if self._sequence else []
        return bool(self._sequence) and self._seen == self._sequence

    def reset(self) -> None:
        self._seen = []


class Reasoning:
    """The state machine idle → counting → (forcing) → done; a new start tag begins again with a fresh budget.

    Without a start tag the output begins with thinking.
    """

    def __init__(self, budget: ReasoningBudget, vocab: Vocab) -> None:
        self._budget = budget
        self._vocab = vocab
        self._state = _State.IDLE
        self._left = 0
        self._position = 0
        self._start = _Matcher(budget.start)
        self._ends = [_Matcher(end) for end in budget.ends]
        self._tail = b""
        if not budget.start:
            self._begin()
        for token in budget.prefix:
            self.accept(token)

    @property
    def thinking(self) -> bool:
        """Whether a thinking block is open."""
        return self._state in (_State.COUNTING, _State.FORCING)

    @property
    def controllable(self) -> bool:
        """Whether the caller asked for `end` to work."""
        return self._budget.control

    def end(self) -> bool:
        """End the thinking block from outside; False when none is open."""
        if self._state is not _State.COUNTING:
            return False
        self._force()
        return True

    def forced(self) -> int | None:
        """The token that must come next, or None when the model is free."""
        if self._state is not _State.FORCING or self._inside_character():
            return None
        return self._budget.forced[self._position]

    def accept(self, token: int) -> list[int]:
        """Follow `token`; returns the end tag's tokens when they have just closed the block."""
        self._tail = (self._tail + self._vocab.piece(token, special=True))[-4:]
        if self._state is _State.FORCING:
            return self._follow_forcing(token)
        if self._state is _State.COUNTING:
            return self._count(token)
        if self._start.feed(token):
            self._begin()
        return []

    def _begin(self) -> None:
        self._state = _State.COUNTING
        self._start.reset()
        for end in self._ends:
            end.reset()
        self._left = self._budget.tokens if self._budget.tokens is not None else -1
        if self._left == 0:
            self._force()

    def _count(self, token: int) -> list[int]:
        for end, tokens in zip(self._ends, self._budget.ends, strict=True):
            if end.feed(token):
                self._state = _State.DONE
                return tokens
        if self._left > 0:
            self._left -= 1
            if self._left == 0:
                self._force()
        return []

    def _force(self) -> None:
        self._state, self._position = _State.FORCING, 0
        if not self._budget.forced:
            self._state = _State.DONE

    def _follow_forcing(self, token: int) -> list[int]:
        if token != self._budget.forced[self._position]:
            return []
        self._position += 1
        if self._position < len(self._budget.forced):
            return []
        self._state = _State.DONE
        return self._budget.ends[0] if self._budget.ends else []

    def _inside_character(self) -> bool:
        """Whether the text so far ends in an incomplete UTF-8 sequence, which must be finished first."""
        for back in range(1, min(4, len(self._tail)) + 1):
            byte = self._tail[-back]
            if byte & 0xC0 != 0x80:
                needs = 1 if byte < 0x80 else 2 if byte >> 5 == 6 else 3 if byte >> 4 == 14 else 4
                return back < needs and byte >= 0xC0
        return False
