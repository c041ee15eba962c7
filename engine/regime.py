"""Under which adapters KV was, or will be, computed. Pure."""

Key = tuple[tuple[int, float], ...]  # (adapter id, scale) by id, without zeros
Regime = tuple[Key, int]  # the adapters, and the position from which they act
PLAIN: Regime = ((), 0)
Named = tuple[tuple[tuple[object, float], ...], int]  # a regime whose adapters may have other names than ids


def common_validity(a: Named, b: Named, n: int) -> int:
    """How many of `n` leading positions are computed alike under `a` and `b`."""
    if a == b:
        return n
    plain_a, plain_b = (n if not key else start for key, start in (a, b))
    return min(n, plain_a, plain_b)


def acting(regime: Regime, position: int) -> Key:
    """The adapters that act at `position`."""
    key, start = regime
    return key if position >= start else ()
