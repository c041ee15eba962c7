"""The engine's loop: receive, admit, place, schedule, decode, flush. One thread owns all of it."""

import logging
from dataclasses import dataclass

import numpy as np

from engine.admission import Admission, Refusal, invalid
from engine.archive import Archive
from engine.checkpoints import Checkpoints
from engine.compiler import Compiling
from engine.controls import Controls
from engine.decoder import Decoder
from engine.embedder import Embedder
from engine.grammar import Grammar, GrammarError
from engine.outbox import Outbox
from engine.placement import Placement
from engine.scheduler import Scheduler
from engine.sequences import Sequences
from engine.slot import Slot
from engine.speculation import Speculation
from ipc.messages import Abort, Admitted, Bye, Embed, Error, Final, Free, Hello, Task, ToEngine, Welcome
from ipc.server import Server
from ipc.slab import Slab, State

log = logging.getLogger(__name__)

_IDLE_MS = 500
_OTHERS_MS = 2  # another thread compiles a constraint or reads a file, and nothing else is to be done


@dataclass(slots=True, eq=False)
class _Compiling:
    """A task whose constraint is being compiled on another thread."""

    client: bytes
    task: Task
    prompt: np.ndarray
    grammar: Compiling

    @property
    def key(self) -> tuple[bytes, int]:
        return self.client, self.task.id


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

    def __post_init__(self) -> None:
        self._compiling: list[_Compiling] = []
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
        self._admit_compiled()
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
        return len(self.sequences) + len(self._compiling) + (len(self.embedder) if self.embedder is not None else 0)

    @property
    def _n_waiting(self) -> int:
        """Tasks for which no slot is free; below zero, so many slots are free."""
        return len(self.sequences.queue) + len(self._compiling) - sum(slot.idle for slot in self.slots)

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
            if (client, task.id) in self.sequences:
                raise invalid(f"task id {task.id} is in use")
            prompt = self.admission.check(task, self._n_waiting)
            future = self.admission.compile(task)
            if future is not None:
                self._compiling.append(_Compiling(client, task, prompt, future))
            else:
                self._enqueue(client, task, prompt, None)
        except Refusal as refusal:
            self._refuse(client, task.id, refusal.error)

    def _admit_compiled(self) -> None:
        for entry in [entry for entry in self._compiling if entry.grammar.done()]:
            self._compiling.remove(entry)
            try:
                self._enqueue(entry.client, entry.task, entry.prompt, entry.grammar.result())
            except GrammarError as problem:
                self._refuse(entry.client, entry.task.id, invalid(str(problem)).error)
            except Refusal as refusal:
                self._refuse(entry.client, entry.task.id, refusal.error)
            except Exception as problem:  # a fault of the compiler must not end the engine
                log.exception("a constraint could not be compiled")
                text = f"the constraint could not be compiled: {problem}"
                self._refuse(entry.client, entry.task.id, Error(500, "server_error", text))

    def _enqueue(self, client: bytes, task: Task, prompt: np.ndarray, grammar: Grammar | None) -> None:
        sequence = self.admission.sequence(client, task, prompt, grammar)
        self.outbox.add(client, Admitted(task.id, len(self.sequences.queue)))
        self.sequences.add(sequence)

    def _refuse(self, client: bytes, task_id: int, error: Error) -> None:
        self.outbox.add(client, Final(task_id, "error", error))

    def _abort(self, key: tuple[bytes, int]) -> None:
        for entry in [entry for entry in self._compiling if entry.key == key]:
            self._compiling.remove(entry)
            self.outbox.add(entry.client, Final(entry.task.id, "abort"))
        self.sequences.abort(key)
        if self.embedder is not None:
            self.embedder.abort(key)

    def _flush(self) -> None:
        for client in self.outbox.flush():
            self._drop(client)

    def _drop(self, client: bytes) -> None:
        """The client is gone or frozen: nobody waits for its results."""
        for key in [entry.key for entry in self._compiling if entry.client == client]:
            self._abort(key)
        for sequence in self.sequences.of_client(client):
            self._abort(sequence.key)
        if self.embedder is not None:
            self.embedder.drop(client)
        self.outbox.forget(client)

    def _end_all(self, error: Error) -> None:
        self.slab.state = State.STOPPING
        for entry in self._compiling:
            self._refuse(entry.client, entry.task.id, error)
        for sequence in self.sequences.all():
            self.sequences.fail(sequence, error)
        if self.embedder is not None:
            self.embedder.fail_all(error)
        self.outbox.flush()
        self.admission.close()
        self.controls.close()
        self.archive.close()
