"""Reported cases that are about the engine's schedule and its context, in the test's own process."""

from pathlib import Path

import numpy as np
import pytest

from ipc.messages import Delta, Sampling
from tests.fake_context import continuation
from tests.real_engine import RealEngine, check_positions
from tests.step_engine import StepEngine
from tests.tiny_models import N_CTX, WRITERS

pytestmark = pytest.mark.usefixtures("lib")
NEVER_ENDS = Sampling(temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small dense model."""
    return WRITERS["dense"](tmp_path_factory.mktemp("tiny") / "dense.gguf")


def prompt(seed: int, n: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 60, n).tolist()


def test_a_long_prompt_holds_up_neither_running_nor_short_requests() -> None:
    """C04: A gets a token in every step while B is read; C, which came after B, starts before B's prompt ends."""
    engine = StepEngine(n_slots=3, n_ctx=3000, n_ubatch=64)
    a = engine.submit([1, 2], 400)
    engine.step(5)
    b = engine.submit(prompt(1, 1500), 3)
    engine.step(3)
    c = engine.submit([7, 8, 9], 3)
    while not engine.tokens(b):
        done, evaluated = len(engine.tokens(a)), engine.context.n_evaluated
        engine.step()
        assert len(engine.tokens(a)) == done + 1
        assert engine.context.n_evaluated - evaluated <= 64
    assert engine.finals(c)
    assert engine.tokens(b)[0] == continuation(prompt(1, 1500), 1)[0]


def test_a_context_that_fills_ends_the_text() -> None:
    """P02, without a shift: as many tokens as fit."""
    engine = StepEngine(n_slots=1, n_ctx=512)
    task = engine.submit([1 + i % 60 for i in range(480)], None)
    engine.run()
    assert (engine.final(task).reason, engine.final(task).truncated) == ("limit", True)
    assert len(engine.tokens(task)) == 32


def test_a_shifting_context_goes_on_up_to_the_cap(tiny: Path) -> None:
    """P02, with a shift: past the context, but not for ever."""
    with RealEngine(tiny, ctx_size=256, parallel=1, context_shift=True) as engine:
        for limit, expected in ((400, 400), (None, N_CTX)):
            task = engine.submit(prompt(1, 50), limit, sampling=NEVER_ENDS)
            engine.run()
            assert (engine.final(task).reason, engine.final(task).truncated) == ("limit", True)
            assert len(engine.tokens(task)) == expected
            check_positions(engine)


@pytest.mark.parametrize("host_mib", [0, 64])
def test_unified_memory_that_runs_out_costs_nobody_its_text(tiny: Path, host_mib: int) -> None:
    """P03: four requests of 300 tokens in 512 cells end with what each of them says alone."""
    sizes = {"parallel": 4, "kv_unified": True, "batch_size": 64, "ubatch_size": 64, "cache_ram": host_mib}
    with RealEngine(tiny, ctx_size=512, **sizes) as engine:
        alone = [engine.generate(prompt(i, 8), 300, sampling=NEVER_ENDS, cache_prompt=False)[0] for i in range(4)]
    with RealEngine(tiny, ctx_size=512, **sizes) as engine:
        tasks = [engine.submit(prompt(i, 8), 300, sampling=NEVER_ENDS) for i in range(4)]
        engine.run()
        assert [engine.tokens(task) for task in tasks] == alone
        assert all(engine.final(task).error is None for task in tasks)
        check_positions(engine)


def test_a_stream_ends_in_exactly_one_final_whatever_cuts_it() -> None:
    engine = StepEngine(n_slots=2, n_ctx=128)
    tasks = [engine.submit([1, i], 30) for i in range(3, 9)]
    engine.step(4)
    for task in tasks[::2]:
        engine.abort(task)
        engine.abort(task)
    engine.run()
    for task in tasks:
        results = engine.results(task)
        assert len(engine.finals(task)) == 1 and results[-1] is engine.final(task)
        assert all(isinstance(result, Delta) for result in results[1:-1])
