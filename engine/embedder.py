"""Turns inputs into vectors, many short ones in one batch, in a context of their own beside text generation."""

import logging
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from engine.batch import Batch
from engine.context import Context
from engine.jobs import Ints, Job, Jobs, Key, Part
from engine.llama import PoolingType
from engine.metrics import Metrics
from engine.outbox import Outbox
from engine.times import now_ms
from ipc.messages import Admitted, Embed, Error, Final, Timings, Vectors
from ipc.slab import Slab

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]

_INVALID = "invalid_request_error"
_LATE = Error(408, "timeout_error", "the request ran out of time before all of its inputs were read")
_FULL = Error(429, "rate_limit_error", "the queue is full, try again later")


class Embedder:
    """Reads the inputs of all jobs, a batch at a time, and sends their vectors.

    `target` is how many tokens a batch should have: with more, tokens of one input are compared in vain with those of
    the others (attention costs the square of a batch's size); with much fewer, each step's fixed cost shows.
    """

    def __init__(
        self,
        context: Context,
        *,
        n_vocab: int,
        slab: Slab,
        outbox: Outbox,
        metrics: Metrics,
        target: int,
        max_queue: int | None = None,
        clock: Callable[[], float] = now_ms,
    ) -> None:
        self._context = context
        self._batch = Batch(context.n_ubatch)
        self._n_vocab = n_vocab
        self._slab = slab
        self._outbox = outbox
        self._metrics = metrics
        self._target = min(target, context.n_ubatch)
        self._max_queue = max_queue
        self._clock = clock
        self._jobs = Jobs()
        self._saved = 0  # tokens that steps beside text generation have left unused

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def limit(self) -> int:
        """Tokens of the longest input that can be read."""
        return self._context.n_ubatch

    def admit(self, client: bytes, task: Embed) -> None:
        """Take a job, or refuse it with an error that names the bad input."""
        if len(task.tokens) % 4 or len(task.lengths) % 4:
            error: Error | None = Error(400, _INVALID, "tokens, lengths: not a whole number of int32")
        else:
            tokens, lengths = np.frombuffer(task.tokens, "<i4"), np.frombuffer(task.lengths, "<i4")
            error = self._error((client, task.id), tokens, lengths)
        if error is not None:
            self._outbox.add(client, Final(task.id, "error", error))
            return
        task.tokens = task.lengths = b""  # the arrays hold them
        self._jobs.add(Job(client, task, tokens, lengths, self._clock()))
        self._outbox.add(client, Admitted(task.id, len(self._jobs) - 1))

    def abort(self, key: Key) -> None:
        """End a job whose client does not want it any more; unknown keys are fine."""
        job = self._jobs.get(key)
        if job is not None:
            self._metrics.aborted()
            self._end(job, "abort")

    def drop(self, client: bytes) -> None:
        """The client is gone."""
        for job in self._jobs:
            if job.client == client:
                self.abort(job.key)

    def fail_all(self, error: Error) -> None:
        for job in self._jobs:
            self._end(job, "error", error)

    def step(self, room: int, *, shared: bool) -> None:
        """Read one batch and send its vectors. `shared`: text is being generated, which leaves time for `room` tokens.

        An input goes into a batch whole; one larger than `room` waits until enough steps have left theirs.
        """
        self._expire()
        if not self._jobs.waiting:
            self._saved = 0
            return
        target = self._target
        if shared:
            self._saved = min(self._saved + room, self.limit)
            if self._saved < self._jobs.next_length():
                return
            target, self._saved = min(target, self._saved), 0
        self._read(self._jobs.pack(target, self._context.n_seq_max))

    def _error(self, key: Key, tokens: Ints, lengths: Ints) -> Error | None:
        if key in self._jobs:
            return Error(400, _INVALID, f"task id {key[1]} is in use")
        if self._max_queue is not None and len(self._jobs) > self._max_queue:
            return _FULL
        if len(lengths) == 0 or int(lengths.min()) <= 0 or int(lengths.sum(dtype=np.int64)) != len(tokens):
            return Error(400, _INVALID, "lengths: must be positive and add up to the number of tokens")
        if int(tokens.min()) < 0 or int(tokens.max()) >= self._n_vocab:
            return Error(400, _INVALID, "Prompt contains invalid tokens")
        if int(lengths.max()) > self.limit:
            index = int((lengths > self.limit).argmax())
            n = int(lengths[index])
            text = f"input {index} ({n} tokens) is too large to process: at most {self.limit} tokens fit"
            return Error(400, "exceed_context_size_error", text, n_prompt_tokens=n, n_ctx=self.limit, index=index)
        return None

    def _expire(self) -> None:
        moment = self._clock()
        for job in self._jobs:
            if job.late(moment):
                self._end(job, "error", _LATE)

    def _read(self, parts: list[Part]) -> None:
        begun = self._clock()
        self._batch.clear()
        firsts = [self._batch.add(part.tokens, 0, sequence, "all") for sequence, part in enumerate(parts)]
        code = self._context.decode(self._batch) if self._context.has_memory else self._context.encode(self._batch)
        if code == 0:
            self._send(parts, [self._vectors(row, i, len(parts[i].tokens)) for i, row in enumerate(firsts)])
        else:
            log.error("embedding batch of %d tokens failed with code %d", self._batch.n_tokens, code)
            for job in {part.job for part in parts}:
                self._end(job, "error", Error(500, "server_error", "Compute error."))
        if self._context.has_memory:
            self._context.clear()
        self._metrics.prompt_done(self._batch.n_tokens, 0, self._clock() - begun)

    def _vectors(self, row: int, sequence: int, n: int) -> list[Floats]:
        """Views of an input's vectors: one, or without pooling one per token."""
        if self._context.pooling is PoolingType.NONE:
            return [self._context.embeddings(row + i) for i in range(n)]
        return [self._context.embeddings_seq(sequence)]

    def _send(self, parts: Sequence[Part], vectors: Sequence[list[Floats]]) -> None:
        """Lay each job's vectors one after the other into slab rows, and end what is complete."""
        pooled = self._context.pooling is not PoolingType.NONE
        for job in dict.fromkeys(part.job for part in parts):
            own = [i for i, part in enumerate(parts) if part.job is job]
            rows = self._slab.put_joined([vector for i in own for vector in vectors[i]], job.client)
            counts = [] if pooled else [len(vectors[i]) for i in own]
            self._outbox.add(job.client, Vectors(job.task.id, [parts[i].index for i in own], rows, counts))
            job.n_reading -= len(own)
            if job.done:
                self._end(job, "done")

    def _end(self, job: Job, reason: str, error: Error | None = None) -> None:
        self._jobs.remove(job)
        timings = Timings(prompt_n=len(job.tokens), prompt_ms=self._clock() - job.arrived)
        self._outbox.add(job.client, Final(job.task.id, reason, error, n_prompt=len(job.tokens), timings=timings))
