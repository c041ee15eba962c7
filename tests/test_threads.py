"""Threads that compute go when other programs want the cores, and come back."""

import threading
import time

import pytest

from engine.threads import Threads, _idle, _waited, available


class Machine:
    """Cores and what others do with them; also the context whose threads are set."""

    def __init__(self, n: int = 8, n_batch: int = 8, cores: int = 8) -> None:
        self.now = self.waited = self.idle = 0.0
        self.cores, self.others = cores, 0.0
        self.set: list[tuple[int, int]] = []
        self.threads = Threads(
            self, n, n_batch, clock=lambda: self.now, waited=lambda: self.waited, idle=lambda: self.idle
        )

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None:
        self.set.append((n_threads, n_threads_batch))

    def work(self, seconds: float, step: float = 0.01) -> None:
        """Steps, while the others use `others` cores."""
        end = self.now + seconds
        while self.now < end:
            self.now += step
            spare = self.cores - self.others - self.threads.count
            self.waited += step * max(0.0, -spare)
            self.idle += step * max(0.0, spare)
            self.threads.adapt()


def test_all_threads_compute_on_a_machine_of_ones_own() -> None:
    machine = Machine()
    machine.work(60)
    assert machine.set == []


def test_as_many_go_as_others_need_and_come_back_with_the_cores() -> None:
    machine = Machine(n=6, n_batch=8)
    machine.others = 3
    machine.work(3)
    assert machine.set == [(5, 5)]
    machine.others = 0
    machine.work(10)
    assert machine.set == [(5, 5), (6, 8)]


def test_one_thread_always_stays() -> None:
    machine = Machine(n=2, n_batch=2, cores=2)
    machine.others = 5
    machine.work(30)
    assert machine.set == [(1, 1)]


def test_a_thread_that_comes_back_in_vain_waits_longer_each_time() -> None:
    machine = Machine()
    for _ in range(40):  # a program that takes two cores just when they are wanted
        machine.others = 2 if machine.threads.count == 8 else 0
        machine.work(2)
    assert 6 <= len(machine.set) <= 14


def test_after_a_rest_all_compute_again_however_short_the_work_is() -> None:
    machine = Machine()
    machine.others = 2
    machine.work(3)
    assert machine.set == [(6, 6)]
    machine.others = 0
    for _ in range(10):
        machine.work(0.1)
        machine.threads.rest()
        machine.now += 0.3
    assert machine.set == [(6, 6), (8, 8)]


def test_a_rest_beside_a_busy_neighbour_costs_ever_fewer_trials() -> None:
    machine = Machine()
    machine.others = 2
    for _ in range(100):
        machine.work(1.5)
        machine.threads.rest()
        machine.now += 0.5
    assert 6 <= len(machine.set) <= 16


def test_time_without_work_does_not_count() -> None:
    machine = Machine()
    machine.work(5)
    machine.threads.rest()
    machine.waited = 1000.0
    machine.now += 1000
    machine.work(5)
    assert machine.set == []


def test_a_single_long_step_counts() -> None:
    """Where threads wait for each other most, a step lasts longer than a look."""
    machine = Machine(n=2, n_batch=2, cores=2)
    machine.work(0.02)
    machine.others = 2
    machine.work(3, step=0.9)
    assert machine.set == [(1, 1)]


@pytest.mark.skipif(not available(), reason="the kernel does not tell")
def test_the_kernels_numbers_are_read() -> None:
    stop = threading.Event()
    crowd = [threading.Thread(target=lambda: stop.wait(5)) for _ in range(3)]
    for thread in crowd:
        thread.start()
    waited, idle = _waited(), _idle()
    time.sleep(0.05)
    assert 0 <= _waited() - waited < 10 and _idle() >= idle > 0
    stop.set()
    for thread in crowd:
        thread.join()
