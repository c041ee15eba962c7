"""The engine's clients: `Client` for scripts and internal services, `AsyncClient` for asyncio programs.

Needs msgspec, pyzmq and numpy only. `docs/zeromq.md` describes what they exchange with the engine.
"""

import time
from collections.abc import Callable, Generator
from typing import Any, Self

import numpy as np

from ipc.aclient import AsyncClient, Stream
from ipc.errors import EngineError, EngineGone, Overloaded, Refused, unavailable
from ipc.link import Curve
from ipc.mailbox import Mailbox, Streamed
from ipc.messages import Control, Embed, Failure, Reply, RowRef, Task, Welcome
from ipc.session import HANG_SECONDS, MAX_OPEN, Session
from ipc.slab import Slab, StaleRow, State

__all__ = [
    "AsyncClient",
    "Client",
    "Curve",
    "EngineError",
    "EngineGone",
    "Overloaded",
    "Refused",
    "Results",
    "StaleRow",
    "State",
    "Stream",
]

TICK_MS = 200


class Client:
    """A connection to an engine for one thread. Several tasks may be open; reading one of them reads for all."""

    def __init__(
        self,
        address: str,
        slab_path: str = "",
        *,
        curve: Curve | None = None,
        admission_seconds: float = 30.0,
        hang_seconds: float = HANG_SECONDS,
        max_open: int = MAX_OPEN,
    ) -> None:
        self._address = address
        self._admission_seconds = admission_seconds
        self._session = Session(address, slab_path, curve=curve, hang_seconds=hang_seconds, max_open=max_open)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Abort what is open and disconnect."""
        self._session.close()

    @property
    def info(self) -> Welcome | None:
        """What the engine serves; None while it is not connected and ready."""
        self._session.pump()
        return self._session.info

    @property
    def slab(self) -> Slab | None:
        """The engine's slab, for its header (`steps`, `load_progress`, `age()`); None when there is no engine."""
        return self._session.slab()

    def state(self) -> State:
        """What the engine is doing; FAILED also when it hangs, LOADING also while it is not there."""
        self._session.pump()
        return self._session.state()

    def ready(self, seconds: float = 30.0) -> Welcome:
        """Wait for the engine; raises `EngineGone` when it does not come in time."""
        deadline = time.monotonic() + seconds
        while self._session.info is None:
            if time.monotonic() > deadline:
                raise EngineGone(unavailable(f"{self._address}: no engine after {seconds:g} s"))
            self.pump(10)
        return self._session.info

    def submit(self, task: Task | Embed) -> "Results":
        """Send a task (its id is set here) and wait until it is admitted.

        Raises `Refused` with the engine's error, `EngineGone`, or `Overloaded`.
        """
        self._session.pump()
        results = Results(self)
        self._session.open(task, results)
        try:
            self._wait(self._admission_seconds, lambda: results.admitted is not None or bool(results.results))
        except BaseException:
            results.close()
            raise
        if results.admitted is None and results.final is not None and results.final.error is not None:
            raise (EngineGone if results.lost else Refused)(results.final.error)
        return results

    def generate(self, task: Task | Embed) -> Generator[Streamed, None, None]:
        """The results of a task, `Final` last; leaving the loop early aborts it."""
        with self.submit(task) as results:
            yield from results

    def call(self, control: Control, seconds: float = 10.0) -> Reply:
        """Send a control request (its id is set here) and return the reply; raises `Refused` or `EngineGone`."""
        self._session.pump()
        results = Results(self)
        self._session.ask(control, results)
        try:
            self._wait(seconds, lambda: results.reply is not None)
        finally:
            results.close()
        assert results.reply is not None
        if isinstance(results.reply, Failure):
            raise (EngineGone if results.lost else Refused)(results.reply.error)
        return results.reply

    def row(self, ref: RowRef) -> np.ndarray[Any, np.dtype[np.float32]]:
        """A copy of a vector; its slab row is given back. Raises `StaleRow` when the row was reused."""
        return self._session.row(ref)

    def pump(self, timeout_ms: int = TICK_MS) -> None:
        """Wait for messages, at most `timeout_ms`, and handle them."""
        self._session.tick()
        self._session.link.poll(timeout_ms)
        self._session.pump()

    def end(self, results: "Results") -> None:
        """Give up a task; `Results.close` calls it."""
        self._session.end(results)

    def _wait(self, seconds: float, arrived: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while not arrived():
            if time.monotonic() > deadline:
                raise EngineGone(unavailable(f"no answer within {seconds:g} s"))
            self.pump()


class Results(Mailbox):
    """The results of one task, in order, `Final` last. Rows can be read until it is closed."""

    __slots__ = ("_client", "_closed")

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Streamed:
        while not self.results:
            if self._closed or self.final is not None:
                raise StopIteration
            self._client.pump()
        return self.take()

    def close(self) -> None:
        """Abort the task unless its Final was seen, and free rows that were not read. Idempotent."""
        self._closed = True
        self.results.clear()
        self._client.end(self)
