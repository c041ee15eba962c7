"""Adds drafts to generating slots before a step, and keeps account of how good they were."""

from collections.abc import Callable

from engine.draft import Drafter, Drafters, NgramMap, NgramMap4V, NgramMod, NgramSimple, NgramTable
from engine.metrics import Metrics
from engine.sequence import Phase, Sequence
from engine.slot import Slot
from ipc.config import ConfigError, SpeculativeSection

_RESERVE = 2  # positions of the context that a draft leaves free
ORDER = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod")


class Speculation:
    """`make` gives a sequence its drafters; None when speculation is off."""

    def __init__(self, make: Callable[[], Drafters] | None, metrics: Metrics, largest: int) -> None:
        self._make = make
        self._metrics = metrics
        self._largest = largest

    @property
    def enabled(self) -> bool:
        return self._make is not None

    def propose(self, slots: list[Slot]) -> None:
        """Put guesses behind the known tokens of every generating slot; together they fit into one step."""
        if self._make is None:
            return
        generating = [slot for slot in slots if slot.sequence and slot.sequence.phase is Phase.GENERATING]
        room = self._largest - len(generating)
        for left, slot in zip(range(len(generating), 0, -1), generating, strict=True):
            sequence = slot.sequence
            assert sequence is not None
            if sequence.n_draft or len(slot.todo) > 1:
                continue  # a draft whose turn has not come, or forced tokens
            if sequence.drafters is None:
                sequence.drafters = self._make()
            draft = sequence.drafters.propose(slot.tokens.view, min(_limit(sequence, slot), room // left))
            slot.tokens.extend(draft)
            sequence.n_draft = len(draft)
            room -= len(draft)

    def judge(self, sequence: Sequence, n_draft: int, n_right: int) -> None:
        """`n_right` of the `n_draft` guesses were what the model said."""
        sequence.n_draft = 0
        sequence.n_drafted += n_draft
        sequence.n_accepted += n_right
        self._metrics.drafted(n_draft, n_right)
        if sequence.drafters is not None:
            sequence.drafters.judged(n_draft, n_right)


def _limit(sequence: Sequence, slot: Slot) -> int:
    """Guesses that could still be used: bounded by the context and by what the task may produce."""
    room = slot.n_ctx - len(slot.tokens) - _RESERVE
    remaining = sequence.n_remaining
    return max(0, room if remaining is None else min(room, remaining - 1))


def drafters(settings: SpeculativeSection) -> Callable[[], Drafters] | None:
    """The factory that the configuration asks for. Raises ConfigError for a type that does not exist."""
    unknown = [name for name in settings.types if name not in (*ORDER, "none")]
    if unknown:
        raise ConfigError(f"speculative.types: {unknown[0]!r} is none of {', '.join(ORDER)}")
    wanted = [name for name in ORDER if name in settings.types]
    if not wanted:
        return None
    table = NgramTable(settings.ngram_mod_n_match) if "ngram-mod" in wanted else None
    return lambda: Drafters([_drafter(name, settings, table) for name in wanted])


def _drafter(name: str, s: SpeculativeSection, table: NgramTable | None) -> Drafter:
    if name == "ngram-simple":
        return NgramSimple(s.ngram_simple_size_n, s.ngram_simple_size_m, s.ngram_simple_min_hits)
    if name == "ngram-map-k":
        return NgramMap(s.ngram_map_k_size_n, s.ngram_map_k_size_m, s.ngram_map_k_min_hits)
    if name == "ngram-map-k4v":
        return NgramMap4V(s.ngram_map_k4v_size_n, s.ngram_map_k4v_size_m, s.ngram_map_k4v_min_hits)
    assert table is not None
    return NgramMod(table, s.ngram_mod_n_min, s.ngram_mod_n_max)
