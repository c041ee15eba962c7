"""Prompt caches on a model in plain Python: what slots lose is found again, and never gives another text."""

import shutil
from pathlib import Path
from random import Random

import numpy as np
import pytest

from engine.adapters import Adapters
from engine.checkpoints import least_useful, wanted
from engine.diskcache import DiskCache
from engine.draft import Drafters
from engine.hostcache import HostCache, automatic_limit
from engine.identity import Identity
from engine.memory import Move
from engine.regime import PLAIN
from engine.reuse import moves_after
from engine.snapshot import Checkpoint, Snapshot
from ipc.messages import LoraScale
from tests.fake_context import FakeContext, continuation
from tests.step_engine import FakeAdapter, StepEngine
from tests.test_engine import check_books

pytestmark = pytest.mark.usefixtures("lib")
MODES = pytest.mark.parametrize("unified", [True, False])
KINDS = pytest.mark.parametrize("kind", [{}, {"n_swa": 24}, {"recurrent": True}], ids=["dense", "window", "recurrent"])
ROOMY = 1 << 24


def prompt(seed: int, n: int) -> list[int]:
    """`n` tokens that share no beginning with those of another seed."""
    return [1 + (seed * 7 + i * (seed + 3)) % 60 for i in range(n)]


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


def test_stretches_are_found_as_the_contract_says() -> None:
    held = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], np.int32)
    wanted_tokens = np.array([1, 2, 5, 6, 7, 10, 11], np.int32)
    assert moves_after(held, wanted_tokens, 2, 2) == [Move(4, 2, 3), Move(9, 5, 2)]
    assert moves_after(held, wanted_tokens, 2, 3) == [Move(4, 2, 3)]
    assert moves_after(held, wanted_tokens, 2, 4) == []


# ---------------------------------------------------------------- disk


def disk(folder: Path, limit: int = ROOMY, model: str = "0" * 32) -> DiskCache:
    return DiskCache(str(folder), limit, Identity(model, Adapters(FakeContext(1, 1, True))))


def stopped(engine: StepEngine) -> None:
    engine.archive.close()


@KINDS
def test_a_prompt_survives_a_restart(tmp_path: Path, kind: dict) -> None:
    engine = StepEngine(n_slots=2, n_ctx=512, disk=disk(tmp_path), **kind)
    run(engine, prompt(1, 200))
    stopped(engine)
    again = StepEngine(n_slots=1, n_ctx=512, disk=disk(tmp_path), n_host_bytes=ROOMY, **kind)
    assert run(again, [*prompt(1, 200), *continuation(prompt(1, 200), 4), 8]) >= 200
    stopped(again)


def test_a_slot_at_rest_is_written(tmp_path: Path) -> None:
    cache = disk(tmp_path)
    engine = StepEngine(disk=cache, n_ctx=512)
    run(engine, prompt(1, 100))
    engine.now += 2000
    engine.step()
    cache.close(5)
    assert len(disk(tmp_path)) == 1


def test_others_go_on_while_a_prompt_is_read_from_disk(tmp_path: Path) -> None:
    engine = StepEngine(n_slots=2, n_ctx=1024, disk=disk(tmp_path))
    run(engine, prompt(1, 300))
    stopped(engine)
    cache = disk(tmp_path)
    again = StepEngine(n_slots=2, n_ctx=1024, disk=cache)
    cache.read = lambda entry: never  # type: ignore[method-assign,assignment]
    from concurrent.futures import Future

    never: Future = Future()
    other = again.submit(prompt(2, 20), 30)
    again.step(2)
    waiting = again.submit([*prompt(1, 300), 4], 3)
    again.step(20)
    assert len(again.tokens(other)) > 15 and not again.tokens(waiting)
    again.now += 20_000
    again.run()
    assert again.tokens(waiting) == continuation([*prompt(1, 300), 4], 3)
    assert again.final(waiting).timings.cache_n == 0


@pytest.mark.parametrize("where", [5, 60, -1], ids=["magic", "head", "data"])
def test_a_damaged_file_is_skipped_with_a_warning(tmp_path: Path, where: int, caplog: pytest.LogCaptureFixture) -> None:
    engine = StepEngine(disk=disk(tmp_path), n_ctx=512)
    run(engine, prompt(1, 100))
    stopped(engine)
    (file,) = tmp_path.rglob("*.kv")
    content = bytearray(file.read_bytes())
    content[where] ^= 1
    file.write_bytes(content)
    again = StepEngine(disk=disk(tmp_path), n_ctx=512)
    assert run(again, prompt(1, 100)) == 0
    assert "is skipped" in caplog.text


def test_a_cut_off_file_is_skipped(tmp_path: Path) -> None:
    engine = StepEngine(disk=disk(tmp_path), n_ctx=512)
    run(engine, prompt(1, 100))
    stopped(engine)
    (file,) = tmp_path.rglob("*.kv")
    file.write_bytes(file.read_bytes()[:-10])
    assert len(disk(tmp_path)) == 0


def test_a_folder_that_cannot_be_written_costs_a_warning_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = StepEngine(disk=disk(tmp_path / "cache"), n_ctx=512)
    shutil.rmtree(tmp_path / "cache")
    run(engine, prompt(1, 100))
    stopped(engine)
    assert "the prompt cache cannot be written" in caplog.text


def test_another_models_prompts_are_not_seen(tmp_path: Path) -> None:
    engine = StepEngine(disk=disk(tmp_path), n_ctx=512)
    run(engine, prompt(1, 100))
    stopped(engine)
    assert len(disk(tmp_path, model="1" * 32)) == 0
    assert len(disk(tmp_path)) == 1


def test_prompts_under_an_adapter_are_found_by_its_file(tmp_path: Path) -> None:
    file = tmp_path / "adapter.gguf"
    file.write_bytes(b"an adapter")
    texts = []
    for others in ([], ["x", "y"]):  # the second engine gives the adapter another id
        cache = disk(tmp_path / "cache")
        engine = StepEngine(n_ctx=512, disk=cache)
        cache._identity = engine.identity
        for path in others:
            engine.adapters.add(FakeAdapter(path, 2), 0.0)
        number = engine.adapters.add(FakeAdapter(str(file), 3), 0.0)
        task = engine.submit(prompt(1, 200), 4, lora=[LoraScale(number, 1.0)])
        engine.run()
        texts.append((engine.tokens(task), engine.final(task).timings.cache_n))
        plain = engine.submit(prompt(1, 200), 4)
        engine.run()
        assert engine.tokens(plain) == continuation(prompt(1, 200), 4)
        stopped(engine)
    assert texts[0] == (texts[1][0], 0) and texts[1][1] == 199


def test_the_beginning_before_an_adapter_acts_is_found_without_it(tmp_path: Path) -> None:
    cache = disk(tmp_path / "cache")
    tokens = [*prompt(1, 200), 61, 62, 63, *prompt(2, 97)]
    engine = StepEngine(n_ctx=512, disk=cache)
    cache._identity = engine.identity
    number = engine.adapters.add(FakeAdapter("gone", 3, (61, 62, 63)), 0.0)
    engine.submit(tokens, 4, lora=[LoraScale(number, 1.0)])
    engine.run()
    stopped(engine)
    assert run(StepEngine(n_ctx=512, disk=disk(tmp_path / "cache")), tokens) == 199


def test_the_folder_stays_within_its_limit_and_loses_what_was_used_least(tmp_path: Path) -> None:
    one = snapshot(prompt(1, 100), 10_000)
    limit = int(one.n_bytes * 3.5)
    cache = disk(tmp_path, limit)
    for seed in range(1, 4):
        cache.write(snapshot(prompt(seed, 100), 10_000))
        assert cache._coming and not cache._coming[next(iter(cache._coming))][1].result(5)
    entry, _ = cache.best(one.tokens, PLAIN)
    assert entry is not None and cache.read(entry).result(5) is not None
    cache.write(snapshot(prompt(4, 100), 10_000))
    cache.close(5)
    left = disk(tmp_path, limit)
    kept = [seed for seed in range(1, 5) if left.holds(np.array(prompt(seed, 100), np.int32), PLAIN)]
    assert kept == [1, 3, 4]
    assert sum(file.stat().st_size for file in tmp_path.rglob("*.kv")) <= limit


def test_two_engines_share_a_folder(tmp_path: Path) -> None:
    first, second = disk(tmp_path), disk(tmp_path)
    first.write(snapshot(prompt(1, 100), 1000))
    first.close(5)
    second.look()
    second._writer.submit(int).result(5)
    tokens = np.array(prompt(1, 100), np.int32)
    entry, n = second.best(tokens, PLAIN)
    assert n == 100 and entry is not None
    entry.path.unlink()
    assert second.read(entry).result(5) is None
    assert second.best(tokens, PLAIN) == (None, 0)


def test_a_longer_conversation_replaces_its_beginning(tmp_path: Path) -> None:
    cache = disk(tmp_path)
    cache.write(snapshot(prompt(1, 100), 1000))
    cache._writer.submit(int).result(5)
    cache.write(snapshot(prompt(1, 300), 3000))
    cache.close(5)
    assert [len(file.read_bytes()) > 3000 for file in tmp_path.rglob("*.kv")] == [True]


# ---------------------------------------------------------------- policy


def snapshot(tokens: list[int], n_bytes: int, *, divisible: bool = True, at: tuple[int, ...] = ()) -> Snapshot:
    checkpoints = tuple(Checkpoint(n, np.zeros(1, np.uint8)) for n in at)
    return Snapshot(np.array(tokens, np.int32), PLAIN, np.zeros(n_bytes, np.uint8), checkpoints, divisible)


def test_what_a_new_snapshot_contains_goes() -> None:
    cache = HostCache(ROOMY)
    assert cache.add(snapshot(prompt(1, 100), 10))
    assert cache.add(snapshot(prompt(1, 300), 30))
    assert len(cache) == 1
    assert not cache.add(snapshot(prompt(1, 250), 25))


def test_a_state_with_only_an_end_does_not_stand_for_its_beginning() -> None:
    cache = HostCache(ROOMY)
    cache.add(snapshot(prompt(1, 100), 10, divisible=False))
    cache.add(snapshot(prompt(1, 300), 30, divisible=False))
    assert len(cache) == 2
    cache.add(snapshot([*prompt(1, 300), *prompt(2, 100)], 40, divisible=False, at=(96, 300)))
    assert len(cache) == 1
    assert cache.best(np.array(prompt(1, 200), np.int32), PLAIN)[1] == 96


def test_the_snapshot_used_longest_ago_makes_room() -> None:
    tokens = [prompt(seed, 100) for seed in range(1, 5)]
    cache = HostCache(3 * snapshot(tokens[0], 1000).n_bytes)
    for one in tokens[:3]:
        cache.add(snapshot(one, 1000))
    found, _ = cache.best(np.array(tokens[0], np.int32), PLAIN)
    assert found is not None
    cache.use(found)
    cache.add(snapshot(tokens[3], 1000))
    held = [cache.holds(np.array(one, np.int32), PLAIN) for one in tokens]
    assert held == [True, False, True, True]


def test_what_is_larger_than_the_cache_is_not_taken() -> None:
    assert not HostCache(1000).add(snapshot(prompt(1, 100), 2000))


def test_failing_memory_shrinks_the_cache() -> None:
    cache = HostCache(ROOMY)
    for seed in range(1, 6):
        cache.add(snapshot(prompt(seed, 100), 1000))
    cache.out_of_memory()
    assert len(cache) == 2 and cache.limit < 5 * 1400


def test_the_automatic_limit_is_a_quarter_of_memory_at_most() -> None:
    assert 0 < automatic_limit() <= 8 << 30


def test_snapshots_of_other_adapters_do_not_match() -> None:
    cache = HostCache(ROOMY)
    cache.add(snapshot(prompt(1, 100), 10))
    tokens = np.array(prompt(1, 100), np.int32)
    assert cache.best(tokens, (((0, 1.0),), 0)) == (None, 0)
    assert cache.best(tokens, (((0, 1.0),), 70))[1] == 70


def test_checkpoints_lie_at_messages_and_near_the_end() -> None:
    assert wanted([100, 480, 1900], 2000, 100, 8192) == [250, 480, 750, 1000, 1250, 1500, 1750, 1896, 1900, 1996]
    assert wanted([], 100_000, 512, 8192) == [*range(8192, 98_304, 8192), 98_304, 99_484, 99_996]


def test_the_least_useful_checkpoint_lies_between_near_neighbours() -> None:
    assert least_useful([100, 200, 210, 400], 500) == 1


# ---------------------------------------------------------------- everything at once

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
