"""The engine's loop: receive, admit, place, schedule, decode, flush. One thread owns all of it."""

import logging
from dataclasses import dataclass

import numpy as np

from engine.admission import Admission, Refusal, invalid
from engine.archive import Archive
from engine.checkpoints import Checkpoints
from engine.controls import Controls
from engine.decoder import Decoder
from engine.embedder import Embedder
from engine.outbox import Outbox
from engine.placement import Placement
from engine.preparation import Preparation
from engine.scheduler import Scheduler
from engine.sequences import Sequences
from engine.slot import Slot
from engine.speculation import Speculation
from engine.threads import Threads
from ipc.messages import Abort, Admitted, Bye, Embed, Error, Final, Free, Hello, Task, ToEngine, Welcome
from ipc.server import Server
from ipc.slab import Slab, State

log = logging.getLogger(__name__)

_IDLE_MS = 500
_OTHERS_MS = 2  # another thread compiles a constraint or reads a file, and nothing else is to be done


@dataclass(slots=True, eq=False)
class _Preparing:
    """A task for which another thread is making something."""

    client: bytes
    task: Task
    prompt: np.ndarray
    preparation: Preparation


@dataclass(eq=False)
class Engine:
    """Holds the parts together; each of them owns its own state."""

    welcome: Welcome
    server: Server
    slab: Slab
    slots: list[Slot]
    admission: Admission
    sequences: Sequences
    placement: Placement
    archive: Archive
    checkpoints: Checkpoints
    scheduler: Scheduler
    speculation: Speculation
    decoder: Decoder
    embedder: Embedder | None
    controls: Controls
    outbox: Outbox
    threads: Threads | None = None

    def __post_init__(self) -> None:
        self._preparing: dict[tuple[bytes, int], _Preparing] = {}
        self._stopping = False
        self._evaluates = False  # the last step had tokens to evaluate

    def run(self) -> None:
        """Serve until `stop`; every task still open then ends in an error."""
        while not self._stopping:
            self.step()
        self._end_all(Error(503, "unavailable_error", "the engine is shutting down"))

    def stop(self) -> None:
        """Leave `run` after the current step. Safe in a signal handler."""
        self._stopping = True

    def step(self) -> None:
        self._receive()
        self._admit_prepared()
        self.placement.expire()
        self.placement.start_queued()
        self.placement.join_waiting()
        self.archive.tidy()
        self.checkpoints.take(self.slots)
        self.decoder.shift_full()
        self.speculation.propose(self.slots)
        chunks = self.scheduler.plan(self.slots)
        self._evaluates = bool(chunks)
        if chunks:
            self.decoder.step(chunks)
        if self.threads is not None:
            adapt = self.threads.adapt if chunks else self.threads.rest
            adapt()
        if self.embedder is not None:
            self.embedder.step(self.scheduler.room_beside(chunks), shared=bool(chunks))
        self.controls.run_deferred()
        self._flush()
        if not self._n_open:
            self.archive.rest()

    def _receive(self) -> None:
        if self.server.poll(self._patience()):
            for client, message in self.server.receive():
                self._dispatch(client, message)
        self.slab.steps += 1
        self.slab.active = self._n_open

    def _patience(self) -> int:
        """How long the loop may sleep on its socket, in milliseconds."""
        if self._evaluates or (self.embedder is not None and len(self.embedder)):
            return 0
        return _OTHERS_MS if self._n_open or self.controls.busy else _IDLE_MS

    @property
    def _n_open(self) -> int:
        return len(self.sequences) + len(self._preparing) + (len(self.embedder) if self.embedder is not None else 0)

    @property
    def _n_waiting(self) -> int:
        """Tasks for which no slot is free; below zero, so many slots are free."""
        return len(self.sequences.queue) + len(self._preparing) - sum(slot.idle for slot in self.slots)

    def _dispatch(self, client: bytes, message: ToEngine) -> None:
        match message:
            case Task():
                self._admit(client, message)
            case Abort():
                self._abort((client, message.id))
            case Free():
                for row, generation in message.rows:
                    self.slab.free(row, generation)
            case Hello():
                self._drop(client)
                self.server.send(client, self.welcome)
            case Bye():
                self._drop(client)
            case Embed():
                self._embed(client, message)
            case _:
                self.controls.handle(client, message)

    def _embed(self, client: bytes, task: Embed) -> None:
        if self.embedder is None:
            self._refuse(client, task.id, Error(501, "not_supported_error", "embeddings are not enabled"))
        else:
            self.embedder.admit(client, task)

    def _admit(self, client: bytes, task: Task) -> None:
        try:
            key = client, task.id
            if key in self.sequences or key in self._preparing:
                raise invalid(f"task id {task.id} is in use")
            prompt = self.admission.check(task, self._n_waiting)
            self._preparing[key] = _Preparing(client, task, prompt, self.admission.prepare(task))
        except Refusal as refusal:
            self._refuse(client, task.id, refusal.error)

    def _admit_prepared(self) -> None:
        for key in [key for key, entry in self._preparing.items() if entry.preparation.done()]:
            entry = self._preparing.pop(key)
            try:
                self._enqueue(entry)
            except Refusal as refusal:
                self._refuse(entry.client, entry.task.id, refusal.error)
            except Exception as problem:  # a fault of a compiler must not end the engine
                log.exception("a task could not be prepared")
                text = f"the task could not be prepared: {problem}"
                self._refuse(entry.client, entry.task.id, Error(500, "server_error", text))

    def _enqueue(self, entry: _Preparing) -> None:
        sequence = self.admission.sequence(entry.client, entry.task, entry.prompt, entry.preparation)
        self.outbox.add(entry.client, Admitted(entry.task.id, len(self.sequences.queue)))
        self.sequences.add(sequence)

    def _refuse(self, client: bytes, task_id: int, error: Error) -> None:
        self.outbox.add(client, Final(task_id, "error", error))

    def _abort(self, key: tuple[bytes, int]) -> None:
        if self._preparing.pop(key, None) is not None:
            client, task_id = key
            self.outbox.add(client, Final(task_id, "abort"))
        self.sequences.abort(key)
        if self.embedder is not None:
            self.embedder.abort(key)

    def _flush(self) -> None:
        for client in self.outbox.flush():
            self._drop(client)

    def _drop(self, client: bytes) -> None:
        """The client is gone or frozen: nobody waits for its results."""
        for key in [key for key in self._preparing if key[0] == client]:
            self._abort(key)
        for sequence in self.sequences.of_client(client):
            self._abort(sequence.key)
        if self.embedder is not None:
            self.embedder.drop(client)
        self.outbox.forget(client)

    def _end_all(self, error: Error) -> None:
        self.slab.state = State.STOPPING
        for client, task_id in self._preparing:
            self._refuse(client, task_id, error)
        for sequence in self.sequences.all():
            self.sequences.fail(sequence, error)
        if self.embedder is not None:
            self.embedder.fail_all(error)
        self.outbox.flush()
        self.admission.close()
        self.controls.close()
        self.archive.close()
