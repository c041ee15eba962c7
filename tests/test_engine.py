"""The engine's behaviour on a model in plain Python: what a sequence generates shows what its KV really held."""

import resource

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ipc.messages import GetSlots, Sampling, SlotsReply
from tests.fake_context import continuation
from tests.step_engine import StepEngine

pytestmark = pytest.mark.usefixtures("lib")
MODES = pytest.mark.parametrize("unified", [True, False])


@MODES
def test_a_task_is_admitted_generates_and_ends_once(unified: bool) -> None:
    engine = StepEngine(unified=unified)
    task = engine.submit([1, 2, 3], 5)
    engine.run()
    assert engine.admitted(task)
    assert engine.tokens(task) == continuation([1, 2, 3], 5)
    final = engine.final(task)
    assert (final.reason, final.n_prompt, final.timings.predicted_n) == ("limit", 3, 5)


@MODES
def test_the_second_run_of_a_prompt_evaluates_one_token(unified: bool) -> None:
    engine = StepEngine(unified=unified)
    first = engine.submit([1, 2, 3, 4], 3)
    engine.run()
    second = engine.submit([1, 2, 3, 4], 3)
    engine.run()
    assert engine.tokens(first) == engine.tokens(second)
    assert engine.final(second).timings.cache_n == 3
    assert engine.final(second).timings.prompt_n == 1


@MODES
def test_a_prompt_takes_the_prefix_of_a_busy_slot(unified: bool) -> None:
    engine = StepEngine(n_slots=2, n_ctx=256, unified=unified)
    shared = list(range(1, 41))
    long = engine.submit(shared, 60)
    engine.step(6)
    other = engine.submit([*shared, 50, 51], 4)
    engine.run()
    assert engine.final(other).timings.cache_n == 40
    assert engine.tokens(other) == continuation([*shared, 50, 51], 4)
    assert engine.tokens(long) == continuation(shared, 60)


@MODES
def test_prompts_that_arrive_together_read_their_prefix_once(unified: bool) -> None:
    engine = StepEngine(n_slots=4, n_ctx=1024, unified=unified)
    shared = [1 + i % 60 for i in range(100)]
    tasks = [engine.submit([*shared, i, i], 4) for i in range(1, 5)]
    engine.run()
    assert engine.context.n_evaluated <= 102 + 3 * 2 + 4 * 4
    for i, task in enumerate(tasks, 1):
        assert engine.tokens(task) == continuation([*shared, i, i], 4)


def test_a_waiting_prompt_reads_for_itself_when_its_neighbour_is_aborted() -> None:
    engine = StepEngine(n_slots=2, n_ctx=512, n_ubatch=16)
    shared = [1 + i % 60 for i in range(100)]
    first = engine.submit([*shared, 1], 4)
    second = engine.submit([*shared, 2], 4)
    engine.step(2)
    engine.abort(first)
    engine.run()
    assert engine.final(first).reason == "abort"
    assert engine.tokens(second) == continuation([*shared, 2], 4)


def test_abort_while_queued_never_starts_the_task() -> None:
    engine = StepEngine(n_slots=1, n_ctx=128)
    running = engine.submit([1, 2], 30)
    queued = engine.submit([3, 4], 5)
    engine.step(2)
    engine.abort(queued)
    engine.run()
    assert engine.final(queued).reason == "abort"
    assert engine.tokens(queued) == []
    assert engine.tokens(running) == continuation([1, 2], 30)


def test_abort_in_prefill_stops_within_one_ubatch() -> None:
    engine = StepEngine(n_slots=1, n_ctx=512, n_ubatch=16)
    task = engine.submit([1 + i % 60 for i in range(300)], 5)
    engine.step(2)
    read = engine.context.n_evaluated
    engine.abort(task)
    engine.run()
    assert engine.context.n_evaluated == read
    assert engine.final(task).reason == "abort"


@pytest.mark.parametrize(("unified", "taken"), [(False, [4, 3, 2]), (True, [0, 1, 2])])
def test_busy_slots_lie_side_by_side_where_that_makes_steps_quicker(unified: bool, taken: list[int]) -> None:
    """Libllama evaluates neighbours together if each has a KV stream of its own; else the longest unused is taken."""
    engine = StepEngine(n_slots=6, n_ctx=6 * 64, unified=unified)
    for slot in range(6):
        engine.submit([slot + 1] * 5, 2, slot=slot)
        engine.run()
    engine.submit([20] * 5, 50, slot=5)
    engine.step()
    for seed in (30, 40, 50):
        engine.submit([seed] * 5, 50)
        engine.step()
    started = sorted((slot for slot in engine.slots if slot.sequence), key=lambda slot: slot.sequence.clock.started)  # type: ignore[union-attr, arg-type, return-value]
    assert [slot.id for slot in started] == [5, *taken]


def test_aborting_an_unknown_task_does_nothing() -> None:
    engine = StepEngine()
    engine.abort(99)
    engine.step()
    assert engine.results(99) == []


def test_a_vanished_client_frees_its_slots() -> None:
    engine = StepEngine(n_slots=2, n_ctx=256)
    engine.submit([1, 2], 100, client=b"gone")
    stays = engine.submit([3, 4], 10)
    engine.step(3)
    engine.server.gone.add(b"gone")
    engine.step(2)
    assert sum(not slot.idle for slot in engine.slots) == 1
    engine.run()
    assert engine.tokens(stays) == continuation([3, 4], 10)


def test_tasks_beyond_the_slots_are_served_in_order() -> None:
    engine = StepEngine(n_slots=2, n_ctx=256)
    tasks = [engine.submit([10 + i, 3, 7], 3) for i in range(8)]
    engine.run()
    order = [r.id for step in engine.server.sent[b"c"] for r in step.results if type(r).__name__ == "Final"]
    assert sorted(order) == tasks
    assert all(engine.tokens(task) == continuation([10 + i, 3, 7], 3) for i, task in enumerate(tasks))
    assert order.index(tasks[0]) < order.index(tasks[-1])


def test_a_higher_priority_is_served_first() -> None:
    engine = StepEngine(n_slots=1, n_ctx=256)
    engine.submit([1, 2], 5)
    engine.step(2)
    low = engine.submit([3, 4], 3)
    high = engine.submit([5, 6], 3, priority=5)
    engine.run()
    finals = [r.id for step in engine.server.sent[b"c"] for r in step.results if type(r).__name__ == "Final"]
    assert finals.index(high) < finals.index(low)


@MODES
def test_a_running_task_gives_its_slot_to_a_higher_priority_and_goes_on_later(unified: bool) -> None:
    engine = StepEngine(n_slots=2, n_ctx=512, unified=unified)
    low = [engine.submit([10 + i, 2, 3], 40) for i in range(2)]
    engine.step(10)
    high = engine.submit([5, 6, 7], 5, priority=1)
    engine.step(8)
    assert engine.final(high).reason == "limit"
    engine.run()
    for i, task in enumerate(low):
        assert engine.tokens(task) == continuation([10 + i, 2, 3], 40)


def test_equal_priorities_never_take_each_others_slot() -> None:
    engine = StepEngine(n_slots=1, n_ctx=256)
    first = engine.submit([1, 2], 20, priority=3)
    engine.step(3)
    second = engine.submit([3, 4], 2, priority=3)
    engine.run()
    finals = [r.id for step in engine.server.sent[b"c"] for r in step.results if type(r).__name__ == "Final"]
    assert finals == [first, second]


def test_a_full_queue_refuses_with_429() -> None:
    engine = StepEngine(n_slots=1, n_ctx=128, max_queue=2)
    tasks = [engine.submit([1, 2], 20) for _ in range(2)]
    engine.step(2)
    tasks += [engine.submit([1, 2], 20) for _ in range(3)]
    engine.run()
    codes = [final.error.code if (final := engine.final(task)).error else None for task in tasks]
    assert codes == [None, None, None, 429, 429]


@pytest.mark.parametrize("max_queue", [0, 2])
def test_a_task_that_finds_a_free_slot_needs_no_place_in_the_queue(max_queue: int) -> None:
    engine = StepEngine(n_slots=3, n_ctx=128, max_queue=max_queue)
    tasks = [engine.submit([1, 2], 20) for _ in range(7)]
    engine.run()
    assert sum(engine.final(task).error is None for task in tasks) == 3 + max_queue


def test_a_task_id_in_use_is_refused_also_within_one_step() -> None:
    engine = StepEngine(n_ctx=128)
    first = engine.submit([1, 2], 3)
    ((_, task),) = engine.server.incoming
    engine.server.incoming.append((b"c", task))
    engine.run()
    errors = [final.error for final in engine.finals(first)]
    assert [error.code if error else None for error in errors] == [400, None]


def test_penalties_look_back_no_further_than_a_context() -> None:
    """libllama reserves all that a window could hold, so that a huge one would take all memory."""
    engine = StepEngine(n_ctx=64)
    most = 2**31 - 1
    window = {"repeat_last_n": most, "dry_penalty_last_n": most, "dry_multiplier": 1.0, "presence_penalty": 1.0}
    task = engine.submit([1, 2, 3], 4, sampling=Sampling(temperature=0, dry_sequence_breakers=[], **window))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    engine.run()
    assert len(engine.tokens(task)) == 4
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 18  # KiB


@pytest.mark.parametrize(
    ("prompt", "fields", "code", "text"),
    [
        ([1, 99], {}, 400, "invalid tokens"),
        ([1, -1], {}, 400, "invalid tokens"),
        ([1] * 64, {}, 400, "exceeds the available context size (64 tokens)"),
        ([1, 2], {"slot": 7}, 400, "id_slot"),
    ],
)
def test_a_task_that_cannot_run_is_refused(prompt: list[int], fields: dict[str, int], code: int, text: str) -> None:
    engine = StepEngine(n_ctx=64)
    task = engine.submit(prompt, 4, **fields)
    engine.run()
    final = engine.final(task)
    assert not engine.admitted(task)
    assert final.error is not None and final.error.code == code and text in final.error.message


def test_an_empty_prompt_ends_at_once_without_text() -> None:
    engine = StepEngine()
    task = engine.submit([], 4)
    engine.run()
    assert engine.admitted(task) and engine.tokens(task) == [] and engine.final(task).error is None


def test_zero_tokens_asked_evaluates_the_prompt_only() -> None:
    engine = StepEngine()
    task = engine.submit([1, 2, 3], 0)
    engine.run()
    assert engine.tokens(task) == []
    assert engine.final(task).timings.prompt_n == 3
    assert engine.final(task).reason == "limit"


def test_generation_ends_at_the_context_limit_with_truncated_set() -> None:
    engine = StepEngine(n_slots=1, n_ctx=32)
    task = engine.submit([1] * 20, None)
    engine.run()
    assert engine.final(task).truncated and engine.final(task).reason == "limit"
    assert len(engine.tokens(task)) == 12
    assert engine.tokens(task) == continuation([1] * 20, 12)


def test_context_shift_goes_on_past_the_context() -> None:
    engine = StepEngine(n_slots=1, n_ctx=32, context_shift=True)
    task = engine.submit([1] * 20, 60)
    engine.run()
    assert len(engine.tokens(task)) == 60
    assert engine.final(task).truncated


def test_a_shift_never_moves_a_shared_cell() -> None:
    engine = StepEngine(n_slots=2, n_ctx=128, context_shift=True)
    for slot in engine.slots:
        slot.n_ctx = 40
    shared = [1 + i % 50 for i in range(30)]
    first = engine.submit([*shared, 5], 60)
    engine.step(4)
    second = engine.submit([*shared, 6], 5)
    engine.run()
    assert len(engine.tokens(first)) == 60
    assert engine.tokens(second) == continuation([*shared, 6], 5)


def test_unified_kv_that_runs_out_still_gives_everyone_its_text() -> None:
    engine = StepEngine(n_slots=4, n_ctx=128, n_ubatch=32)
    prompts = [[10 + i, 5, 9] for i in range(4)]
    tasks = [engine.submit(prompt, 60) for prompt in prompts]
    engine.run()
    for prompt, task in zip(prompts, tasks, strict=True):
        assert engine.final(task).error is None
        assert engine.tokens(task) == continuation(prompt, 60)


def test_the_last_sequence_in_a_full_memory_ends_with_its_text() -> None:
    engine = StepEngine(n_slots=2, n_ctx=64)
    engine.context.n_cells = 20
    task = engine.submit([1, 2, 3], 50)
    engine.run()
    assert engine.final(task).reason == "limit" and engine.final(task).truncated
    assert engine.tokens(task) == continuation([1, 2, 3], len(engine.tokens(task)))
    assert len(engine.tokens(task)) >= 17


def test_a_whole_answer_arrives_in_one_delta() -> None:
    engine = StepEngine()
    task = engine.submit([1, 2, 3], 6, stream=False)
    engine.run()
    kinds = [type(result).__name__ for result in engine.results(task)]
    assert kinds == ["Admitted", "Delta", "Final"]
    assert engine.tokens(task) == continuation([1, 2, 3], 6)


def test_a_stop_string_over_token_borders_is_never_sent() -> None:
    text = "".join(chr(64 + token) for token in continuation([1, 2, 3], 8))
    engine = StepEngine()
    task = engine.submit([1, 2, 3], 8, stop=[text[3:5]])
    engine.run()
    assert engine.text(task) == text[: text.find(text[3:5])]
    assert engine.final(task).reason == "word" and engine.final(task).stopping_word == text[3:5]


def test_held_back_text_is_released_at_the_end() -> None:
    text = "".join(chr(64 + token) for token in continuation([1, 2, 3], 4))
    engine = StepEngine()
    task = engine.submit([1, 2, 3], 4, stop=[text[3] + "never"])
    engine.run()
    assert engine.text(task) == text


def test_slots_are_reported_while_busy() -> None:
    engine = StepEngine()
    engine.submit([1, 2, 3], 10)
    engine.step(2)
    engine.server.incoming.append((b"c", GetSlots(7)))
    engine.step()
    reply = next(m for m in engine.server.sent[b"c"] if isinstance(m, SlotsReply))
    assert [slot.is_processing for slot in reply.slots] == [True, False]
    assert reply.slots[0].n_prompt == 3
    assert reply.slots[0].pos_max == -1


def test_a_slot_tells_what_it_and_libllama_hold() -> None:
    engine = StepEngine(n_slots=2)
    engine.submit([1, 2, 3], 4)
    engine.run()
    engine.server.incoming.append((b"c", GetSlots(7, debug=True)))
    engine.step()
    used, unused = next(m for m in engine.server.sent[b"c"] if isinstance(m, SlotsReply)).slots
    assert (used.n_past, used.pos_min, used.pos_max) == (6, 0, 5)
    assert (unused.n_past, unused.pos_min, unused.pos_max) == (0, -1, -1)


def test_prompt_log_probabilities_come_for_every_prompt_token_but_the_first() -> None:
    engine = StepEngine()
    task = engine.submit([1, 2, 3, 4, 5], 1, prompt_probs=True)
    engine.run()
    parts = [r for r in engine.results(task) if type(r).__name__ == "PromptProbs"]
    positions = [part.first + i for part in parts for i in range(len(part.rows))]
    assert positions == [1, 2, 3, 4]


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(0, 3), st.integers(0, 60), st.integers(1, 30), st.booleans()),
        st.tuples(st.just("abort"), st.integers(0, 30)),
        st.tuples(st.just("step"), st.integers(1, 8)),
    ),
    max_size=40,
)


@MODES
@pytest.mark.parametrize("shift", [False, True])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS)
def test_random_arrivals_branches_aborts_and_shifts_never_mix_sequences(
    unified: bool, shift: bool, actions: list[tuple]
) -> None:
    """Whatever happens around a sequence, it generates what it would alone, and the memory's books stay right."""
    engine = StepEngine(n_slots=4, n_ctx=160 if unified else 640, unified=unified, context_shift=shift)
    stems = [[1 + (i * (s + 3)) % 60 for i in range(70)] for s in range(4)]
    tasks: dict[int, tuple[list[int], int]] = {}
    for action in actions:
        if action[0] == "arrive":
            _, stem, length, n, cache = action
            prompt = [*stems[stem][:length], 1 + stem, 7]
            tasks[engine.submit(prompt, n, cache_prompt=cache)] = (prompt, n)
        elif action[0] == "abort":
            engine.abort(action[1])
        else:
            engine.step(action[1])
        check_books(engine)
    engine.run(4000)
    check_books(engine)
    for task, (prompt, n) in tasks.items():
        final = engine.final(task)
        assert final.reason in ("limit", "abort"), final
        expected = continuation(prompt, n)[: len(engine.tokens(task))]
        if not final.truncated or not shift:
            assert engine.tokens(task) == expected


def check_books(engine: StepEngine) -> None:
    """Our account of the KV memory equals what is really there."""
    for slot in engine.slots:
        assert slot.n_past == len(engine.context.sequences[slot.id])
        held = [engine.context.sequences[slot.id][i][0] for i in range(slot.n_past)]
        assert held == slot.tokens.view[: slot.n_past].tolist()
    if engine.context.unified:
        assert engine.memory.used() == engine.context.used()
