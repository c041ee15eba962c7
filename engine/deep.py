"""Room for recursion: llguidance follows each chain of rules or references to its end, past a thread's usual stack."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

STACK = 512 << 20  # bytes of address space of a thread; 10,000 schemas in a chain take up to 40 KB each

P = ParamSpec("P")
T = TypeVar("T")


class DeepPool(ThreadPoolExecutor):
    """Threads with a deep stack."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        before = threading.stack_size(STACK)  # of threads that start from here on
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            threading.stack_size(before)


def deeply(fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of a call on a deep thread of its own."""
    with DeepPool(1) as pool:
        return pool.submit(fn, *args, **kwargs).result()
