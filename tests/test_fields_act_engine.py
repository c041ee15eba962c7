"""What each field of a request that the engine obeys does to a generation, on a model in plain Python."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from api.schema import Schema
from engine.sequence import Sequence
from ipc.config import Config
from ipc.messages import EndReasoning, Failure, Progress, PromptProbs, Queued
from tests.acts import Asked, acts
from tests.fake_context import continuation
from tests.step_engine import FakeAdapter, StepEngine
from tests.tiny_vocab import TinyVocab

pytestmark = pytest.mark.usefixtures("lib")
SCHEMA = Schema(Config(), TinyVocab())
PROMPT = [1, 2, 3, 4, 5]
FOREVER = {"n_predict": 200}


class Fake(Asked, StepEngine):
    """Requests for the model in plain Python."""

    schema = SCHEMA

    def ask(self, body: dict[str, Any], prompt: list[int] | None = None) -> int:
        return super().ask(body, prompt or PROMPT)

    def answer(self, body: dict[str, Any], prompt: list[int] | None = None) -> int:
        return super().answer(body, prompt or PROMPT)


def text_of(tokens: list[int]) -> str:
    return "".join(chr(64 + token) for token in tokens)


@acts("n_predict")
@pytest.mark.parametrize("name", ["n_predict", "max_tokens", "max_completion_tokens"])
def test_the_token_cap_ends_with_limit(name: str) -> None:
    engine = Fake()
    task = engine.answer({"n_predict": None, name: 3})
    assert (engine.tokens(task), engine.final(task).reason) == (continuation(PROMPT, 3), "limit")


@acts("stream")
def test_a_stream_comes_in_pieces() -> None:
    engine = Fake()
    pieces, whole = (engine.deltas(engine.answer({"stream": stream})) for stream in (True, False))
    assert (len(pieces), len(whole)) == (4, 1)
    assert [token for delta in pieces for token in delta.tokens] == whole[0].tokens


@acts("timings_per_token")
def test_timings_come_with_every_token_when_asked_for() -> None:
    engine = Fake()
    timed, plain = (engine.deltas(engine.answer({"timings_per_token": wanted})) for wanted in (True, False))
    assert [delta.timings.predicted_n for delta in timed if delta.timings] == [1, 2, 3, 4]
    assert not any(delta.timings for delta in plain)


@acts("return_progress")
def test_progress_is_told_while_the_prompt_is_read() -> None:
    engine = Fake(n_ctx=256)
    for wanted in (True, False):
        task = engine.answer({"return_progress": wanted, "cache_prompt": False}, list(range(1, 41)))
        told = [result.processed for result in engine.results(task) if isinstance(result, Progress)]
        assert told == ([0, 16, 32, 40] if wanted else [])


@acts("return_queue_position")
def test_the_place_in_the_queue_is_told_whenever_it_changes() -> None:
    engine = Fake(n_slots=1)
    running = engine.ask({"n_predict": 5})
    engine.step(2)
    first, second, silent = (engine.ask({"return_queue_position": asked}) for asked in (True, True, False))
    whole = engine.ask({"return_queue_position": True, "stream": False})
    urgent = engine.ask({"priority": 1})
    engine.run()

    def told(task: int) -> list[int]:
        return [result.position for result in engine.results(task) if isinstance(result, Queued)]

    assert told(first) == [1, 0]
    assert told(second) == [2, 1, 0]
    assert [told(task) for task in (running, silent, whole, urgent)] == [[], [], [], []]


@acts("cache_prompt")
def test_a_prompt_is_read_again_without_the_cache() -> None:
    engine = Fake()
    engine.answer({})
    assert [engine.final(engine.answer({"cache_prompt": cache})).timings.cache_n for cache in (True, False)] == [4, 0]


@acts("n_cache_reuse")
def test_a_long_enough_stretch_is_moved_to_its_new_place() -> None:
    begin, gone, rest = list(range(1, 11)), [40] * 6, list(range(20, 40))
    for shortest, cached in ((0, 10), (15, 29), (25, 10)):
        engine = Fake(n_slots=1, n_ctx=256)
        engine.answer({}, begin + gone + rest)
        assert engine.final(engine.answer({"n_cache_reuse": shortest}, begin + rest)).timings.cache_n == cached


@acts("n_keep", "n_discard")
@pytest.mark.parametrize(("keep", "discard", "left"), [(5, 4, 4), (0, 3, 3), (-1, 2, 2), (6, 0, 12)])
def test_a_context_shift_keeps_and_drops_as_asked(keep: int, discard: int, left: int) -> None:
    prompt = list(range(1, 11))
    engine = Fake(n_slots=1, n_ctx=32, context_shift=True)
    task = engine.ask({"n_keep": keep, "n_discard": discard, **FOREVER}, prompt)
    while len(engine.tokens(task)) < 24:
        engine.step()
    kept = 10 if keep == -1 else keep
    everything = prompt + engine.tokens(task)
    assert engine.slots[0].tokens.view.tolist() == everything[:kept] + everything[kept + left :]


@acts("id_slot")
def test_a_request_runs_in_the_slot_it_names() -> None:
    engine = Fake(n_slots=3, n_ctx=256)
    assert [engine.final(engine.answer({"id_slot": slot})).slot for slot in (2, 0, 1)] == [2, 0, 1]


@acts("priority")
def test_a_higher_priority_comes_first() -> None:
    engine = Fake(n_slots=1)
    engine.ask({"n_predict": 8})
    engine.step(2)
    low, high = engine.ask({"priority": -5}), engine.ask({"priority": 3})
    while not engine.finals(high):
        engine.step()
    assert not engine.finals(low)


@acts("deadline_ms", "t_max_prompt_ms")
@pytest.mark.parametrize(
    ("name", "queued_ms", "in_time"), [("deadline_ms", 600, False), ("t_max_prompt_ms", 600, True)]
)
def test_time_limits_before_the_first_token(name: str, queued_ms: int, in_time: bool) -> None:
    """The one counts the queue, too; the other only the prompt."""
    engine = Fake(n_slots=1, n_ctx=256)
    engine.ask({"n_predict": 30})
    engine.step(2)
    waiting = engine.ask({name: 500})
    engine.step()
    engine.now += queued_ms
    engine.run()
    assert (engine.final(waiting).error is None) is in_time
    reading = engine.ask({name: 500, "cache_prompt": False}, [9] * 100)
    engine.step(2)
    engine.now += 600
    engine.run()
    assert (engine.error(reading).code, engine.error(reading).type) == (408, "timeout_error")


@acts("lora")
def test_a_request_chooses_its_adapters() -> None:
    engine = Fake(n_ctx=256)
    engine.adapters.add(FakeAdapter("a.gguf", 1), 0.0)  # type: ignore[arg-type]
    task = engine.answer({"lora": [{"id": 0, "scale": 1}]})
    assert engine.tokens(task) == continuation(PROMPT, 4, tag=1)
    assert engine.tokens(engine.answer({})) == continuation(PROMPT, 4)
    unknown = engine.error(engine.answer({"lora": [{"id": 9, "scale": 1}]}))
    assert unknown.code == 400 and "lora" in unknown.message


@acts("stop")
@pytest.mark.parametrize("several", [False, True])
def test_a_stop_string_ends_the_text_before_it(several: bool) -> None:
    text = text_of(continuation(PROMPT, 8))
    engine = Fake()
    task = engine.answer({"stop": ["??", text[3:5], text[5]] if several else text[3:5], "n_predict": 8})
    assert engine.text(task) == text[:3]
    assert (engine.final(task).reason, engine.final(task).stopping_word) == ("word", text[3:5])


@acts("n_probs", "post_sampling_probs")
def test_probabilities_come_with_every_token() -> None:
    engine = Fake()
    raw = engine.deltas(engine.answer({"n_probs": 2}))
    after = engine.deltas(engine.answer({"n_probs": 2, "post_sampling_probs": True, "temperature": 1, "seed": 1}))
    for delta in raw:
        source = delta.probs[0].logits
        assert source is not None and int(np.frombuffer(source.inline, "<f4").argmax()) == delta.tokens[0]
    for delta in after:
        best = delta.probs[0].candidates
        assert best is not None and best[0][1] > 0.99
    assert not any(delta.probs for delta in engine.deltas(engine.answer({})))


@acts("prompt_logprobs")
def test_the_prompt_is_scored_when_asked_for() -> None:
    engine = Fake()
    for wanted in (2, None):
        results = engine.results(engine.answer({"prompt_logprobs": wanted, "n_predict": 1}))
        rows = [row for result in results if isinstance(result, PromptProbs) for row in result.rows]
        assert len(rows) == (len(PROMPT) - 1 if wanted else 0)


def thinking(more: dict[str, Any]) -> dict[str, Any]:
    """A request whose thinking begins with its second token; 60 ends it, 61 is said before."""
    start = chr(continuation(PROMPT, 2)[1])
    return {"n_predict": 12, "reasoning_budget_start_tag": start, "reasoning_budget_end_tags": [chr(60)], **more}


@acts("reasoning_budget_tokens", "reasoning_budget_start_tag", "reasoning_budget_end_tags", "reasoning_budget_message")
@pytest.mark.parametrize(("budget", "message", "at"), [(3, "", 5), (0, "", 2), (3, chr(61), 6), (-1, "", None)])
def test_thinking_ends_with_its_budget(budget: int, message: str, at: int | None) -> None:
    engine = Fake()
    task = engine.answer(thinking({"reasoning_budget_tokens": budget, "reasoning_budget_message": message}))
    tokens = engine.tokens(task)
    if at is None:
        assert tokens == continuation(PROMPT, 12)
    else:
        assert tokens[: at + 1] == [*continuation(PROMPT, 2 + budget), *map(ord, message), 60]
        assert tokens[at + 1 :] == continuation(PROMPT + tokens[: at + 1], 11 - at)


@acts("reasoning_control")
def test_thinking_is_ended_from_outside_if_that_was_allowed() -> None:
    for allowed in (True, False):
        engine = Fake()
        budget = {"reasoning_budget_tokens": None if allowed else 9, "reasoning_control": allowed}
        task = engine.ask(thinking(budget))
        while len(engine.tokens(task)) < 4:
            engine.step()
        engine.server.incoming.append((b"c", EndReasoning(99, task)))
        engine.run()
        assert (engine.tokens(task)[4] == 60) is allowed
        refused = [message for message in engine.server.sent[b"c"] if isinstance(message, Failure)]
        assert [failure.error.code for failure in refused] == ([] if allowed else [404])


def sequence(body: dict[str, Any]) -> Sequence:
    """A sequence as the engine makes it, 1 s after it began to generate."""
    made = Sequence.of(b"c", SCHEMA.read({"stream": True, **body}).task, np.array(PROMPT), None, 0.0)  # type: ignore[arg-type]
    made.clock = replace(made.clock, generating=0.0)
    return made


def feed(made: Sequence, pieces: list[str]) -> str:
    """The text that comes of `pieces`, 100 ms each."""
    text = ""
    for i, piece in enumerate(pieces, 1):
        delta = made.append(i, piece.encode(), False, False, 100.0 * i, None)
        text += delta.text if delta else ""
        if made.finish:
            break
    return text


@acts("n_indent")
def test_a_line_that_is_indented_less_ends_the_text() -> None:
    lines = ["  a", "\n", "   b\n ", " c", "\n d", "\n  e"]
    made = sequence({"n_indent": 2})
    assert (feed(made, lines), made.finish) == ("  a\n   b\n  c\n", "limit")
    assert feed(sequence({}), lines) == "".join(lines)


@acts("t_max_predict_ms")
def test_the_time_limit_ends_the_text_at_a_new_line() -> None:
    pieces = ["a\n", "b", "c", "d\n", "e"]
    made = sequence({"t_max_predict_ms": 250})
    assert (feed(made, pieces), made.finish) == ("a\nbcd\n", "limit")
    assert feed(sequence({}), pieces) == "".join(pieces)
