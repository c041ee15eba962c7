"""Turns inputs into vectors, many short ones in one batch, in a context of their own beside text generation."""

import logging
from collections.abc import Callable, Sequence

import numpy as np

from engine.context import Context
from engine.jobs import Ints, Job, Jobs, Key
from engine.lanes import Lanes, Read
from engine.llama import PoolingType
from engine.metrics import Metrics
from engine.outbox import Outbox
from engine.times import now_ms
from ipc.messages import Admitted, Embed, Error, Final, Timings, Vectors
from ipc.slab import Slab

log = logging.getLogger(__name__)

_INVALID = "invalid_request_error"
_LATE = Error(408, "timeout_error", "the request ran out of time before all of its inputs were read")
_FAILED = Error(500, "server_error", "Compute error.")
_FULL = Error(429, "rate_limit_error", "the queue is full, try again later")


class Embedder:
    """Reads the inputs of all jobs, a batch at a time, and sends their vectors.

    `target` is how many tokens a batch should have: with more, tokens of one input are compared in vain with those of
    the others (attention costs the square of a batch's size); with much fewer, each step's fixed cost shows.
    """

    def __init__(
        self,
        contexts: Sequence[Context],
        *,
        n_threads: int,
        n_vocab: int,
        slab: Slab,
        outbox: Outbox,
        metrics: Metrics,
        target: int,
        max_queue: int | None = None,
        clock: Callable[[], float] = now_ms,
    ) -> None:
        """`contexts` are alike; several of them work side by side."""
        self.limit = contexts[0].n_ubatch  # tokens of the longest input that can be read
        self._pooled = contexts[0].pooling is not PoolingType.NONE
        self._most = contexts[0].n_seq_max
        self._lanes = Lanes(contexts, n_threads)
        self._n_vocab = n_vocab
        self._slab = slab
        self._outbox = outbox
        self._metrics = metrics
        self._target = min(target, self.limit)
        self._max_queue = max_queue
        self._clock = clock
        self._jobs = Jobs()
        self._saved = 0  # tokens that steps beside text generation have left unused

    def __len__(self) -> int:
        return len(self._jobs)

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
        """End all jobs with `error`, for good."""
        for job in self._jobs:
            self._end(job, "error", error)
        self._lanes.close()

    def step(self, room: int, *, shared: bool) -> None:
        """Start what can be started, and send the vectors of a batch that was read.

        `shared`: text is being generated, which leaves time for `room` tokens. An input goes into a batch whole; one
        larger than `room` waits until enough steps have left theirs.
        """
        self._expire()
        while self._lanes.free and (target := self._next_target(room, shared)):
            parts = self._jobs.pack(target, self._most)
            self._lanes.start(parts, last=not self._jobs.waiting)
            if self._lanes.count == 1:
                break
        for read in self._lanes.finished():
            self._finish(read)

    def _next_target(self, room: int, shared: bool) -> int:
        """Tokens of the next batch; 0: there is none to be read now."""
        if not self._jobs.waiting:
            self._saved = 0
            return 0
        if not shared:
            return self._target
        self._saved = min(self._saved + room, self.limit)
        if self._saved < self._jobs.next_length():
            return 0
        target, self._saved = min(self._target, self._saved), 0
        return target

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

    def _finish(self, read: Read) -> None:
        """Send a batch's vectors, and end the jobs that are complete."""
        n_tokens = sum(len(part.tokens) for part in read.parts)
        self._metrics.prompt_done(n_tokens, 0, read.ms)
        if read.code:
            log.error("embedding batch of %d tokens failed with code %d", n_tokens, read.code)
        for job in dict.fromkeys(part.job for part in read.parts):
            if self._jobs.get(job.key) is not job:  # ended meanwhile
                continue
            if read.code:
                self._end(job, "error", _FAILED)
            else:
                self._send(job, [i for i, part in enumerate(read.parts) if part.job is job], read)

    def _send(self, job: Job, own: list[int], read: Read) -> None:
        """Lay the vectors of the batch's parts `own`, which are the job's, one after the other into slab rows."""
        rows = self._slab.put_joined([vector for i in own for vector in read.vectors[i]], job.client)
        counts = [] if self._pooled else [len(read.vectors[i]) for i in own]
        self._outbox.add(job.client, Vectors(job.task.id, [read.parts[i].index for i in own], rows, counts))
        job.n_reading -= len(own)
        if job.done:
            self._end(job, "done")

    def _end(self, job: Job, reason: str, error: Error | None = None) -> None:
        self._jobs.remove(job)
        timings = Timings(prompt_n=len(job.tokens), prompt_ms=self._clock() - job.arrived)
        self._outbox.add(job.client, Final(job.task.id, reason, error, n_prompt=len(job.tokens), timings=timings))
