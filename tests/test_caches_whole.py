"""Prompt caches on real models: they save work and never change a text."""

from pathlib import Path
from random import Random

import numpy as np
import pytest

from ipc.messages import Sampling, SlotAction, SlotReply
from tests.real_engine import RealEngine, check_positions
from tests.tiny_models import WRITERS

pytestmark = pytest.mark.usefixtures("lib")
NEVER_ENDS = Sampling(temperature=0, ignore_eos=True)
MODES = pytest.mark.parametrize("unified", [True, False], ids=["unified", "streams"])
KINDS = pytest.mark.parametrize("kind", list(WRITERS))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tiny models' files by kind."""
    folder = tmp_path_factory.mktemp("tiny")
    return {kind: write(folder / f"{kind}.gguf") for kind, write in WRITERS.items()}


def prompt(seed: int, n: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 300, n).tolist()


def small(path: Path, unified: bool, n_slots: int = 2, **settings: object) -> RealEngine:
    """An engine with room for 1,024 tokens a slot, or together twice that."""
    n_ctx = 2048 if unified else 1024 * n_slots
    sizes = {"ctx_size": n_ctx, "parallel": n_slots, "kv_unified": unified, "batch_size": 128, "ubatch_size": 64}
    return RealEngine(path, **{**sizes, **settings})


@KINDS
@MODES
def test_a_branch_reads_only_what_it_must_and_says_the_same(tiny: dict[str, Path], kind: str, unified: bool) -> None:
    long, branch = prompt(1, 600), [*prompt(1, 300), *prompt(2, 60)]
    with small(tiny[kind], unified) as engine:
        expected, _ = engine.generate(branch)
    with small(tiny[kind], unified) as engine:
        engine.generate(long, message_starts=[150, 290, 500], slot=0)
        text, found = engine.generate(branch, slot=0)
        assert text == expected
        assert 290 <= found <= 300
        again, found = engine.generate(branch, slot=0)
        assert again == expected and found >= 356


@MODES
def test_full_windows_branch_anywhere(tiny: dict[str, Path], unified: bool) -> None:
    long, branch = prompt(1, 600), [*prompt(1, 300), *prompt(2, 60)]
    with small(tiny["window"], unified, swa_full=True) as engine:
        expected, _ = engine.generate(branch)
    with small(tiny["window"], unified, swa_full=True) as engine:
        engine.generate(long, slot=0)
        assert engine.generate(branch, slot=0) == (expected, 300)
        for seed in range(3, 6):  # through host memory, where only the windows' ends are kept
            engine.generate(prompt(seed, 600))
        assert engine.generate([*branch[:320], 9])[0] == engine.generate([*branch[:320], 9], cache_prompt=False)[0]


@MODES
def test_moved_stretches_harm_nobody_who_shares_them(tiny: dict[str, Path], unified: bool) -> None:
    system, old, rest = prompt(1, 60), prompt(2, 80), prompt(3, 90)
    with small(tiny["dense"], unified, 3) as engine:
        expected, _ = engine.generate([*system, *old, *rest, 5], 40)
        other = engine.submit([*system, *old, *rest, 5], 40)
        engine.step(12)
        _, found = engine.generate([*system, *rest, 7], n_cache_reuse=32)
        assert found == 150
        assert engine.tokens(other) == expected
        _, found = engine.generate([*system, *rest, 7])
        assert found == 60


@KINDS
@MODES
def test_a_prompt_comes_back_from_host_memory(tiny: dict[str, Path], kind: str, unified: bool) -> None:
    with small(tiny[kind], unified) as engine:
        first, _ = engine.generate(prompt(1, 500))
        for seed in range(2, 6):
            engine.generate(prompt(seed, 500), 4)
        text, found = engine.generate(prompt(1, 500))
        assert text == first and found >= 496


@KINDS
def test_a_prompt_comes_back_after_a_restart(tiny: dict[str, Path], kind: str, tmp_path: Path) -> None:
    folder = str(tmp_path)
    with small(tiny[kind], True, cache_disk=folder) as engine:
        first, _ = engine.generate(prompt(1, 500))
        longer, _ = engine.generate([*prompt(1, 500), *first, *prompt(2, 20)])
    with small(tiny[kind], True, cache_disk=folder, cache_ram=0) as engine:
        text, found = engine.generate([*prompt(1, 500), *first, *prompt(2, 20)])
        assert text == longer and found >= 512
    with small(tiny[kind], False, cache_disk=folder) as engine:  # another kind of memory
        assert engine.generate([*prompt(1, 500), *first, *prompt(2, 20)])[1] == 0


@KINDS
@MODES
def test_a_restored_slot_goes_on(tiny: dict[str, Path], kind: str, unified: bool, tmp_path: Path) -> None:
    with small(tiny[kind], unified, slot_save_path=str(tmp_path)) as engine:
        engine.generate(prompt(1, 400), 3, slot=0)
        saved = act(engine, "save")
        expected, _ = engine.generate([*prompt(1, 400), *prompt(3, 10)], slot=1)
        act(engine, "erase", 1)
    with small(tiny[kind], unified, slot_save_path=str(tmp_path)) as engine:
        restored = act(engine, "restore", 1)
        assert restored.n_tokens == saved.n_tokens == 402 and restored.n_bytes == saved.n_bytes
        check_positions(engine)
        text, found = engine.generate([*prompt(1, 400), *prompt(3, 10)], slot=1)
        assert text == expected and found >= restored.n_tokens - 8


def act(engine: RealEngine, action: str, slot: int = 0) -> SlotReply:
    sent = engine.server.sent[b"actions"]
    n = len(sent)
    engine.server.incoming.append((b"actions", SlotAction(n, slot, action, "a.bin")))
    for _ in range(20_000):
        engine.step()
        if len(sent) > n:
            assert isinstance(sent[n], SlotReply), sent[n]
            return sent[n]
    raise AssertionError("no answer")


@pytest.mark.parametrize("kind", ["dense", "window"])
def test_four_answers_in_a_memory_for_less_than_two_all_end(tiny: dict[str, Path], kind: str) -> None:
    prompts = [prompt(seed, 10) for seed in (0, 8, 13, 14)]  # whose texts have no near ties
    with small(tiny[kind], True, 1) as alone:
        expected = [alone.generate(tokens, 150, sampling=NEVER_ENDS)[0] for tokens in prompts]
    with small(tiny[kind], True, 4, ctx_size=256) as engine:
        tasks = [engine.submit(tokens, 150, sampling=NEVER_ENDS) for tokens in prompts]
        engine.run()
        assert [engine.tokens(task) for task in tasks] == expected
        assert all(engine.final(task).error is None for task in tasks)


MARKS = [[3 + client, 250 + client, 9, 3 + client] for client in range(16)]


@pytest.mark.parametrize("kind", ["dense", "window"])
@MODES
def test_sixteen_clients_never_see_each_others_mark(tiny: dict[str, Path], kind: str, unified: bool) -> None:
    """Twenty rounds of prompts that differ in a mark only, random ones aborted: each has the text it has alone."""
    random, stem, tails = Random(1), prompt(1, 40), [prompt(seed, 12) for seed in (2, 3)]
    prompts = [[*stem, *mark, *tail] for mark in MARKS for tail in tails]
    with small(tiny[kind], True, 1, cache_ram=0) as alone:
        expected = [alone.generate(tokens, 8, cache_prompt=False)[0] for tokens in prompts]
    with small(tiny[kind], unified, 4, ctx_size=500 if unified else 1024) as engine:
        for _ in range(20):
            chosen = [2 * client + random.randint(0, 1) for client in range(16)]
            tasks = [engine.submit(prompts[i], 8, client=b"%d" % i) for i in chosen]
            for task, i in zip(tasks, chosen, strict=True):
                if random.random() < 0.15:
                    engine.step(random.randint(0, 3))
                    engine.abort(task, client=b"%d" % i)
            engine.run()
            check_positions(engine)
            for task, i in zip(tasks, chosen, strict=True):
                tokens = engine.tokens(task, client=b"%d" % i)
                assert tokens == expected[i][: len(tokens)]
                assert len(tokens) == 8 or engine.final(task, client=b"%d" % i).reason in ("abort", "eos")


@KINDS
@MODES
def test_random_work_gives_every_prompt_the_text_it_has_alone(tiny: dict[str, Path], kind: str, unified: bool) -> None:
    """Branches of common beginnings, in parallel, with aborts, in a memory that is too small for all."""
    random, parts = Random(5), [prompt(seed, 70) for seed in range(10, 18)]
    prompts = [
        [token for i in sorted(random.sample(range(8), random.randint(1, 5))) for token in parts[i]] + [3 + j]
        for j in range(20)
    ]
    with small(tiny[kind], True, 1, cache_ram=0) as alone:
        expected = [alone.generate(tokens, 8, cache_prompt=False)[0] for tokens in prompts]
    with small(tiny[kind], unified, 3, ctx_size=900 if unified else 3 * 512) as engine:
        tasks = []
        for tokens in prompts:
            tasks.append(engine.submit(tokens, random.randint(8, 40), message_starts=[70, 140]))
            if random.random() < 0.2:
                engine.abort(random.choice(tasks))
            for _ in range(random.randint(0, 12)):
                engine.step()
                check_positions(engine)
        engine.run()
        check_positions(engine)
        for task, text in zip(tasks, expected, strict=True):
            final = engine.final(task)
            assert final.reason in ("limit", "eos", "abort")
            n = min(8, len(engine.tokens(task)))
            assert engine.tokens(task)[:n] == text[:n]
