"""LoRA adapters: who runs with which, in turns, and without mixing their KV."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.adapters import AdapterError, last_occurrence
from engine.regime import PLAIN, common_validity
from ipc.messages import DropLora, Failure, GetLora, LoadLora, LoraReply, LoraScale, SetLora
from tests.fake_context import continuation
from tests.step_engine import FakeAdapter, StepEngine

pytestmark = pytest.mark.usefixtures("lib")


def with_adapters(**fields: object) -> StepEngine:
    engine = StepEngine(n_slots=3, n_ctx=768, **fields)  # type: ignore[arg-type]
    engine.adapters.add(FakeAdapter("a.gguf", 1), 0.0)  # type: ignore[arg-type]
    engine.adapters.add(FakeAdapter("b.gguf", 2), 0.0)  # type: ignore[arg-type]
    return engine


def use(number: int) -> list[LoraScale]:
    return [LoraScale(number, 1.0)]


def test_requests_with_different_adapters_run_in_turns_and_get_their_own() -> None:
    engine = with_adapters()
    prompt = [1, 2, 3, 4]
    tasks = [engine.submit(prompt, 10, lora=lora) for lora in (None, use(0), use(1))]
    engine.step(14)
    assert all(len(engine.tokens(task)) >= 3 for task in tasks)
    engine.run()
    for tag, task in enumerate(tasks):
        assert engine.tokens(task) == continuation(prompt, 10, tag)


def test_a_cache_of_other_adapters_is_not_reused() -> None:
    engine = with_adapters()
    prompt = list(range(1, 30))
    engine.submit(prompt, 3, lora=use(0))
    engine.run()
    plain = engine.submit(prompt, 3)
    same = engine.submit(prompt, 3, lora=use(0))
    engine.run()
    assert engine.final(plain).timings.cache_n == 0
    assert engine.final(same).timings.cache_n == 28
    assert engine.tokens(plain) == continuation(prompt, 3)


def test_server_wide_scales_hold_for_requests_without_a_list() -> None:
    engine = with_adapters()
    engine.server.incoming.append((b"c", SetLora(50, use(1))))
    task = engine.submit([5, 6], 6)
    engine.run()
    assert engine.tokens(task) == continuation([5, 6], 6, 2)
    plain = engine.submit([5, 6], 6, lora=[])
    engine.run()
    assert engine.tokens(plain) == continuation([5, 6], 6)


def test_an_unknown_adapter_is_refused() -> None:
    engine = with_adapters()
    task = engine.submit([1], 2, lora=use(9))
    engine.run()
    error = engine.final(task).error
    assert error is not None and error.code == 400 and "adapter 9" in error.message


def test_an_alora_acts_from_its_last_invocation_on() -> None:
    engine = with_adapters()
    engine.adapters.add(FakeAdapter("alora.gguf", 3, invocation=(40, 41)), 0.0)  # type: ignore[arg-type]
    prompt = [1, 2, 40, 41, 5, 6, 7, 40, 41, 9]
    task = engine.submit(prompt, 8, lora=use(2))
    engine.run()
    assert engine.tokens(task) == continuation(prompt, 8, 3, start=6)


def test_the_part_before_an_invocation_is_shared_with_plain_requests() -> None:
    engine = with_adapters()
    engine.adapters.add(FakeAdapter("alora.gguf", 3, invocation=(40, 41)), 0.0)  # type: ignore[arg-type]
    stem = list(range(1, 31))
    engine.submit([*stem, 35], 2)
    engine.run()
    task = engine.submit([*stem, 40, 41, 9], 5, lora=use(2))
    engine.run()
    assert engine.final(task).timings.cache_n == 29
    assert engine.tokens(task) == continuation([*stem, 40, 41, 9], 5, 3, start=29)


def test_an_alora_without_its_invocation_stays_off() -> None:
    engine = with_adapters()
    engine.adapters.add(FakeAdapter("alora.gguf", 3, invocation=(40, 41)), 0.0)  # type: ignore[arg-type]
    task = engine.submit([1, 2, 3], 5, lora=use(2))
    engine.run()
    assert engine.tokens(task) == continuation([1, 2, 3], 5)


def test_two_aloras_at_once_are_refused() -> None:
    engine = with_adapters()
    for _ in range(2):
        engine.adapters.add(FakeAdapter("alora.gguf", 3, invocation=(40,)), 0.0)  # type: ignore[arg-type]
    with pytest.raises(AdapterError, match="multiple aLoRAs"):
        engine.adapters.resolve([LoraScale(2, 1.0), LoraScale(3, 1.0)], np.array([40], np.int32))


def replies(engine: StepEngine) -> list[LoraReply | Failure]:
    return [message for message in engine.server.sent[b"c"] if isinstance(message, LoraReply | Failure)]


def ask(engine: StepEngine, message: object) -> LoraReply | Failure:
    n = len(replies(engine))
    engine.server.incoming.append((b"c", message))
    for _ in range(1000):
        engine.step()
        if len(replies(engine)) > n:
            return replies(engine)[-1]
    raise AssertionError("no reply")


def test_adapters_are_loaded_and_dropped_while_serving() -> None:
    engine = with_adapters()
    reply = ask(engine, LoadLora(1, "new.gguf", 0.5))
    assert isinstance(reply, LoraReply)
    assert [(state.id, state.scale) for state in reply.adapters] == [(0, 0.0), (1, 0.0), (2, 0.5)]
    reply = ask(engine, DropLora(2, 1))
    assert isinstance(reply, LoraReply) and [state.id for state in reply.adapters] == [0, 2]
    assert isinstance(ask(engine, GetLora(3)), LoraReply)


def test_an_adapter_in_use_is_not_dropped() -> None:
    engine = with_adapters()
    engine.submit([1, 2], 50, lora=use(0))
    engine.step(3)
    reply = ask(engine, DropLora(2, 0))
    assert isinstance(reply, Failure) and "in use" in reply.error.message


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    unified=st.booleans(),
    requests=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 25), st.integers(1, 12)), min_size=1, max_size=8),
)
def test_random_requests_with_adapters_never_share_wrong_kv(
    unified: bool, requests: list[tuple[int, int, int]]
) -> None:
    engine = with_adapters(unified=unified)
    stem = [1 + i * 7 % 60 for i in range(30)]
    tasks = []
    for tag, length, n in requests:
        prompt = [*stem[:length], 7]
        tasks.append((engine.submit(prompt, n, lora=use(tag - 1) if tag else None), prompt, n, tag))
        engine.step(2)
    engine.run()
    for task, prompt, n, tag in tasks:
        assert engine.tokens(task) == continuation(prompt, n, tag)


def test_positions_before_both_starts_are_computed_alike() -> None:
    lora, alora = (((0, 1.0),), 0), (((2, 1.0),), 10)
    assert common_validity(PLAIN, alora, 20) == 10
    assert common_validity(lora, alora, 20) == 0
    assert common_validity(alora, alora, 20) == 20
    assert common_validity(PLAIN, PLAIN, 20) == 20


def test_the_last_occurrence_counts() -> None:
    tokens = np.array([1, 2, 3, 1, 2], np.int32)
    assert last_occurrence(tokens, [1, 2]) == 3
    assert last_occurrence(tokens, [3, 3]) is None
    assert last_occurrence(tokens[:1], [1, 2]) is None
