"""Decisions about the engine process, made without one."""

import pytest

from engine.policy import (
    CLOCK_STEP,
    GAVE_UP,
    HEALTHY_AFTER,
    KILL_GRACE,
    LOAD_HANG,
    LONGEST_DELAY,
    STEP_HANG_FACTOR,
    STUCK,
    TERMINATE_GRACE,
    Action,
    Phase,
    Policy,
    Pulse,
)

HANG, DRAIN = 10.0, 30.0
READY = Pulse(ready=True, beat=1)


@pytest.fixture
def policy() -> Policy:
    return Policy(HANG, DRAIN)


@pytest.fixture
def ready(policy: Policy) -> Policy:
    assert policy.start(0) == [Action.SPAWN]
    assert policy.pulse(READY, 0) == []
    assert policy.phase is Phase.READY
    return policy


def watch(policy: Policy, pulse: Pulse, start: float, seconds: float, tick: float = 0.5) -> list[Action]:
    """The first actions that `seconds` of the same reading lead to."""
    for i in range(int(seconds / tick) + 1):
        actions = policy.pulse(pulse, start + i * tick)
        if actions:
            return actions
    return []


def crash(policy: Policy, now: float) -> float:
    """The engine dies; returns after how long it is started again."""
    assert policy.exited("signal SIGKILL", now) == []
    assert policy.due is not None
    assert policy.wake(policy.due - 0.001) == []
    delay = policy.due - now
    assert policy.wake(policy.due) == [Action.SPAWN]
    return delay


def test_engine_that_never_got_ready_is_given_up(policy: Policy) -> None:
    policy.start(0)
    assert policy.exited("exit code 1", 1) == []
    assert policy.exit_code == GAVE_UP
    assert "exit code 1" in policy.reason


def test_dead_engine_is_started_again(ready: Policy) -> None:
    assert crash(ready, 5) == pytest.approx(0.2)
    assert ready.phase is Phase.LOADING


def test_delay_doubles_up_to_its_limit_and_restarts_never_end(ready: Policy) -> None:
    now, delays = 5.0, []
    for _ in range(12):
        delays.append(crash(ready, now))
        now += delays[-1] + 1
    assert delays[:4] == pytest.approx([0.2, 0.4, 0.8, 1.6])
    assert delays[-1] == pytest.approx(LONGEST_DELAY)
    assert ready.exit_code is None


def test_a_healthy_minute_makes_the_next_restart_quick(ready: Policy) -> None:
    back = 5 + crash(ready, 5)
    ready.pulse(READY, back)
    assert crash(ready, back + HEALTHY_AFTER) == pytest.approx(0.2)


def test_a_short_recovery_does_not_reset_the_delay(ready: Policy) -> None:
    back = 5 + crash(ready, 5)
    ready.pulse(READY, back)
    assert crash(ready, back + HEALTHY_AFTER - 1) == pytest.approx(0.4)


def test_silent_engine_is_killed_and_started_again(ready: Policy) -> None:
    assert watch(ready, READY, 0, HANG) == []
    assert watch(ready, READY, HANG + 0.5, 1) == [Action.KILL]
    assert crash(ready, 20) > 0


def test_beating_engine_is_left_alone(ready: Policy) -> None:
    for second in range(100):
        assert ready.pulse(Pulse(ready=True, beat=second + 2), second) == []


def test_loop_without_steps_is_killed_later(ready: Policy) -> None:
    limit = int(HANG * STEP_HANG_FACTOR)
    readings = [Pulse(ready=True, beat=second + 2, steps=7, active=1) for second in range(limit + 3)]
    answers = [ready.pulse(reading, second) for second, reading in enumerate(readings)]
    assert [Action.KILL] in answers
    assert answers.index([Action.KILL]) > limit


def test_idle_engine_makes_no_steps_and_lives(ready: Policy) -> None:
    for second in range(int(HANG * STEP_HANG_FACTOR) * 2):
        assert ready.pulse(Pulse(ready=True, beat=second + 2, steps=7), second) == []


def test_time_in_which_the_supervisor_was_frozen_is_not_held_against_the_engine(ready: Policy) -> None:
    assert ready.pulse(READY, 1000) == []
    assert watch(ready, READY, 1000, HANG - 2 * CLOCK_STEP) == []


def test_long_load_is_no_hang_while_it_moves(policy: Policy) -> None:
    policy.start(0)
    for second in range(int(LOAD_HANG) * 2):
        assert policy.pulse(Pulse(progress=second / 1e6), second) == []


def test_load_that_stands_still_is_killed_and_given_up(policy: Policy) -> None:
    policy.start(0)
    assert watch(policy, Pulse(progress=0.5), 0, LOAD_HANG + 5) == [Action.KILL]
    policy.exited("signal SIGKILL", 700)
    assert policy.exit_code == GAVE_UP


def test_stop_waits_for_running_tasks(ready: Policy) -> None:
    assert ready.stop(1) == [Action.ANNOUNCE_DRAIN]
    assert ready.pulse(Pulse(ready=True, beat=2, active=2), 2) == []
    assert ready.pulse(Pulse(ready=True, beat=3, active=0), 3) == [Action.TERMINATE]
    ready.exited("exit code 0", 3.1)
    assert ready.exit_code == 0


def test_drain_has_a_deadline(ready: Policy) -> None:
    ready.stop(1)
    ready.pulse(Pulse(ready=True, beat=2, active=2), 2)
    assert ready.wake(1 + DRAIN - 0.1) == []
    assert ready.wake(1 + DRAIN) == [Action.TERMINATE]


def test_second_stop_does_not_wait(ready: Policy) -> None:
    ready.stop(1)
    assert ready.stop(1.5) == [Action.TERMINATE]
    assert ready.stop(1.6) == [Action.KILL]


def test_stop_while_loading_is_immediate_and_clean(policy: Policy) -> None:
    policy.start(0)
    assert policy.stop(1) == [Action.TERMINATE]
    policy.exited("signal SIGTERM", 1.1)
    assert policy.exit_code == 0


def test_stop_while_waiting_for_a_restart_ends_at_once(ready: Policy) -> None:
    ready.exited("signal SIGSEGV", 1)
    assert ready.stop(1.1) == []
    assert ready.exit_code == 0


def test_no_drain_when_its_time_is_zero() -> None:
    policy = Policy(HANG, 0)
    policy.start(0)
    policy.pulse(READY, 0)
    assert policy.stop(1) == [Action.TERMINATE]


def test_engine_that_ignores_the_stop_is_killed(ready: Policy) -> None:
    ready.stop_now(1)
    assert ready.wake(1 + TERMINATE_GRACE) == [Action.KILL]
    assert ready.wake(1 + TERMINATE_GRACE + KILL_GRACE) == []
    assert ready.exit_code == STUCK


def test_engine_that_dies_while_draining_is_not_started_again(ready: Policy) -> None:
    ready.stop(1)
    assert ready.exited("signal SIGKILL", 2) == []
    assert ready.exit_code == 0


def test_engine_that_hangs_while_draining_is_killed_and_the_stop_goes_on(ready: Policy) -> None:
    ready.stop(0)
    busy = Pulse(ready=True, beat=1, active=1)
    assert watch(ready, busy, 0, HANG + 2) == [Action.KILL]
    ready.exited("signal SIGKILL", 13)
    assert ready.exit_code == 0


def test_orphan_kills_the_engine(ready: Policy) -> None:
    assert ready.orphaned(1) == [Action.KILL]
    ready.exited("signal SIGKILL", 1.1)
    assert ready.exit_code == 0
