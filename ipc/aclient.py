"""The asyncio client of one engine, as the HTTP workers use it."""

import asyncio
from typing import Any, Self

import numpy as np

from ipc.errors import EngineGone, Refused, unavailable
from ipc.link import Curve
from ipc.mailbox import Mailbox, Streamed
from ipc.messages import Control, Embed, Failure, Reply, RowRef, Task, Welcome
from ipc.session import HANG_SECONDS, MAX_OPEN, Session
from ipc.slab import Slab, State

TICK_SECONDS = 0.2
ADMISSION_SECONDS = 30.0
CALL_SECONDS = 10.0


class Stream(Mailbox):
    """The results of one task, in order, `Final` last. Close it in a `finally`: that aborts what still runs.

    Rows named by a result can be read until the stream is closed.
    """

    __slots__ = ("_closed", "_session", "_waiter")

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Streamed:
        while not self.results:
            if self._closed or self.final is not None:
                raise StopAsyncIteration
            await self.wait()
        return self.take()

    async def close(self) -> None:
        """Abort the task unless its Final was seen, and free rows that were not read. Never waits; idempotent."""
        self._closed = True
        self.results.clear()
        self._session.end(self)
        self.wake()

    async def wait(self) -> None:
        """Until something arrives. The engine's end counts: the session then puts a Final here."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class AsyncClient:
    """Connects to an engine, now or whenever it comes (back). Use it inside one event loop."""

    def __init__(
        self,
        address: str,
        slab_path: str = "",
        *,
        curve: Curve | None = None,
        admission_seconds: float = ADMISSION_SECONDS,
        hang_seconds: float = HANG_SECONDS,
        max_open: int = MAX_OPEN,
    ) -> None:
        """`slab_path` lets `state` tell about an engine that still loads; no socket is made before `start`."""
        self._address = address
        self._slab_path = slab_path
        self._curve = curve
        self._admission_seconds = admission_seconds
        self._hang_seconds = hang_seconds
        self._max_open = max_open
        self._live: Session | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._flushing = False

    async def start(self) -> None:
        """Make the sockets in the running loop. The engine need not be there yet."""
        self._loop = asyncio.get_running_loop()
        self._live = Session(
            self._address,
            self._slab_path,
            curve=self._curve,
            hang_seconds=self._hang_seconds,
            max_open=self._max_open,
            after_send=self._read_soon,
        )
        for file, handle in zip(self._live.link.files(), (self._read, self._follow), strict=True):
            self._loop.add_reader(file, handle)
        self._tick()

    async def close(self) -> None:
        """End all streams and calls, and disconnect. Idempotent."""
        session, self._live = self._live, None
        if session is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        for file in session.link.files():
            self._loop.remove_reader(file)
        session.close()

    @property
    def info(self) -> Welcome | None:
        """What the engine serves; None while it is not connected and ready."""
        return self._live.info if self._live else None

    @property
    def slab(self) -> Slab | None:
        """The engine's slab, for its header (`steps`, `load_progress`, `age()`); None when there is no engine."""
        return self._live.slab() if self._live else None

    def state(self) -> State:
        """What the engine is doing; FAILED also when it hangs, LOADING also while it is not there."""
        return self._live.state() if self._live else State.LOADING

    async def ready(self, seconds: float = ADMISSION_SECONDS) -> Welcome:
        """Wait for the engine; raises `EngineGone` when it does not come in time."""
        deadline = self._loop.time() + seconds
        while (info := self.info) is None:
            if self._loop.time() > deadline:
                raise EngineGone(unavailable(f"{self._address}: no engine after {seconds:g} s"))
            await asyncio.sleep(0.01)
        return info

    async def submit(self, task: Task | Embed) -> Stream:
        """Send a task (its id is set here) and wait until it is admitted.

        Raises `Refused` with the engine's error, `EngineGone`, or `Overloaded`.
        """
        session = self._session()
        stream = Stream(session)
        session.open(task, stream)
        try:
            async with asyncio.timeout(self._admission_seconds):
                while stream.admitted is None and not stream.results:
                    await stream.wait()
        except BaseException as error:
            await stream.close()
            if isinstance(error, TimeoutError):
                raise EngineGone(unavailable(f"no answer within {self._admission_seconds:g} s")) from None
            raise
        if stream.admitted is None and stream.final is not None and stream.final.error is not None:
            raise (EngineGone if stream.lost else Refused)(stream.final.error)
        return stream

    async def call(self, control: Control, seconds: float = CALL_SECONDS) -> Reply:
        """Send a control request (its id is set here) and return the reply; raises `Refused` or `EngineGone`."""
        session = self._session()
        stream = Stream(session)
        session.ask(control, stream)
        try:
            async with asyncio.timeout(seconds):
                while stream.reply is None:
                    await stream.wait()
        except TimeoutError:
            raise EngineGone(unavailable(f"no answer within {seconds:g} s")) from None
        finally:
            await stream.close()
        if isinstance(stream.reply, Failure):
            raise (EngineGone if stream.lost else Refused)(stream.reply.error)
        return stream.reply

    def row(self, ref: RowRef) -> np.ndarray[Any, np.dtype[np.float32]]:
        """A copy of a vector; its slab row is given back. Raises `StaleRow` when the row was reused."""
        session = self._session()
        if ref.generation and not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        return session.row(ref)

    def _session(self) -> Session:
        if self._live is None:
            raise EngineGone(unavailable("the client is not started"))
        return self._live

    def _read_soon(self) -> None:
        self._loop.call_soon(self._read)

    def _read(self) -> None:
        if self._live is not None and self._live.read():
            self._loop.call_soon(self._read)

    def _follow(self) -> None:
        if self._live is not None:
            self._live.follow()

    def _tick(self) -> None:
        if self._live is not None:
            self._live.tick()
            self._read()
            self._follow()
            self._timer = self._loop.call_later(TICK_SECONDS, self._tick)

    def _flush(self) -> None:
        self._flushing = False
        if self._live is not None:
            self._live.flush()
