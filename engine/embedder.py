"""Turns inputs into vectors, many short ones in one batch, in a context of their own beside text generation."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine.batch import Batch
from engine.context import Context
from engine.llama import PoolingType
from engine.metrics import Metrics
from engine.outbox import Outbox
from engine.times import now_ms
from ipc.messages import Admitted, Embed, Error, Final, RowRef, Timings, Vectors
from ipc.slab import Slab

log = logging.getLogger(__name__)

Ints = npt.NDArray[np.int32]


@dataclass(slots=True, eq=False)
class Job:
    """One `Embed` task: arrays, not an object per input. `order` lists the inputs, shortest first."""

    client: bytes
    task: Embed
    tokens: Ints
    lengths: Ints
    starts: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]
    arrived: float
    n_taken: int = 0  # of `order`: in a batch already
    started: float = field(default=0.0)

    @property
    def key(self) -> tuple[bytes, int]:
        return self.client, self.task.id

    @property
    def waiting(self) -> bool:
        return self.n_taken < len(self.order)

    def length(self) -> int:
        """Tokens of the next input."""
        return int(self.lengths[self.order[self.n_taken]])

    def take(self) -> tuple[int, Ints]:
        """The next input: its index and its tokens."""
        index = int(self.order[self.n_taken])
        self.n_taken += 1
        start = int(self.starts[index])
        return index, self.tokens[start : start + int(self.lengths[index])]


class Embedder:
    """Jobs take turns, input by input, so that a small one is never behind a large one."""

    def __init__(
        self,
        context: Context,
        *,
        n_vocab: int,
        slab: Slab,
        outbox: Outbox,
        metrics: Metrics,
        clock: Callable[[], float] = now_ms,
    ) -> None:
        self._context = context
        self._batch = Batch(context.n_ubatch)
        self._n_vocab = n_vocab
        self._slab = slab
        self._outbox = outbox
        self._metrics = metrics
        self._clock = clock
        self._jobs: dict[tuple[bytes, int], Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def limit(self) -> int:
        """Tokens of the longest input that can be read."""
        return self._context.n_ubatch

    def admit(self, client: bytes, task: Embed) -> None:
        """Take a job, or refuse it with an error that names the bad input."""
        tokens, lengths = np.frombuffer(task.tokens, "<i4"), np.frombuffer(task.lengths, "<i4")
        error = self._error((client, task.id), tokens, lengths)
        if error is not None:
            self._outbox.add(client, Final(task.id, "error", error))
            return
        starts = np.concatenate([[0], np.cumsum(lengths[:-1], dtype=np.int64)])
        order = np.argsort(lengths, kind="stable")
        job = Job(client, task, tokens, lengths, starts, order, self._clock())
        self._jobs[job.key] = job
        self._outbox.add(client, Admitted(task.id))

    def abort(self, key: tuple[bytes, int]) -> None:
        """End a job whose client does not want it any more; unknown keys are fine."""
        job = self._jobs.get(key)
        if job is not None:
            self._metrics.aborted()
            self._end(job, "abort")

    def drop(self, client: bytes) -> None:
        """The client is gone."""
        for job in [job for job in self._jobs.values() if job.client == client]:
            self.abort(job.key)

    def fail_all(self, error: Error) -> None:
        for job in list(self._jobs.values()):
            self._end(job, "error", error)

    def step(self, room: int) -> None:
        """Read one batch of about `room` tokens (at least one input) and send its vectors."""
        if not self._jobs:
            return
        begun = self._clock()
        parts = self._pack(max(1, min(room, self._context.n_ubatch)))
        if not parts:
            return
        code = self._context.decode(self._batch) if self._context.has_memory else self._context.encode(self._batch)
        self._metrics.prompt_done(self._batch.n_tokens, 0, self._clock() - begun)
        if code != 0:
            log.error("embedding batch failed with code %d", code)
            for job in parts:
                self._end(job, "error", Error(500, "server_error", "Compute error."))
            return
        for job, inputs in parts.items():
            self._send(job, inputs)
        if self._context.has_memory:
            self._context.clear()

    def _error(self, key: tuple[bytes, int], tokens: Ints, lengths: Ints) -> Error | None:
        kind = "invalid_request_error"
        if key in self._jobs:
            return Error(400, kind, f"task id {key[1]} is in use")
        if len(lengths) == 0 or (lengths <= 0).any() or int(lengths.sum()) != len(tokens):
            return Error(400, kind, "lengths: must be positive and add up to the number of tokens")
        if int(tokens.min()) < 0 or int(tokens.max()) >= self._n_vocab:
            return Error(400, kind, "Prompt contains invalid tokens")
        longest = int(lengths.argmax())
        if lengths[longest] > self.limit:
            index, n = int((lengths > self.limit).argmax()), int(lengths[(lengths > self.limit).argmax()])
            text = f"input {index} ({n} tokens) is too large to process: at most {self.limit} tokens fit"
            return Error(400, "exceed_context_size_error", text, n_prompt_tokens=n, n_ctx=self.limit, index=index)
        return None

    def _pack(self, room: int) -> dict[Job, list[tuple[int, int, int]]]:
        """Fill the batch from all jobs in turn; per job the (input, first row, rows) that went in."""
        self._batch.clear()
        parts: dict[Job, list[tuple[int, int, int]]] = {}
        sequence = 0
        turn = [job for job in self._by_precedence() if job.waiting]
        while turn and sequence < self._context.n_seq_max:
            turn = [job for job in turn if job.waiting]
            taken = False
            for job in turn:
                fits = self._batch.n_tokens + job.length() <= (room if sequence else self._context.n_ubatch)
                if fits and sequence < self._context.n_seq_max and job.waiting:
                    index, tokens = job.take()
                    row = self._batch.add(tokens, 0, sequence, "all")
                    parts.setdefault(job, []).append((index, row, len(tokens)))
                    sequence, taken = sequence + 1, True
            if not taken:
                break
        return parts

    def _by_precedence(self) -> list[Job]:
        """Higher priority first, then who has been served least, so that a newcomer is in the next batch."""
        return sorted(self._jobs.values(), key=lambda job: (-job.task.priority, job.n_taken, job.arrived))

    def _send(self, job: Job, inputs: list[tuple[int, int, int]]) -> None:
        pooled = self._context.pooling is not PoolingType.NONE
        first = self._sequence_of(inputs)
        vectors = [
            self._context.embeddings_seq(first[index])
            if pooled
            else np.stack([self._context.embeddings(row + i) for i in range(n)])
            for index, row, n in inputs
        ]
        counts = [] if pooled else [n for _, _, n in inputs]
        rows = self._rows(job.client, vectors)
        self._outbox.add(job.client, Vectors(job.task.id, [index for index, _, _ in inputs], rows, counts))
        if not job.waiting:
            self._end(job, "done")

    def _sequence_of(self, inputs: list[tuple[int, int, int]]) -> dict[int, int]:
        return {index: int(self._batch.sequences[row]) for index, row, _ in inputs}

    def _rows(self, client: bytes, vectors: list[npt.NDArray[np.float32]]) -> list[RowRef]:
        """Vectors laid one after the other into as few slab rows as they fit in, each whole within one row."""
        rows: list[RowRef] = []
        group: list[npt.NDArray[np.float32]] = []
        for vector in vectors:
            if group and sum(v.size for v in group) + vector.size > self._slab.row_floats:
                rows.append(self._slab.put(_joined(group), client))
                group = []
            group.append(vector)
        rows.append(self._slab.put(_joined(group), client))
        return rows

    def _end(self, job: Job, reason: str, error: Error | None = None) -> None:
        del self._jobs[job.key]
        now = self._clock()
        timings = Timings(prompt_n=len(job.tokens), prompt_ms=now - job.arrived)
        self._outbox.add(job.client, Final(job.task.id, reason, error, n_prompt=len(job.tokens), timings=timings))


def _joined(vectors: list[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    return np.concatenate([vector.ravel() for vector in vectors])
