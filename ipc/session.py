"""What a client knows of its engine: open tasks and calls, slab rows, whether it is alive.

It sends and reads without ever waiting; `AsyncClient` and `Client` add the two ways to wait.
"""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from ipc.errors import EngineGone, Overloaded, unavailable
from ipc.link import Curve, Link
from ipc.mailbox import Mailbox, rows_of
from ipc.messages import (
    PROTOCOL,
    Abort,
    Bye,
    Control,
    Embed,
    Failure,
    Final,
    Free,
    Hello,
    Reply,
    Result,
    RowRef,
    Step,
    Task,
    Welcome,
    decode_to_client,
)
from ipc.slab import Slab, SlabError, State, inode

log = logging.getLogger(__name__)

HANG_SECONDS = 5.0
MAX_OPEN = 1024
MAX_UNREAD = 256 << 20  # bytes of one task's output that wait for a reader who never comes
BATCH = 64  # messages read at a time, rows freed at a time


class Session:
    """State of one connection. Every open task gets exactly one `Final`, made here when the engine cannot."""

    def __init__(
        self,
        address: str,
        slab_path: str = "",
        *,
        curve: Curve | None = None,
        hang_seconds: float = HANG_SECONDS,
        max_open: int = MAX_OPEN,
        after_send: Callable[[], None] = lambda: None,
    ) -> None:
        self.info: Welcome | None = None
        self.link = Link(address, curve, after_send)
        self._slab_path = slab_path
        self._slab: Slab | None = None
        self._use_slab = address.startswith("ipc://")
        self._hang_seconds = hang_seconds
        self._max_open = max_open
        self._last_id = 0
        self._tasks: dict[int, Mailbox] = {}
        self._calls: dict[int, Mailbox] = {}
        self._given_up: list[int] = []  # tasks whose Abort could not be sent yet
        self._held: set[tuple[int, int]] = set()  # rows that arrived and were not freed
        self._to_free: list[tuple[int, int]] = []
        self._greeting = False  # connected, Hello still to be sent

    def close(self) -> None:
        """End everything that is open and disconnect."""
        self._lose("the client was closed")
        self.link.send(Bye())
        self.info, self._greeting = None, False
        self.link.close()
        self._detach()

    # tasks and calls

    def open(self, task: Task | Embed, mailbox: Mailbox) -> None:
        """Send a task under a fresh id; its results go to `mailbox`. Raises `Overloaded` or `EngineGone`."""
        if len(self._tasks) >= self._max_open:
            raise Overloaded(unavailable(f"{self._max_open} requests are open already; try again later"))
        self._submit(task, mailbox)
        self._tasks[mailbox.id] = mailbox

    def ask(self, control: Control, mailbox: Mailbox) -> None:
        """Send a control request under a fresh id; the reply goes to `mailbox`. Raises `EngineGone`."""
        self._submit(control, mailbox)
        self._calls[mailbox.id] = mailbox

    def end(self, mailbox: Mailbox) -> None:
        """Give up what is still open of a mailbox and free its rows. Harmless when nothing is."""
        self._calls.pop(mailbox.id, None)
        if self._tasks.pop(mailbox.id, None) is not None:
            self._given_up.append(mailbox.id)
        for ref in mailbox.refs:
            self.free(ref)
        mailbox.refs.clear()
        self.flush()

    def _submit(self, message: Task | Embed | Control, mailbox: Mailbox) -> None:
        problem = self.problem()
        if problem:
            raise EngineGone(unavailable(problem))
        self._last_id += 1
        message.id = mailbox.id = self._last_id
        if not self.link.send(message):
            raise EngineGone(unavailable("the engine does not take requests"))

    # rows

    def row(self, ref: RowRef) -> np.ndarray[Any, np.dtype[np.float32]]:
        """A copy of the vector; its slab row is given back. Raises `StaleRow`, or `SlabError` without a slab."""
        if ref.generation == 0:
            return np.frombuffer(ref.inline, "<f4")
        if self._slab is None:
            raise SlabError("the slab of this row is gone with its engine")
        try:
            return self._slab.get(ref)
        finally:
            self.free(ref)

    def free(self, ref: RowRef) -> None:
        """Give a row back, once; sent in batches by `flush`, also when enough have gathered."""
        key = (ref.row, ref.generation)
        if key in self._held:
            self._held.discard(key)
            self._to_free.append(key)
            if len(self._to_free) >= BATCH:
                self.flush()

    # the engine's health

    def state(self) -> State:
        """What the engine is doing; FAILED also when it hangs, LOADING also when it is not there (yet)."""
        slab = self.slab()
        if slab is None:
            return State.READY if self.info and not self._slab_path else State.LOADING
        if slab.state in (State.READY, State.DRAINING):
            if slab.age() > self._hang_seconds:
                return State.FAILED
            if self.info is None:
                return State.LOADING
        return slab.state

    def slab(self) -> Slab | None:
        """The slab of the engine that runs now, None when there is none."""
        if self._slab_path and (self._slab is None or inode(self._slab_path) != self._slab.inode):
            self._detach()
            try:
                self._slab = Slab.attach(self._slab_path)
            except SlabError as error:
                log.debug("%s", error)
        return self._slab

    def problem(self) -> str:
        """Why a request cannot be sent now, "" when it can."""
        if self.info is None:
            return "Loading model" if self.state() is State.LOADING else "the engine is not available"
        if self._slab is not None and self._slab.state is State.DRAINING:
            return "the server is shutting down"
        return "the engine hangs" if self._hangs() else ""

    def _hangs(self) -> bool:
        slab = self._slab
        return slab is not None and slab.state in (State.READY, State.DRAINING) and slab.age() > self._hang_seconds

    # reading

    def pump(self) -> None:
        """Handle messages and changes of the connection that are there."""
        self.read()
        self.follow()

    def read(self) -> bool:
        """Handle messages that have arrived; True when there may be more."""
        frames = self.link.frames(BATCH)
        for frame in frames:
            self._receive(frame)
        self.flush()
        return len(frames) == BATCH

    def follow(self) -> None:
        """Handle changes of the connection."""
        for connected in self.link.changes():
            self._greeting = connected
            if not connected:
                self.info = None
                self._forget("the engine is gone")
        self.flush()

    def tick(self) -> None:
        """End all tasks of an engine that hangs, and send what could not be sent. Call it a few times a second."""
        if (self._tasks or self._calls) and self._hangs():
            self._lose("the engine hangs")
        self.flush()

    def flush(self) -> None:
        """Send Hello, Aborts and Frees; what the link does not take now stays for the next time."""
        if self._greeting:
            self._greeting = not self.link.send(Hello(slab=self._use_slab))
        if self.info is None:
            self._given_up.clear()  # an engine that comes (back) knows nothing of them
            return
        while self._given_up and self.link.send(Abort(self._given_up[-1])):
            self._given_up.pop()
        if self._to_free and self.link.send(Free(self._to_free)):
            self._to_free = []

    def _receive(self, frame: bytes) -> None:
        try:
            message = decode_to_client(frame)
        except Exception as error:  # an engine of another version; the tasks' deadlines hold
            log.error("message from the engine dropped: %s", error)
            return
        if isinstance(message, Step):
            for result in message.results:
                self._deliver(result)
        elif isinstance(message, Welcome):
            self._welcome(message)
        else:
            self._answer(message)

    def _deliver(self, result: Result) -> None:
        mailbox = self._tasks.get(result.id)
        for ref in rows_of(result):
            if ref.generation:
                self._held.add((ref.row, ref.generation))
                if mailbox is not None:
                    mailbox.refs.append(ref)
                else:
                    self.free(ref)
        if mailbox is None:  # given up before
            return
        if isinstance(result, Final):
            del self._tasks[result.id]
        mailbox.put(result)
        if mailbox.unread > MAX_UNREAD:
            self._abandon(mailbox, "the output was not read")

    def _answer(self, reply: Reply) -> None:
        mailbox = self._calls.pop(reply.id, None)
        if mailbox is not None:
            mailbox.answer(reply)

    def _welcome(self, welcome: Welcome) -> None:
        """The engine is ready and holds nothing of ours: either we have just said Hello or it lost patience with us."""
        self._forget("the engine has dropped this client's requests")
        if welcome.protocol != PROTOCOL:
            log.error("the engine speaks protocol %d, this client %d", welcome.protocol, PROTOCOL)
            return
        if welcome.slab and self._use_slab:
            self._slab_path = welcome.slab
            if self.slab() is None:
                log.warning("slab %s cannot be mapped; vectors travel inside messages", welcome.slab)
                self._slab_path, self._use_slab, self._greeting = "", False, True
                return
        self.info = welcome

    # giving up

    def _forget(self, reason: str) -> None:
        """The engine holds no tasks and no rows of this client any more."""
        self._held.clear()
        self._to_free.clear()
        self._lose(reason)

    def _lose(self, reason: str) -> None:
        """End every open task and call with a 503."""
        for mailbox in list(self._tasks.values()):
            self._abandon(mailbox, reason)
        for mailbox in list(self._calls.values()):
            mailbox.lost = True
            self._answer(Failure(mailbox.id, unavailable(reason)))

    def _abandon(self, mailbox: Mailbox, reason: str) -> None:
        del self._tasks[mailbox.id]
        self._given_up.append(mailbox.id)
        mailbox.lost = True
        mailbox.put(Final(mailbox.id, "error", unavailable(reason)))

    def _detach(self) -> None:
        if self._slab is not None:
            self._slab.close()
            self._slab = None
