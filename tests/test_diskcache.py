"""The prompt cache on disk: restarts, damage, limits, neighbours."""

import shutil
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from engine.adapters import Adapters
from engine.diskcache import DiskCache
from engine.identity import Identity
from engine.regime import PLAIN
from ipc.messages import LoraScale
from tests.fake_context import FakeContext, continuation
from tests.step_engine import FakeAdapter, StepEngine
from tests.test_cache_policy import ROOMY, prompt, snapshot
from tests.test_caches import KINDS, run

pytestmark = pytest.mark.usefixtures("lib")


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
