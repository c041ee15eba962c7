"""A draft model guesses for all slots; what comes out is what the target alone would say."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from engine.batch import Batch
from engine.context import Context
from engine.draft_model import DraftModel, check_vocabularies, load
from engine.gguf import ModelError
from engine.model import Model
from engine.slot import Slot
from ipc.config import SpeculativeSection


@pytest.fixture(scope="module")
def draft(model: Model, model_path: Path) -> Iterator[DraftModel]:
    """The demo model as its own draft: its greedy guesses are always right."""
    settings = SpeculativeSection(draft_model=str(model_path), draft_n_max=4)
    with closing(Context(model, n_ctx=512, n_batch=128, n_seq_max=2, n_threads=1, n_threads_batch=1)) as context:
        loaded = load(settings, model, context, 2, 1)
        assert loaded is not None
        with closing(loaded):
            yield loaded


def slot_of(number: int, tokens: np.ndarray) -> Slot:
    slot = Slot(number, 512)
    slot.tokens.set(tokens)
    return slot


def greedy(model: Model, tokens: np.ndarray, n: int) -> list[int]:
    """The target's own greedy continuation."""
    with closing(Context(model, n_ctx=256, n_batch=128, n_seq_max=1, n_threads=1, n_threads_batch=1)) as context:
        batch, out = Batch(128), []
        row = batch.add(tokens, 0, 0, "last") + len(tokens) - 1
        for i in range(n):
            assert context.decode(batch) == 0
            out.append(int(context.logits(row).argmax()))
            batch.clear()
            row = batch.add_token(out[-1], len(tokens) + i, 0)
        return out


def test_guesses_of_two_slots_are_each_ones_greedy_continuation(model: Model, draft: DraftModel) -> None:
    prompts = [model.vocab.encode(text) for text in ("The capital of France is", "One, two, three, four,")]
    slots = [slot_of(i, prompt) for i, prompt in enumerate(prompts)]
    guesses = draft.propose([(slot, 10) for slot in slots])
    for slot, prompt in zip(slots, prompts, strict=True):
        assert guesses[slot.id].tolist() == greedy(model, prompt, 4)


def test_a_wrong_guess_is_forgotten(model: Model, draft: DraftModel) -> None:
    prompt = model.vocab.encode("The sky is")
    slot = slot_of(0, prompt)
    draft.propose([(slot, 10)])
    other = model.vocab.encode(" green today")
    slot.tokens.extend(other)
    expected = greedy(model, slot.tokens.view.copy(), 4)
    assert draft.propose([(slot, 10)])[0].tolist() == expected


def test_a_limit_bounds_the_guess(model: Model, draft: DraftModel) -> None:
    slot = slot_of(1, model.vocab.encode("Once upon a"))
    assert len(draft.propose([(slot, 2)])[1]) == 2
    assert draft.propose([(slot, 0)]) == {}


def test_a_long_prompt_is_read_over_several_steps(model: Model, draft: DraftModel) -> None:
    slot = slot_of(0, np.resize(model.vocab.encode("a b c d e f g"), 240))
    slot.n_ctx = 2048
    small = DraftModel(draft._model, draft._context, draft._settings, 2)
    small._batch = Batch(100)
    draft._context.clear()
    results = [small.propose([(slot, 4)]) for _ in range(3)]
    assert [len(result) for result in results] == [0, 0, 1]
    draft._context.clear()
    draft._held[0].truncate(0)
    draft._held[1].truncate(0)


def test_another_vocabulary_is_refused(model: Model) -> None:
    other = SimpleNamespace(type=1, bos=7, eos=model.vocab.eos, add_bos=True, add_eos=False)
    with pytest.raises(ModelError, match="type, bos, add_bos"):
        check_vocabularies(model.vocab, other)  # type: ignore[arg-type]
