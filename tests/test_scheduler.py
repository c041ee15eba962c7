"""What a step evaluates: every generating slot, and a fair share of the prompts that wait."""

import numpy as np

from engine.scheduler import Scheduler
from engine.sequence import Phase, Sequence
from engine.slot import Slot
from ipc.messages import Sampling, Task


def slot_of(number: int, phase: Phase, todo: int, n_past: int = 0, arrived: float = 0.0) -> Slot:
    """A slot whose sequence has `todo` tokens to evaluate."""
    slot = Slot(number, 4096)
    slot.tokens.set(np.ones(n_past + todo, np.int32))
    slot.evaluated(np.arange(n_past))
    prompt = np.ones(n_past + todo, np.int32)
    sequence = Sequence.of(b"c", Task(number, b"", Sampling()), prompt, None, arrived)  # type: ignore[arg-type]
    sequence.phase, sequence.slot, slot.sequence = phase, slot, sequence
    return slot


def learned(target_gap_ms: float | None = None, tile_from: int = 0) -> Scheduler:
    """A scheduler that knows: a decode step takes 20 ms, a prompt token 2 ms."""
    scheduler = Scheduler(512, target_gap_ms, tile_from)
    for _ in range(50):
        scheduler.cost.observe(2, 0, 20.0)
        scheduler.cost.observe(2, 10, 40.0)
    return scheduler


def sizes(scheduler: Scheduler, slots: list[Slot]) -> dict[int, int]:
    return {chunk.slot.id: chunk.n for chunk in scheduler.plan(slots)}


def test_every_generating_slot_is_in_every_step() -> None:
    slots = [slot_of(i, Phase.GENERATING, 1, 10) for i in range(3)] + [slot_of(3, Phase.PREFILL, 2000)]
    plan = sizes(learned(), slots)
    assert [plan[i] for i in range(3)] == [1, 1, 1]
    assert 0 < plan[3] < 100


def test_a_step_goes_through_the_slots_in_order() -> None:
    phases = [Phase.PREFILL, Phase.GENERATING, Phase.PREFILL, Phase.GENERATING]
    slots = [slot_of(i, phase, 1 if phase is Phase.GENERATING else 30 - i) for i, phase in enumerate(phases)]
    assert list(sizes(learned(), slots)) == [0, 1, 2, 3]


def test_a_prompt_alone_gets_the_whole_batch() -> None:
    assert sizes(learned(), [slot_of(0, Phase.PREFILL, 2000)]) == {0: 512}


def read_all(scheduler: Scheduler, slots: list[Slot]) -> list[dict[int, int]]:
    """Prompt tokens by slot in each step until no prompt is left."""
    steps = []
    while any(slot.sequence and slot.sequence.phase is Phase.PREFILL for slot in slots):
        steps.append({})
        for chunk in scheduler.plan(slots):
            slot = chunk.slot
            if slot.sequence is not None and slot.sequence.phase is Phase.PREFILL:
                steps[-1][slot.id] = chunk.n
                slot.evaluated(np.arange(chunk.n))
                if chunk.output:
                    slot.sequence = None
    return steps


def test_a_short_prompt_is_not_stuck_behind_long_ones() -> None:
    stream, long = slot_of(9, Phase.GENERATING, 1, 10), [slot_of(i, Phase.PREFILL, 5000) for i in range(8)]
    scheduler = learned()
    for _ in range(5):
        scheduler.plan([*long, stream])
    steps = read_all(scheduler, [slot_of(8, Phase.PREFILL, 10), *long, stream])
    assert 8 in {**steps[0], **steps[1]}


def test_prompts_of_about_one_length_are_read_as_they_came() -> None:
    streams = [slot_of(i, Phase.GENERATING, 1, 10) for i in range(8, 16)]
    prompts = [slot_of(i, Phase.PREFILL, 20 + i % 3, arrived=float(-i)) for i in range(8)]
    steps = read_all(learned(tile_from=1000), prompts + streams)
    assert [list(step) for step in steps] == [[7], [6], [5], [4], [3], [2], [1], [0]]


def test_a_long_prompt_ends_however_many_short_ones_come() -> None:
    stream, long = slot_of(9, Phase.GENERATING, 1, 10), slot_of(0, Phase.PREFILL, 300)
    scheduler, n_read = learned(), 0
    for _ in range(20):
        for chunk in scheduler.plan([long, slot_of(1, Phase.PREFILL, 64), slot_of(2, Phase.PREFILL, 64), stream]):
            n_read += chunk.n if chunk.slot is long else 0
        long.evaluated(np.arange(n_read - long.n_past))
    assert n_read == 300


def test_long_prompts_take_turns_in_whole_tiles() -> None:
    slots = [slot_of(0, Phase.GENERATING, 1, 10), slot_of(1, Phase.PREFILL, 300), slot_of(2, Phase.PREFILL, 300)]
    steps = read_all(learned(), slots)
    assert all(len(step) == 1 and n in (65, 33, 7) for step in steps[:-1] for n in step.values())
    assert len(steps) <= 10
    assert {1, 2} == {id for step in steps[:3] for id in step}


def test_pieces_are_small_where_attention_is_little_of_the_work() -> None:
    scheduler = Scheduler(512, tile_from=200)
    scheduler.cost.observe(1, 0, 20.0)
    scheduler.cost.observe(1, 10, 40.0)
    slots = [slot_of(0, Phase.GENERATING, 1, 10), slot_of(1, Phase.PREFILL, 400)]
    assert [step[1] for step in read_all(scheduler, slots)] == [33] * 7 + [65, 65, 33, 6]


def test_a_piece_that_is_too_short_for_a_tile_waits() -> None:
    slots = [slot_of(0, Phase.GENERATING, 1, 10), slot_of(1, Phase.PREFILL, 30), slot_of(2, Phase.PREFILL, 2000)]
    assert [len(step) for step in read_all(learned(), slots)][:2] == [1, 1]


def test_a_larger_target_gap_reads_prompts_faster() -> None:
    slots = [slot_of(0, Phase.GENERATING, 1, 10), slot_of(1, Phase.PREFILL, 2000)]
    assert sizes(learned(400.0), slots)[1] > sizes(learned(), slots)[1]


def test_a_burst_of_prompts_is_not_held_up_for_a_single_stream() -> None:
    one = slot_of(0, Phase.GENERATING, 1, 10)
    burst = [slot_of(i, Phase.PREFILL, 20) for i in range(1, 16)]
    plan = sizes(learned(), [one, *burst])
    assert sum(plan[slot.id] for slot in burst) == 300


def test_a_slot_waiting_for_a_neighbour_is_left_out() -> None:
    assert sizes(learned(), [slot_of(0, Phase.WAITING, 50)]) == {}
