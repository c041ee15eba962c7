"""The engine's clock."""

import time


def now_ms() -> float:
    """Monotonic milliseconds."""
    return time.monotonic() * 1e3
