"""Which inputs an embedding batch takes: nobody waits for a large request, and it does not wait for ever either."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.jobs import Job, Jobs
from ipc.messages import Embed

TARGET = 128


class Queue(Jobs):
    """Jobs with made-up tokens, named by the ids they are added under."""

    def join(self, id: int, *lengths: int, priority: int = 0) -> Job:
        tokens = np.arange(sum(lengths), dtype=np.int32)
        task = Embed(id, b"", b"", priority=priority)
        job = Job(b"c", task, tokens, np.array(lengths, np.int32), arrived=float(id))
        self.add(job)
        return job

    def batch(self, target: int = TARGET, most: int = 64) -> dict[int, list[int]]:
        """The indices of each task's inputs in the next batch."""
        taken: dict[int, list[int]] = {}
        for part in self.pack(target, most):
            taken.setdefault(part.job.task.id, []).append(part.index)
            part.job.n_reading -= 1
            if part.job.done:
                self.remove(part.job)
        return taken


def test_short_inputs_share_a_batch_up_to_its_target() -> None:
    queue = Queue()
    queue.join(1, *[10] * 30)
    assert queue.batch() == {1: list(range(12))}


def test_an_input_is_read_whole_even_above_the_target() -> None:
    queue = Queue()
    queue.join(1, 500, 300)
    assert queue.batch() == {1: [1]}
    assert queue.batch() == {1: [0]}
    assert not queue.waiting


def test_a_batch_takes_no_more_inputs_than_there_are_sequences() -> None:
    queue = Queue()
    queue.join(1, *[1] * 10)
    assert queue.batch(most=4) == {1: [0, 1, 2, 3]}


def test_each_input_keeps_its_index_and_its_tokens() -> None:
    queue = Queue()
    queue.join(1, 3, 1, 2)
    found = {part.index: part.tokens.tolist() for part in queue.pack(TARGET, 64)}
    assert found == {0: [0, 1, 2], 1: [3], 2: [4, 5]}


def test_a_newcomer_is_in_the_next_batch() -> None:
    queue = Queue()
    queue.join(1, *[20] * 2000)
    queue.batch()
    queue.join(2, 8)
    assert queue.batch()[2] == [0]


def test_newcomers_do_not_hold_up_an_old_task() -> None:
    queue = Queue()
    queue.join(1, *[20] * 60)
    for id in range(2, 100):
        queue.join(id, *[20] * 100)
        queue.batch()
        if not any(job.task.id == 1 for job in queue):
            break
    assert id < 30


def test_tasks_of_one_size_end_one_after_the_other() -> None:
    queue = Queue()
    for id in range(1, 9):
        queue.join(id, *[30] * 16)
    left = []
    while queue.waiting:
        queue.batch()
        left.append(len(queue))
    assert left.index(7) < len(left) / 2


def test_the_higher_priority_goes_first() -> None:
    queue = Queue()
    queue.join(1, *[40] * 50)
    queue.join(2, *[40] * 50, priority=1)
    assert list(queue.batch()) == [2]


def test_a_removed_job_is_not_read_further() -> None:
    queue = Queue()
    first = queue.join(1, *[10] * 30)
    queue.join(2, 10)
    queue.remove(first)
    queue.remove(first)
    assert queue.batch() == {2: [0]}
    assert len(queue) == 0


@given(st.lists(st.lists(st.integers(1, 300), min_size=1, max_size=20), min_size=1, max_size=6), st.integers(1, 300))
def test_every_input_is_read_exactly_once(tasks: list[list[int]], target: int) -> None:
    queue = Queue()
    for id, lengths in enumerate(tasks):
        queue.join(id, *lengths)
    read: list[tuple[int, int]] = []
    while queue.waiting:
        assert queue.next_length() > 0
        batch = queue.batch(target, most=8)
        n = sum(tasks[id][index] for id, indices in batch.items() for index in indices)
        assert n <= target or sum(map(len, batch.values())) == 1
        read += [(id, index) for id, indices in batch.items() for index in indices]
    assert sorted(read) == [(id, index) for id, lengths in enumerate(tasks) for index in range(len(lengths))]
