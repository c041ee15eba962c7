"""Drafts never change what is generated, only how many steps it takes."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.draft import NOTHING, Drafters, NgramMap, NgramMap4V, NgramMod, NgramSimple, NgramTable, earlier_match
from engine.speculation import drafters
from ipc.config import ConfigError, SpeculativeSection
from tests.fake_context import continuation
from tests.step_engine import StepEngine


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


class Oracle:
    """Knows the model; every third proposal is wrong from some point on."""

    def __init__(self) -> None:
        self.calls = 0
        self.judgements: list[tuple[int, int]] = []

    def propose(self, tokens: np.ndarray, limit: int) -> np.ndarray:
        self.calls += 1
        draft = np.array(continuation(tokens.tolist(), min(limit, 6)), np.int32)
        if self.calls % 3 == 0 and len(draft) > 2:
            draft[2] = draft[2] % 63 + 1
        return draft

    def judged(self, n_proposed: int, n_accepted: int) -> None:
        self.judgements.append((n_proposed, n_accepted))


@pytest.mark.usefixtures("lib")
@pytest.mark.parametrize("unified", [True, False])
def test_greedy_output_equals_plain_decoding(unified: bool) -> None:
    engine = StepEngine(n_slots=2, n_ctx=512, n_ubatch=64, unified=unified, make_drafters=lambda: Drafters([Oracle()]))
    tasks = [(engine.submit(prompt, 60), prompt) for prompt in ([1, 2, 3], [4, 5], [6])]
    engine.run()
    for task, prompt in tasks:
        assert engine.tokens(task) == continuation(prompt, 60)
        timings = engine.final(task).timings
        assert timings.draft_n > timings.draft_n_accepted > 30
    assert engine.metrics.counters["n_decode_total"] < 60


@pytest.mark.usefixtures("lib")
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompts=st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=20), min_size=1, max_size=6),
    n=st.integers(1, 40),
)
def test_drafts_beside_prompts_and_prefix_sharing_never_mix_sequences(prompts: list[list[int]], n: int) -> None:
    engine = StepEngine(n_slots=3, n_ctx=256, n_ubatch=32, make_drafters=lambda: Drafters([Oracle()]))
    tasks = [(engine.submit(prompt, n), prompt) for prompt in prompts]
    engine.run()
    for task, prompt in tasks:
        assert engine.tokens(task) == continuation(prompt, n)
    for slot in engine.slots:
        assert slot.n_past == len(engine.context.sequences[slot.id])


@pytest.mark.usefixtures("lib")
def test_a_stop_string_inside_a_draft_ends_there() -> None:
    text = "".join(chr(64 + token) for token in continuation([1, 2, 3], 20))
    engine = StepEngine(n_ctx=256, n_ubatch=64, make_drafters=lambda: Drafters([Oracle()]))
    task = engine.submit([1, 2, 3], 20, stop=[text[7:10]])
    engine.run()
    assert engine.text(task) == text[: text.find(text[7:10])]


def test_the_latest_earlier_match_is_found() -> None:
    assert earlier_match(ints(1, 2, 9, 1, 2, 8, 1, 2), 2) == 5
    assert earlier_match(ints(1, 2, 3), 2) is None
    assert earlier_match(ints(7, 7, 7, 7), 2) == 3


def test_ngram_simple_proposes_what_followed() -> None:
    tokens = ints(*range(30), *range(12))
    assert NgramSimple(12, 10).propose(tokens, 99).tolist() == list(range(12, 22))
    assert NgramSimple(12, 10).propose(tokens, 4).tolist() == [12, 13, 14, 15]
    assert NgramSimple(12, 48).propose(ints(*range(12)), 9) is NOTHING


def test_ngram_map_drafts_no_longer_than_last_accepted() -> None:
    drafter = NgramMap(3, 8)
    tokens = ints(*range(20), 0, 1, 2)
    assert len(drafter.propose(tokens, 99)) == 8
    drafter.judged(8, 2)
    assert len(drafter.propose(tokens, 99)) == 2


def test_ngram_map_4v_needs_a_clear_leader() -> None:
    tie = ints(1, 2, 3, 7, 7, 1, 2, 3, 8, 8, 1, 2, 3)
    assert NgramMap4V(3, 2).propose(tie, 9) is NOTHING
    clear = ints(*[1, 2, 3, 7, 7] * 3, 1, 2, 3)
    assert NgramMap4V(3, 2).propose(clear, 9).tolist() == [7, 7]


def test_ngram_mod_learns_from_other_sequences() -> None:
    table = NgramTable(4)
    NgramMod(table, 3, 10).propose(ints(*range(50)), 10)
    assert NgramMod(table, 3, 10).propose(ints(90, 10, 11, 12, 13), 10).tolist() == list(range(14, 24))


def test_ngram_mod_empties_its_table_after_five_poor_rounds() -> None:
    table = NgramTable(4)
    drafter = NgramMod(table, 3, 10)
    drafter.propose(ints(*range(50)), 10)
    for _ in range(5):
        drafter.judged(10, 0)
    assert len(table.continuation(ints(10, 11, 12, 13), 5)) == 0


def test_a_draft_is_as_long_as_the_last_ones_were_right() -> None:
    drafters_ = Drafters([NgramSimple(4, 48)])
    tokens = ints(*range(100), *range(4))

    def length() -> int:
        return len(drafters_.propose(tokens, 99))

    assert length() == 8
    drafters_.judged(8, 8)
    assert length() == 16
    drafters_.judged(16, 16)
    assert length() == 32
    drafters_.judged(32, 5)
    assert length() == 5
    drafters_.judged(5, 0)
    assert length() == 2
    assert len(drafters_.propose(tokens, 1)) == 1
    drafters_.judged(1, 1)
    assert length() == 2, "a draft that another limit cut says nothing about longer ones"


def test_an_unknown_type_is_refused_at_start() -> None:
    with pytest.raises(ConfigError, match="'magic'"):
        drafters(SpeculativeSection(types=("magic",)))


def test_types_are_asked_in_their_fixed_order() -> None:
    make = drafters(SpeculativeSection(types=("ngram-mod", "ngram-simple")))
    assert make is not None
    assert [type(d).__name__ for d in make()._drafters] == ["NgramSimple", "NgramMod"]
