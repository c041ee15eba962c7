"""Reads embedding batches: in one context, or in several side by side, each with a thread of its own.

Several contexts of one thread each do more than one context of several threads: these wait for each other some hundred
times in a batch, and a core that another program takes for a moment makes all of them wait.
"""

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.batch import Batch
from engine.context import Context
from engine.jobs import Part
from engine.llama import PoolingType

Floats = npt.NDArray[np.float32]

_FREE_SECONDS = 0.002  # a lane is free for what may arrive: look again soon
_BUSY_SECONDS = 0.5  # all are at work: until the first is done


@dataclass(slots=True)
class Read:
    """A batch that was read. `vectors` are views of each input's vectors, good until its lane starts again."""

    parts: list[Part]
    vectors: list[list[Floats]]
    code: int  # libllama's; not 0: it failed, and there are no vectors
    ms: float  # of all threads


class Lane:
    """One context."""

    def __init__(self, context: Context, n_threads: int) -> None:
        self.context = context
        self.n_threads = n_threads
        self.batch = Batch(context.n_ubatch)

    def use_threads(self, n: int) -> None:
        """Compute with `n` threads from the next batch on."""
        if n != self.n_threads:
            self.n_threads = n
            self.context.set_threads(n, n)

    def read(self, parts: list[Part], share: float) -> Read:
        """Read `parts` as one batch with `share` of all threads."""
        context, batch, begun = self.context, self.batch, time.perf_counter()
        batch.clear()
        rows = [batch.add(part.tokens, 0, sequence, "all") for sequence, part in enumerate(parts)]
        code = context.decode(batch) if context.has_memory else context.encode(batch)
        vectors = [] if code else [self._vectors(row, i, len(parts[i].tokens)) for i, row in enumerate(rows)]
        if context.has_memory:
            context.clear()
        return Read(parts, vectors, code, 1e3 * (time.perf_counter() - begun) * share)

    def _vectors(self, row: int, sequence: int, n: int) -> list[Floats]:
        """One, or without pooling one per token."""
        if self.context.pooling is PoolingType.NONE:
            return [self.context.embeddings(row + i) for i in range(n)]
        return [self.context.embeddings_seq(sequence)]


class Lanes:
    """All lanes; `n_threads` are shared between those at work. A single one reads in the caller's own thread."""

    def __init__(self, contexts: Sequence[Context], n_threads: int) -> None:
        self._free = [Lane(context, n_threads) for context in contexts]
        self._n_threads = n_threads
        self._pool = ThreadPoolExecutor(len(contexts), "lane") if len(contexts) > 1 else None
        self._running: dict[Future[Read], Lane] = {}
        self._read: list[Read] = []  # of the single lane
        self.count = len(contexts)

    @property
    def free(self) -> int:
        """Lanes that have nothing to do."""
        return len(self._free)

    def start(self, parts: list[Part], *, last: bool) -> None:
        """Read `parts` in a free lane. `last`: nothing else is waiting, so that it may use the idle ones' threads."""
        if self._pool is None:
            self._read.append(self._free[0].read(parts, 1.0))
            return
        lane = self._free.pop()
        shares = len(self._running) + 1 if last else self.count
        lane.use_threads(max(1, self._n_threads // shares))
        self._running[self._pool.submit(lane.read, parts, lane.n_threads / self._n_threads)] = lane

    def finished(self) -> list[Read]:
        """What has been read; waits a moment for the next one if nothing has. Its lanes are free again then."""
        if self._pool is None:
            read, self._read = self._read, []
            return read
        done, _ = wait(self._running, _FREE_SECONDS if self._free else _BUSY_SECONDS, FIRST_COMPLETED)
        self._free += [self._running.pop(future) for future in done]
        return [future.result() for future in done]

    def close(self) -> None:
        """Wait until no lane is at work any more."""
        if self._pool is not None:
            self._pool.shutdown()
