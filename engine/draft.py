"""Guesses at what comes next, to be verified together in one decode (spec/engine.md §10).

A drafter sees one sequence's tokens and proposes a continuation; a wrong guess costs its evaluation and nothing else.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]
NOTHING = np.empty(0, np.int32)


class Drafter(Protocol):
    """Proposes tokens for one sequence; made anew for each."""

    def propose(self, tokens: Tokens, limit: int) -> Tokens:
        """At most `limit` tokens that may follow `tokens`; often none."""

    def judged(self, n_proposed: int, n_accepted: int) -> None:
        """What became of the last proposal."""


def earlier_match(tokens: Tokens, n: int) -> int | None:
    """Where the latest earlier occurrence of the last `n` tokens ends (exclusive), None when there is none."""
    end = len(tokens) - n
    if end <= 0:
        return None
    pattern = tokens[end:]
    starts = np.flatnonzero(tokens[:end] == pattern[0])
    for offset in range(1, n):
        if not len(starts):
            return None
        starts = starts[tokens[starts + offset] == pattern[offset]]
    return int(starts[-1]) + n if len(starts) else None


@dataclass(slots=True)
class NgramSimple:
    """What followed the last `n` tokens when they occurred before; `m` tokens of it."""

    n: int = 12
    m: int = 48
    min_hits: int = 1

    def propose(self, tokens: Tokens, limit: int) -> Tokens:
        if len(tokens) <= self.n + self.m + 1:
            return NOTHING
        end = earlier_match(tokens, self.n)
        if end is None:
            return NOTHING
        proposal = tokens[end : end + min(self.m, limit)]
        return proposal if len(proposal) >= min(self.n, self.m, limit) else NOTHING

    def judged(self, n_proposed: int, n_accepted: int) -> None:
        pass


@dataclass(slots=True)
class NgramMap:
    """N-grams by their last position; a key's next draft is no longer than what was accepted of it last time."""

    n: int = 12
    m: int = 48
    min_hits: int = 1
    _ends: dict[bytes, int] = field(default_factory=dict)
    _hits: defaultdict[bytes, int] = field(default_factory=lambda: defaultdict(int))
    _accepted: dict[bytes, int] = field(default_factory=dict)
    _indexed: int = 0
    _key: bytes = b""

    def propose(self, tokens: Tokens, limit: int) -> Tokens:
        self._key = tokens[-self.n :].tobytes() if len(tokens) >= self.n else b""
        self._index(tokens, len(tokens) - 1)
        end = self._ends.get(self._key)
        if end is None or self._hits[self._key] < self.min_hits:
            return NOTHING
        longest = min(self.m, limit, self._accepted.get(self._key, self.m))
        return tokens[end : end + longest]

    def judged(self, n_proposed: int, n_accepted: int) -> None:
        if n_proposed:
            self._accepted[self._key] = max(1, n_accepted)

    def _index(self, tokens: Tokens, until: int) -> None:
        """Learn the n-grams that end at or before `until`."""
        for end in range(max(self._indexed + 1, self.n), until + 1):
            key = tokens[end - self.n : end].tobytes()
            self._ends[key] = end
            self._hits[key] += 1
        self._indexed = max(self._indexed, until)


@dataclass(slots=True)
class NgramMap4V:
    """Up to four continuations per n-gram, counted; drafts only where one clearly leads the others."""

    n: int = 12
    m: int = 48
    min_hits: int = 1
    _values: defaultdict[bytes, dict[bytes, int]] = field(default_factory=lambda: defaultdict(dict))
    _indexed: int = 0

    def propose(self, tokens: Tokens, limit: int) -> Tokens:
        self._index(tokens)
        if len(tokens) < self.n:
            return NOTHING
        counts = self._values.get(tokens[-self.n :].tobytes(), {})
        if sum(counts.values()) < self.min_hits or not counts:
            return NOTHING
        best = max(counts, key=lambda value: counts[value])
        if counts[best] < 2 * (sum(counts.values()) - counts[best]):
            return NOTHING
        return np.frombuffer(best, np.int32)[: min(self.m, limit)]

    def judged(self, n_proposed: int, n_accepted: int) -> None:
        pass

    def _index(self, tokens: Tokens) -> None:
        """Learn every n-gram whose whole continuation of `m` tokens is known."""
        last = len(tokens) - self.m
        for end in range(max(self._indexed + 1, self.n), last + 1):
            counts = self._values[tokens[end - self.n : end].tobytes()]
            value = tokens[end : end + self.m].tobytes()
            if value in counts or len(counts) < 4:
                counts[value] = counts.get(value, 0) + 1
        self._indexed = max(self._indexed, last)


class NgramTable:
    """n-gram → next token, shared by all sequences (ngram-mod); grows draft by draft, token by token."""

    SIZE = 1 << 22
    MULTIPLIER = np.uint64(6364136223846793005)

    def __init__(self, n: int) -> None:
        self.n = n
        self._next = np.full(self.SIZE, -1, np.int32)
        self._used = 0
        self._powers = self._multipliers(n)

    def learn(self, tokens: Tokens, start: int) -> None:
        """Note what follows each n-gram of `tokens` that ends after `start`."""
        first = max(start - self.n, 0)
        if len(tokens) - first <= self.n:
            return
        windows = np.lib.stride_tricks.sliding_window_view(tokens[first:], self.n)[:-1]
        slots = self._slots(windows)
        self._used += int((self._next[slots] < 0).sum())
        self._next[slots] = tokens[first + self.n :]
        if self._used > self.SIZE // 4:
            self.reset()

    def continuation(self, tokens: Tokens, limit: int) -> Tokens:
        """Tokens that follow one after the other until the table knows no next one."""
        window = tokens[-self.n :].copy()
        found: list[int] = []
        while len(found) < limit:
            token = int(self._next[self._slots(window[None, :])[0]])
            if token < 0:
                break
            found.append(token)
            window = np.append(window[1:], np.int32(token))
        return np.array(found, np.int32)

    def reset(self) -> None:
        self._next.fill(-1)
        self._used = 0

    def _slots(self, windows: Tokens) -> npt.NDArray[np.int64]:
        with np.errstate(over="ignore"):
            hashes = (windows.astype(np.uint64) * self._powers).sum(axis=1, dtype=np.uint64)
            hashes ^= hashes >> np.uint64(29)
        slots: npt.NDArray[np.int64] = (hashes % np.uint64(self.SIZE)).astype(np.int64)
        return slots

    @classmethod
    def _multipliers(cls, n: int) -> npt.NDArray[np.uint64]:
        powers = np.empty(n, np.uint64)
        power = np.uint64(1)
        with np.errstate(over="ignore"):
            for i in range(n):
                powers[n - 1 - i] = power = power * cls.MULTIPLIER + np.uint64(1)
        return powers


@dataclass(slots=True)
class NgramMod:
    """Drafts from the shared table; too short a draft is dropped, five poor rounds in a row empty the table."""

    table: NgramTable
    n_min: int = 48
    n_max: int = 64
    _learned: int = 0
    _poor: int = 0

    def propose(self, tokens: Tokens, limit: int) -> Tokens:
        if len(tokens) <= self.table.n:
            return NOTHING
        self.table.learn(tokens, self._learned)
        self._learned = len(tokens)
        proposal = self.table.continuation(tokens, min(self.n_max, limit))
        return proposal if len(proposal) >= min(self.n_min, limit) else NOTHING

    def judged(self, n_proposed: int, n_accepted: int) -> None:
        self._poor = self._poor + 1 if n_accepted < n_proposed / 4 else 0
        if self._poor >= 5:
            self.table.reset()
            self._poor = 0


class Drafters:
    """The drafters of one sequence in their fixed order; the first that has a proposal is asked.

    A proposal is cut to what recent ones justify: the limit doubles when all of a draft was right and falls to what was
    right otherwise. On a CPU each wrong guess costs half a token's time and more.
    """

    FIRST, LEAST = 8, 2

    def __init__(self, drafters: list[Drafter]) -> None:
        self._drafters = drafters
        self._last: Drafter | None = None
        self._trusted = self.FIRST  # tokens

    def propose(self, tokens: Tokens, limit: int) -> Tokens:
        self._last = None
        if limit <= 0:
            return NOTHING
        for drafter in self._drafters:
            proposal = drafter.propose(tokens, limit)
            if len(proposal):
                self._last = drafter
                return proposal[: self._trusted]
        return NOTHING

    def judged(self, n_proposed: int, n_accepted: int) -> None:
        if self._last is None:
            return
        self._last.judged(n_proposed, n_accepted)
        if n_accepted < n_proposed:
            self._trusted = max(self.LEAST, n_accepted)
        elif n_proposed == self._trusted:
            self._trusted *= 2
