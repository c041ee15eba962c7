"""Adds drafts to generating slots before a step, and keeps account of how good they were."""

from collections.abc import Callable

from engine.draft import NOTHING, Drafter, Drafters, NgramMap, NgramMap4V, NgramMod, NgramSimple, NgramTable, Tokens
from engine.draft_model import DraftModel
from engine.metrics import Metrics
from engine.sequence import Phase, Sequence
from engine.slot import Slot
from ipc.config import ConfigError, SpeculativeSection

_RESERVE = 2  # positions of the context that a draft leaves free
ORDER = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod")


class Speculation:
    """`make` gives a sequence its drafters; None when speculation is off."""

    def __init__(
        self, make: Callable[[], Drafters] | None, metrics: Metrics, largest: int, model: DraftModel | None = None
    ) -> None:
        self._make = make
        self._model = model
        self._metrics = metrics
        self._largest = largest

    def propose(self, slots: list[Slot]) -> None:
        """Put guesses behind the known tokens of every generating slot; together they fit into one step."""
        if self._make is None and self._model is None:
            return
        ready = [slot for slot in slots if _wants_draft(slot)]
        room, left = self._largest - len(slots), []
        for n, slot in zip(range(len(ready), 0, -1), ready, strict=True):
            sequence = slot.sequence
            assert sequence is not None
            limit = min(_limit(sequence, slot), room // n)
            draft = self._look_up(sequence, slot, limit)
            if len(draft):
                self._add(slot, draft)
                room -= len(draft)
            else:
                left.append((slot, limit))
        if self._model is not None and left:
            by_slot = self._model.propose(left)
            for slot, _ in left:
                self._add(slot, by_slot.get(slot.id, NOTHING))

    def _look_up(self, sequence: Sequence, slot: Slot, limit: int) -> Tokens:
        """What the sequence's own n-gram drafters say."""
        if self._make is None:
            return NOTHING
        if sequence.drafters is None:
            sequence.drafters = self._make()
        return sequence.drafters.propose(slot.tokens.view, limit)

    def _add(self, slot: Slot, draft: Tokens) -> None:
        assert slot.sequence is not None
        slot.tokens.extend(draft)
        slot.sequence.n_draft = len(draft)

    def judge(self, sequence: Sequence, n_draft: int, n_right: int) -> None:
        """`n_right` of the `n_draft` guesses were what the model said."""
        sequence.n_draft = 0
        sequence.n_drafted += n_draft
        sequence.n_accepted += n_right
        self._metrics.drafted(n_draft, n_right)
        if sequence.drafters is not None:
            sequence.drafters.judged(n_draft, n_right)


def _wants_draft(slot: Slot) -> bool:
    """Whether the slot generates and is not behind: a draft whose turn has not come, or forced tokens, go first."""
    sequence = slot.sequence
    if sequence is None or sequence.phase is not Phase.GENERATING:
        return False
    return not sequence.n_draft and len(slot.todo) == 1


def _limit(sequence: Sequence, slot: Slot) -> int:
    """Guesses that could still be used: bounded by the context and by what the task may produce."""
    room = slot.n_ctx - len(slot.tokens) - _RESERVE
    remaining = sequence.n_remaining
    return max(0, room if remaining is None else min(room, remaining - 1))


def drafters(settings: SpeculativeSection) -> Callable[[], Drafters] | None:
    """The factory that the configuration asks for. Raises ConfigError for a type that does not exist."""
    known = (*ORDER, "draft-simple", "none")
    unknown = [name for name in settings.types if name not in known]
    if unknown:
        raise ConfigError(f"speculative.types: {unknown[0]!r} is none of {', '.join(known)}")
    if "draft-simple" in settings.types and settings.draft_model is None:
        raise ConfigError("speculative.types: draft-simple needs a draft model (--model-draft FILE)")
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
