"""What the caches keep, find and drop: decisions alone."""

import numpy as np

from engine.checkpoints import least_useful, wanted
from engine.hostcache import HostCache, automatic_limit
from engine.memory import Move
from engine.regime import PLAIN
from engine.reuse import moves_after
from engine.snapshot import Checkpoint, Snapshot

ROOMY = 1 << 24


def prompt(seed: int, n: int) -> list[int]:
    """`n` tokens that share no beginning with those of another seed."""
    return [1 + (seed * 7 + i * (seed + 3)) % 60 for i in range(n)]


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


def test_stretches_are_found_as_the_contract_says() -> None:
    held = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], np.int32)
    wanted_tokens = np.array([1, 2, 5, 6, 7, 10, 11], np.int32)
    assert moves_after(held, wanted_tokens, 2, 2) == [Move(4, 2, 3), Move(9, 5, 2)]
    assert moves_after(held, wanted_tokens, 2, 3) == [Move(4, 2, 3)]
    assert moves_after(held, wanted_tokens, 2, 4) == []
