"""Which slot a prompt gets, and where the longest part of it has been evaluated already. Pure policy."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from engine.regime import PLAIN, Regime, common_validity
from engine.sequence import Phase, Sequence
from engine.slot import Slot, common_prefix

_WORTH_KEEPING = 0.5  # of a slot's cache; below, another slot is taken and the shared part is copied
_WORTH_WAITING = 32  # tokens that a neighbour must be about to read for us


@dataclass(frozen=True, slots=True)
class Source:
    """`n` leading tokens of a prompt are evaluated in `slot`."""

    slot: Slot
    n: int


def choose_slot(
    slots: list[Slot],
    prompt: np.ndarray,
    wanted: int | None,
    similarity: float,
    regime: Regime = PLAIN,
    *,
    compact: bool = False,
) -> Slot | None:
    """The idle slot to take, or None when there is none: the wanted one, the most similar, the longest unused.

    A similar slot is taken only when most of its cache survives, or when every idle slot holds something: the
    shared beginning can be copied, what a branch would cut off cannot be brought back.
    `compact`: else one beside a busy slot if there is one, for steps are quicker where busy slots follow each other.
    """
    if wanted is not None:
        return slots[wanted] if slots[wanted].idle else None
    idle = [slot for slot in slots if slot.idle]
    if not idle:
        return None
    oldest = min(idle, key=lambda slot: (compact and _isolated(slots, slot), slot.n_past > 0, slot.last_used))
    if similarity <= 0:
        return oldest
    best = max(idle, key=lambda slot: shared(slot, prompt, regime))
    n = shared(best, prompt, regime)
    if n <= similarity * len(prompt):
        return oldest
    keeps_most = n >= _WORTH_KEEPING * best.n_past
    return best if keeps_most or oldest.n_past > 0 else oldest


def _isolated(slots: list[Slot], slot: Slot) -> bool:
    return all(other.idle for other in slots[max(0, slot.id - 1) : slot.id + 2])


def shared(slot: Slot, prompt: np.ndarray, regime: Regime) -> int:
    """Leading tokens of `prompt` whose KV in `slot` is right for a sequence with adapters `regime`."""
    return common_validity(slot.adapters, regime, common_prefix(slot.reusable, prompt))


def longest_prefix(slots: list[Slot], target: Slot, prompt: np.ndarray, usable: Callable[[Slot, int], int]) -> Source:
    """Where most of `prompt` has been evaluated under the same adapters; `target` itself wins a tie.

    One token of the prompt is always left to evaluate, for its logits. `usable` says where a slot can be continued.
    """
    best, regime = Source(target, 0), target.sequence.adapters if target.sequence else target.adapters
    for slot in [target, *(other for other in slots if other is not target)]:
        n = min(shared(slot, prompt, regime), len(prompt) - 1)
        if n > best.n and (n := usable(slot, n)) > best.n:
            best = Source(slot, n)
    return best


def provider(slots: list[Slot], sequence: Sequence, have: int) -> Source | None:
    """A slot that is reading a longer common prefix than the `have` tokens available now: worth waiting for.

    Who has begun to wait stays to the end of what is shared.
    """
    best, gain = None, 1 if sequence.has_waited else _WORTH_WAITING
    for slot in slots:
        other = slot.sequence
        if other is None or other is sequence or other.phase is not Phase.PREFILL:
            continue
        n = min(common_prefix(slot.tokens.view, sequence.prompt), len(sequence.prompt) - 1)
        n = common_validity(other.adapters, sequence.adapters, n)
        if n - have >= gain:
            best, gain = Source(slot, n), n - have
    return best
