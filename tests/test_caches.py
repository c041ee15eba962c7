"""Prompt caches on a model in plain Python: what slots lose is found again, and never gives another text."""

from random import Random

import numpy as np
import pytest

from engine.draft import Drafters
from tests.fake_context import continuation
from tests.step_engine import StepEngine
from tests.test_cache_policy import ROOMY, prompt
from tests.test_engine import check_books

pytestmark = pytest.mark.usefixtures("lib")
MODES = pytest.mark.parametrize("unified", [True, False])
KINDS = pytest.mark.parametrize("kind", [{}, {"n_swa": 24}, {"recurrent": True}], ids=["dense", "window", "recurrent"])


class HalfRight:
    """Proposes three tokens of which only the first is what the model says."""

    def propose(self, tokens: np.ndarray, limit: int) -> np.ndarray:
        right = continuation(tokens.tolist(), 1)
        return np.array([*right, 1 + right[0] % 60, 5], np.int32)[:limit]

    def judged(self, n_draft: int, n_accepted: int) -> None:
        pass


def run(engine: StepEngine, tokens: list[int], n: int = 4, **fields: object) -> int:
    """The part of a prompt that was found in a cache; the text must be right."""
    task = engine.submit(tokens, n, **fields)
    engine.run()
    assert engine.tokens(task) == continuation(tokens, n)
    check_books(engine)
    return engine.final(task).timings.cache_n


@MODES
@KINDS
def test_a_prompt_that_lost_its_slot_comes_back_from_host_memory(unified: bool, kind: dict) -> None:
    engine = StepEngine(n_slots=1, n_ctx=512, unified=unified, n_host_bytes=ROOMY, **kind)
    long = prompt(1, 200)
    run(engine, long)
    for seed in range(2, 6):
        run(engine, prompt(seed, 200))
    assert run(engine, [*long, *continuation(long, 4), 9]) >= 200


def test_without_host_memory_it_is_read_again() -> None:
    engine = StepEngine(n_slots=1, n_ctx=512)
    run(engine, prompt(1, 200))
    run(engine, prompt(2, 200))
    assert run(engine, prompt(1, 200)) == 0


def test_who_reuses_nothing_leaves_what_others_reuse() -> None:
    engine = StepEngine(n_slots=2, n_ctx=1024)
    run(engine, prompt(1, 200))
    assert run(engine, [*prompt(1, 150), *prompt(2, 50)], cache_prompt=False) == 0
    assert run(engine, prompt(1, 200)) == 199


def test_a_short_loss_is_not_worth_a_copy() -> None:
    engine = StepEngine(n_slots=1, n_ctx=512, n_host_bytes=ROOMY)
    run(engine, prompt(1, 50))
    run(engine, prompt(2, 50))
    assert run(engine, prompt(1, 50)) == 0


def test_the_slot_itself_is_preferred_to_an_equal_copy() -> None:
    engine = StepEngine(n_slots=1, n_ctx=512, n_host_bytes=ROOMY)
    run(engine, prompt(1, 200))
    run(engine, prompt(2, 200))
    assert run(engine, prompt(1, 200)) == 199
    assert run(engine, prompt(1, 200)) == 199


@MODES
def test_a_parked_sequence_goes_on_from_its_copy(unified: bool) -> None:
    engine = StepEngine(n_slots=4, n_ctx=512 if unified else 2048, unified=unified, n_host_bytes=ROOMY)
    prompts = [prompt(i + 1, 100) for i in range(4)]
    tasks = [engine.submit(tokens, 100) for tokens in prompts]
    engine.run()
    for tokens, task in zip(prompts, tasks, strict=True):
        assert engine.tokens(task) == continuation(tokens, 100)
    assert engine.context.n_evaluated <= 4 * 200 + 4 * 64


@MODES
@pytest.mark.parametrize("n_host_bytes", [0, ROOMY])
def test_a_parked_sequence_goes_on_from_its_shifted_context(unified: bool, n_host_bytes: int) -> None:
    engine = StepEngine(n_slots=1, n_ctx=32, unified=unified, context_shift=True, n_host_bytes=n_host_bytes)
    alone = engine.submit(prompt(1, 10), 120, cache_prompt=False)
    engine.run()
    low = engine.submit(prompt(1, 10), 120, cache_prompt=False, priority=-1)
    for n in (40, 70, 100):  # after one shift and after several
        while len(engine.tokens(low)) < n:
            engine.step()
        high = engine.submit(prompt(2, 5), 3)
        while not engine.finals(high):
            engine.step()
        assert not engine.finals(low)
    engine.run()
    assert len(engine.tokens(low)) == 120
    assert engine.tokens(low) == engine.tokens(alone)


def test_idle_slots_move_to_host_memory_when_something_starts() -> None:
    engine = StepEngine(n_slots=4, n_ctx=1024, n_host_bytes=ROOMY, move_idle=True)
    run(engine, prompt(1, 200))
    task = engine.submit(prompt(2, 200), 20)
    engine.run()
    assert [slot.n_past > 0 for slot in engine.slots].count(True) == 1
    assert engine.tokens(task) == continuation(prompt(2, 200), 20)
    assert run(engine, prompt(1, 200)) == 199


def test_what_idle_slots_share_with_a_running_one_stays() -> None:
    engine = StepEngine(n_slots=2, n_ctx=1024, n_host_bytes=ROOMY, move_idle=True)
    first = engine.submit(prompt(1, 200), 40)
    engine.step(18)
    run(engine, [*prompt(1, 200), 5, 5], 60)
    assert engine.final(first).reason == "limit"
    assert [slot.n_past > 200 for slot in engine.slots] == [True, True]


@KINDS
@MODES
def test_a_branch_reads_only_what_it_must(unified: bool, kind: dict) -> None:
    engine = StepEngine(n_slots=1, n_ctx=2048, unified=unified, **kind)
    long = prompt(1, 800)
    run(engine, long, message_starts=[100, 250, 390, 640])
    found = run(engine, [*long[:400], 3, 3, 3])
    assert found == (400 if not kind else 390)


@KINDS
def test_the_same_prompt_again_evaluates_its_end_only(kind: dict) -> None:
    engine = StepEngine(n_slots=1, n_ctx=2048, **kind)
    run(engine, prompt(1, 300), 40)
    assert run(engine, prompt(1, 300), 40) == (299 if not kind else 296)


@MODES
def test_a_wrong_draft_that_a_window_has_passed_is_read_again(unified: bool) -> None:
    engine = StepEngine(n_ctx=512, n_swa=16, unified=unified, make_drafters=lambda: Drafters([HalfRight()]))
    tokens = prompt(1, 100)
    run(engine, tokens, 60)


@KINDS
@MODES
def test_prompts_that_arrive_together_read_their_beginning_once(unified: bool, kind: dict) -> None:
    engine = StepEngine(n_slots=4, n_ctx=2048, unified=unified, **kind)
    shared = prompt(1, 200)
    tasks = [engine.submit([*shared, i, i, i], 6) for i in range(1, 5)]
    engine.run()
    for i, task in enumerate(tasks, 1):
        assert engine.tokens(task) == continuation([*shared, i, i, i], 6)
    assert engine.context.n_evaluated <= 203 + 3 * 3 + 4 * 6


@MODES
def test_moved_stretches_count_as_cached_and_are_exact_for_nobody(unified: bool) -> None:
    engine = StepEngine(n_slots=2, n_ctx=1024, unified=unified)
    system, old, rest = prompt(1, 30), prompt(2, 100), prompt(3, 100)
    run(engine, [*system, *old, *rest])
    task = engine.submit([*system, *rest, 5], 4, n_cache_reuse=16)
    engine.run()
    assert engine.final(task).timings.cache_n == 130
    check_books(engine)
    assert run(engine, [*system, *rest, 5, 6]) == 30


@MODES
def test_a_shared_cell_is_not_moved_by_reuse(unified: bool) -> None:
    engine = StepEngine(n_slots=2, n_ctx=1024, unified=unified)
    system, old, rest = prompt(1, 100), prompt(2, 100), prompt(3, 100)
    other = engine.submit([*system, *old, *rest, 7], 60)
    engine.step(30)
    task = engine.submit([*system, *rest, 5], 4, n_cache_reuse=16)
    engine.run()
    assert engine.tokens(other) == continuation([*system, *old, *rest, 7], 60)
    assert engine.final(task).timings.cache_n >= 100


SEGMENTS = [prompt(seed, 45) for seed in range(1, 9)]


def arrive(engine: StepEngine, random: Random) -> tuple[list[int], int, int]:
    """A prompt of a common start, some of the segments and an end of its own; returns it, its limit and its reuse."""
    segments = sorted(random.sample(range(8), random.randint(0, 4)))
    tokens = [9, 9, *(token for i in segments for token in SEGMENTS[i]), random.randint(1, 60)]
    n, reuse = random.randint(1, 150 if random.random() < 0.1 else 30), random.choice([0, 0, 8])
    engine.submit(tokens, n, n_cache_reuse=reuse, message_starts=[47, 92])
    return tokens, n, reuse


@MODES
@KINDS
@pytest.mark.parametrize("seed", range(4))
def test_random_work_with_caches_never_mixes_sequences(unified: bool, kind: dict, seed: int) -> None:
    """With all caches at work a sequence generates what it would alone, and the memory's books stay right."""
    random = Random(seed)
    engine = StepEngine(
        n_slots=3,
        n_ctx=330 if unified else 750,
        unified=unified,
        context_shift=seed % 2 == 1 and not kind,
        n_host_bytes=random.choice([20_000, ROOMY]),
        move_idle=random.random() < 0.5 and unified,
        n_checkpoints=4,
        **kind,
    )
    tasks: dict[int, tuple[list[int], int, int]] = {}
    for _ in range(100):
        if random.random() < 0.5 and len(engine.engine.sequences) < 6:
            tasks[len(tasks) + 1] = arrive(engine, random)
        elif random.random() < 0.1 and tasks:
            engine.abort(random.randint(1, len(tasks)))
        for _ in range(random.randint(1, 10)):
            engine.step()
            check_books(engine)
    engine.run(6000)
    check_books(engine)
    for task, (tokens, n, reuse) in tasks.items():
        final = engine.final(task)
        assert final.reason in ("limit", "abort"), final
        if not reuse and not final.truncated:
            assert engine.tokens(task) == continuation(tokens, n)[: len(engine.tokens(task))]
