"""Which inputs are read next: policy over arrays, without ctypes, sockets or a clock of its own."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ipc.messages import Embed

Key = tuple[bytes, int]
Ints = npt.NDArray[np.int32]


@dataclass(slots=True, eq=False)
class Job:
    """One `Embed` task: arrays, not an object per input. `order` lists the inputs, shortest first."""

    client: bytes
    task: Embed
    tokens: Ints
    lengths: Ints
    arrived: float  # ms
    starts: npt.NDArray[np.int64] = field(init=False)
    order: npt.NDArray[np.int64] = field(init=False)
    n_taken: int = 0  # inputs of `order` that are in a batch or done
    n_tokens_taken: int = 0
    n_reading: int = 0  # inputs that are in a batch now

    def __post_init__(self) -> None:
        self.starts = np.cumsum(self.lengths, dtype=np.int64) - self.lengths
        self.order = np.argsort(self.lengths, kind="stable")

    @property
    def key(self) -> Key:
        return self.client, self.task.id

    @property
    def waiting(self) -> bool:
        """Whether inputs are left that no batch has taken."""
        return self.n_taken < len(self.order)

    @property
    def done(self) -> bool:
        return not self.waiting and not self.n_reading

    def late(self, moment: float) -> bool:
        """Whether the task's deadline has passed before its last input was read."""
        return self.task.deadline_ms is not None and moment - self.arrived > self.task.deadline_ms

    def length(self) -> int:
        """Tokens of the next input; there must be one."""
        return int(self.lengths[self.order[self.n_taken]])

    def take(self) -> "Part":
        """The next input."""
        index = int(self.order[self.n_taken])
        start, n = int(self.starts[index]), int(self.lengths[index])
        self.n_taken += 1
        self.n_tokens_taken += n
        self.n_reading += 1
        return Part(self, index, self.tokens[start : start + n])


@dataclass(slots=True)
class Part:
    """One input of a batch."""

    job: Job
    index: int
    tokens: Ints


class Jobs:
    """The tasks that are not finished, in order of arrival.

    Half of a batch is for those that were served least, so that a newcomer is in the next one; the other half, for
    whoever came first, so that newcomers never hold up an old one, and tasks of one size do not all end at once.
    """

    def __init__(self) -> None:
        self._jobs: dict[Key, Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._jobs.values()))

    def __contains__(self, key: Key) -> bool:
        return key in self._jobs

    def get(self, key: Key) -> Job | None:
        return self._jobs.get(key)

    def add(self, job: Job) -> None:
        self._jobs[job.key] = job

    def remove(self, job: Job) -> None:
        """Forget a job; one that was removed before is fine."""
        if self._jobs.get(job.key) is job:
            del self._jobs[job.key]

    @property
    def waiting(self) -> bool:
        """Whether there is anything to pack."""
        return any(job.waiting for job in self._jobs.values())

    def next_length(self) -> int:
        """Tokens of the input that `pack` takes first; there must be one."""
        return min(self._waiting(), key=_least_served).length()

    def pack(self, target: int, most: int) -> list[Part]:
        """Up to `most` inputs of about `target` tokens together, at least one input whatever its length."""
        parts: list[Part] = []
        n = 0
        for order, room in ((_least_served, target // 2), (_precedence, target)):
            for job in sorted(self._waiting(), key=order):
                while job.waiting and len(parts) < most and (not parts or n + job.length() <= room):
                    parts.append(job.take())
                    n += len(parts[-1].tokens)
        return parts

    def _waiting(self) -> list[Job]:
        return [job for job in self._jobs.values() if job.waiting]


def _least_served(job: Job) -> tuple[int, int, float]:
    return -job.task.priority, job.n_tokens_taken, job.arrived


def _precedence(job: Job) -> tuple[int, float]:
    return -job.task.priority, job.arrived
