"""Brings what is already evaluated of a prompt into its slot: from a slot, from host memory or from disk."""

from concurrent.futures import Future

import numpy as np

from engine.archive import Archive
from engine.cache import Source, longest_prefix, provider
from engine.checkpoints import Checkpoints
from engine.memory import Memory, Move
from engine.sequence import Sequence
from engine.slot import Slot
from engine.snapshot import Snapshot, Tokens


class Reuse:
    """Everything that one place offers is taken from there alone: the one with the longest usable beginning."""

    def __init__(self, slots: list[Slot], memory: Memory, archive: Archive, checkpoints: Checkpoints) -> None:
        self._slots = slots
        self._memory = memory
        self._archive = archive
        self._checkpoints = checkpoints

    def bring(self, sequence: Sequence, slot: Slot) -> int | None:
        """Fill `slot` with the longest evaluated beginning of `sequence`'s tokens; returns how long it is.

        None: wait, a neighbour is reading more of what they share, or a file is being read.
        """
        if not sequence.task.cache_prompt or sequence.task.prompt_probs:
            self._archive.before_loss(slot)
            n: int | None = self._memory.cut(slot, 0)
        else:
            n = self._best(sequence, slot)
        if n is not None:
            slot.tokens.set(sequence.tokens)
            slot.adapters = sequence.adapters
            self._checkpoints.plan(sequence, slot)
            self._archive.started()
        return n

    def _best(self, sequence: Sequence, slot: Slot) -> int | None:
        source = longest_prefix(self._slots, slot, sequence.tokens, self._memory.usable)
        stored = self._archive.find(sequence, slot, source.n)
        if isinstance(stored, Future):
            return None
        n = stored.usable(sequence.tokens[:-1], sequence.adapters) if stored is not None else source.n
        neighbour = provider(self._slots, sequence, n)
        if neighbour is not None:
            sequence.has_waited = True
            if self._memory.n_window is not None:  # what they share can be had only where it ends
                self._pause(neighbour)
            return None
        return self._take(sequence, slot, source, stored, n)

    def _take(self, sequence: Sequence, slot: Slot, source: Source, stored: Snapshot | None, n: int) -> int:
        """Take `n` tokens from `stored`, else what `source` has."""
        moved = self._move(sequence, slot, n)
        if moved is not None:
            return moved
        if stored is not None:
            self._archive.before_loss(slot)
            if self._archive.restore(stored, slot):
                return self._memory.cut(slot, n)
        if source.slot is slot:
            self._archive.before_loss(slot, source.n)
            return self._memory.cut(slot, source.n if slot.n_past else 0)
        self._archive.before_loss(slot)
        return self._memory.copy(source.slot, slot, source.n)

    def _move(self, sequence: Sequence, slot: Slot, exact: int) -> int | None:
        """Reuse stretches at another position, if the task wants that and it gives more than the `exact` beginning."""
        shortest = sequence.task.n_cache_reuse
        if not shortest or not self._memory.can_move:
            return None
        best: tuple[int, Slot, int, list[Move]] | None = None
        for other in [slot, *(other for other in self._slots if other is not slot)]:
            if other.adapters != sequence.adapters:
                continue
            n = longest_prefix([other], other, sequence.tokens, self._memory.usable).n
            moves = moves_after(other.tokens.view[: other.n_past], sequence.tokens[:-1], n, shortest)
            total = moves[-1].to + moves[-1].n if moves else 0
            if total > max(exact, best[0] if best else 0):
                best = total, other, n, moves
        if best is None:
            return None
        _, source, n, moves = best
        if source is not slot:
            self._archive.before_loss(slot)
            self._memory.copy(source, slot, source.n_past)
        return self._memory.move(slot, n, moves)

    def _pause(self, neighbour: Source) -> None:
        other = neighbour.slot.sequence
        if other is not None and neighbour.n > neighbour.slot.n_past and neighbour.n not in other.pauses:
            other.pauses.append(neighbour.n)


def moves_after(held: Tokens, prompt: Tokens, n: int, shortest: int) -> list[Move]:
    """Which stretches of `held` tokens continue `prompt` after its first `n`, each at least `shortest` long.

    Both lists are walked from `n` on; what `held` has in between is left out (spec/engine.md §7).
    """
    moves: list[Move] = []
    start, to = n, n
    while to + shortest <= len(prompt):
        start = _next_run(held, prompt[to : to + shortest], start)
        if start < 0:
            break
        length = min(len(held) - start, len(prompt) - to)
        differs = held[start : start + length] != prompt[to : to + length]
        length = int(differs.argmax()) if differs.any() else length
        moves.append(Move(start, to, length))
        start, to = start + length, to + length
    return moves


def _next_run(held: Tokens, wanted: Tokens, start: int) -> int:
    """Where `wanted` first occurs in `held` from `start` on; -1: nowhere."""
    if len(held) - start < len(wanted):
        return -1
    windows = np.lib.stride_tricks.sliding_window_view(held[start:], len(wanted))
    found = np.flatnonzero(windows[:, 0] == wanted[0])
    found = found[(windows[found] == wanted).all(axis=1)]
    return start + int(found[0]) if len(found) else -1
