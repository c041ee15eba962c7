"""A smaller model with the same vocabulary that guesses for all slots at once (spec/engine.md §10, draft-simple)."""

from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.batch import Batch
from engine.context import Context
from engine.gguf import ModelError
from engine.model import Model
from engine.slot import GrowArray, Slot, common_prefix
from engine.vocab import Vocab
from ipc.config import SpeculativeSection

Tokens = npt.NDArray[np.int32]
_SIZE_DIFFERENCE = 128  # tokens that one vocabulary may have more than the other
_FIRST_COMPARED = 5  # ids below are special tokens, which may be spelled differently


@dataclass(slots=True, eq=False)
class _Guess:
    """A draft in the making."""

    slot: Slot
    limit: int
    tokens: list[int]


class DraftModel:
    """One sequence of the draft context for each slot. A prompt is read in pieces, one per step, before it drafts."""

    def __init__(self, model: Model, context: Context, settings: SpeculativeSection, n_slots: int) -> None:
        self._model = model
        self._context = context
        self._settings = settings
        self._batch = Batch(context.n_batch)
        self._held = [GrowArray(np.int32) for _ in range(n_slots)]  # tokens evaluated for each slot

    def close(self) -> None:
        self._context.close()
        self._model.close()

    def propose(self, wanted: list[tuple[Slot, int]]) -> dict[int, Tokens]:
        """Greedy continuations by slot id, each at most as long as its limit; slots still being read give none."""
        longest = self._settings.draft_n_max
        room = self._context.n_ctx_seq - longest
        able = [(slot, min(limit, longest)) for slot, limit in wanted if len(slot.tokens) < room]
        guesses = [_Guess(slot, limit, []) for slot, limit in able if limit > 0]
        active = self._catch_up(guesses)
        for depth in range(longest):
            growing = [guess for row, guess in active if self._extend(guess, row)]
            if not growing or depth + 1 == longest:
                break
            active = self._read_last(growing)
        return {
            guess.slot.id: np.array(guess.tokens, np.int32)
            for guess in guesses
            if len(guess.tokens) >= max(1, self._settings.draft_n_min)
        }

    def _catch_up(self, guesses: list[_Guess]) -> list[tuple[int, _Guess]]:
        """Evaluate what the draft model has not seen; (row of the logits, guess) for those that are complete."""
        self._batch.clear()
        rows = []
        for left, guess in zip(range(len(guesses), 0, -1), guesses, strict=True):
            tokens, held = guess.slot.tokens.view, self._held[guess.slot.id]
            n = min(common_prefix(held.view, tokens), len(tokens) - 1)
            self._context.seq_rm(guess.slot.id, n, -1)
            held.truncate(n)
            piece = tokens[n : n + self._batch.room // left]
            row = self._batch.add(piece, n, guess.slot.id, "last") + len(piece) - 1
            held.extend(piece)
            if len(held) == len(tokens):
                rows.append((row, guess))
        return rows if self._decoded() else []

    def _read_last(self, guesses: list[_Guess]) -> list[tuple[int, _Guess]]:
        """Evaluate the newest token of each guess."""
        self._batch.clear()
        rows = []
        for guess in guesses:
            held = self._held[guess.slot.id]
            rows.append((self._batch.add_token(guess.tokens[-1], len(held), guess.slot.id), guess))
            held.append(guess.tokens[-1])
        return rows if self._decoded() else []

    def _decoded(self) -> bool:
        """Run the batch; when it fails the draft model forgets everything, and only speed is lost."""
        if not self._batch.n_tokens or self._context.decode(self._batch) == 0:
            return True
        self._context.clear()
        for held in self._held:
            held.truncate(0)
        return False

    def _extend(self, guess: _Guess, row: int) -> bool:
        """Take the likeliest token if it is likely enough; whether the guess may grow on."""
        logits = self._context.logits(row)
        best = int(logits.argmax())
        if self._settings.draft_p_min > 0:
            probability = 1.0 / float(np.exp(logits - logits[best]).sum())
            if probability < self._settings.draft_p_min:
                return False
        guess.tokens.append(best)
        return len(guess.tokens) < guess.limit


def check_vocabularies(target: Vocab, draft: Vocab) -> None:
    """Raises ModelError unless the draft's tokens mean the same as the target's."""
    marks = ("type", "bos", "eos", "add_bos", "add_eos")
    different = [mark for mark in marks if getattr(target, mark) != getattr(draft, mark)]
    if different:
        raise ModelError(f"draft model: its vocabulary differs in {', '.join(different)}")
    if abs(target.n_tokens - draft.n_tokens) > _SIZE_DIFFERENCE:
        raise ModelError(f"draft model: {draft.n_tokens} tokens, the model has {target.n_tokens}")
    n = min(target.n_tokens, draft.n_tokens)
    pairs = zip(target.pieces(special=True)[:n], draft.pieces(special=True)[:n], strict=True)
    for token, (one, other) in enumerate(pairs):
        if token >= _FIRST_COMPARED and one != other:
            raise ModelError(f"draft model: token {token} is {other!r}, the model has {one!r}")


def load(
    settings: SpeculativeSection, target: Model, context: Context, n_slots: int, n_threads: int
) -> DraftModel | None:
    """The draft model of the configuration, with room for what `context` can hold; None without one."""
    if settings.draft_model is None:
        return None
    model = Model.load(settings.draft_model)
    try:
        check_vocabularies(target.vocab, model.vocab)
        n_ctx = min(context.n_ctx_seq, model.n_ctx_train) * n_slots
        draft = Context(
            model,
            n_ctx=n_ctx,
            n_batch=512,
            n_ubatch=512,
            n_seq_max=n_slots,
            n_threads=n_threads,
            n_threads_batch=n_threads,
            kv_unified=False,
        )
    except BaseException:
        with closing(model):
            raise
    return DraftModel(model, draft, settings, n_slots)
