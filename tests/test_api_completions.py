"""/completion, /v1/completions and /infill against an engine without a model."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ipc.messages import Error, Sampling, Task
from tests.acts import acts
from tests.api_client import CONFIG, Api, events, run, until
from tests.fake_engine import Script

NATIVE = {
    "index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted", "tokens_evaluated",
    "generation_settings", "prompt", "has_new_line", "truncated", "stop_type", "stopping_word", "tokens_cached",
    "timings",
}  # fmt: skip
PARTIAL = {"index", "content", "tokens", "stop", "id_slot", "tokens_predicted", "tokens_evaluated"}
TIMINGS = {
    "cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_n", "predicted_ms",
    "predicted_per_token_ms", "predicted_per_second", "queue_ms",
}  # fmt: skip


def test_a_whole_native_answer(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        answer = await api.json("/completion", {"prompt": "abc", "n_predict": 2, "seed": 7})
        assert set(answer) == NATIVE
        assert (answer["content"], answer["tokens"], answer["prompt"]) == ("w0 w1 ", [], "abc")
        assert (answer["tokens_predicted"], answer["tokens_evaluated"], answer["tokens_cached"]) == (2, 3, 5)
        assert (answer["stop_type"], answer["stop"], answer["model"]) == ("limit", True, "tiny")
        assert set(answer["timings"]) == TIMINGS
        assert answer["timings"]["predicted_per_second"] == 500  # one step in 2 ms
        assert answer["generation_settings"]["seed"] == 7

    run(test, tmp_path)


def test_the_stream_joins_to_the_whole_answer(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        body = {"prompt": "abc", "n_predict": 5}
        *partials, final = await api.events("/completion", body)
        whole = await api.json("/completion", body)
        assert "".join(one["content"] for one in partials) == whole["content"]
        assert all(set(one) == PARTIAL and not one["stop"] for one in partials)
        assert [token for one in partials for token in one["tokens"]] == [0, 1, 2, 3, 4]
        assert partials[-1]["tokens_predicted"] == 5
        assert (final["content"], final["tokens"]) == ("", [])
        assert {**final, "content": "", "timings": 0, "generation_settings": 0} == {
            **whole, "content": "", "timings": 0, "generation_settings": 0,
        }  # fmt: skip

    run(test, tmp_path)


def test_an_openai_answer(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        answer = await api.json("/v1/completions", {"prompt": "abc", "max_tokens": 2, "model": "other"})
        assert answer["choices"] == [{"text": "w0 w1 ", "index": 0, "logprobs": None, "finish_reason": "length"}]
        assert (answer["object"], answer["model"], answer["system_fingerprint"]) == ("text_completion", "other", "fake")
        assert answer["id"].startswith("chatcmpl-")
        assert len(answer["id"]) == len("chatcmpl-") + 32
        assert answer["usage"] == {
            "completion_tokens": 2,
            "prompt_tokens": 3,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        assert set(answer["timings"]) == TIMINGS

    run(test, tmp_path)


def test_an_openai_stream(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        *chunks, last, done = await api.events("/v1/completions", {"prompt": "abc", "max_tokens": 3})
        assert done == "[DONE]"
        assert "".join(one["choices"][0]["text"] for one in chunks) == "w0 w1 w2 "
        assert all(one["choices"][0]["finish_reason"] is None and "usage" not in one for one in chunks)
        assert last["choices"][0] == {"text": "", "index": 0, "logprobs": None, "finish_reason": "length"}
        assert last["usage"]["completion_tokens"] == 3
        assert "timings" in last
        assert len({(one["id"], one["created"], one["model"]) for one in [*chunks, last]}) == 1

    run(test, tmp_path)


@acts("stream_options")
def test_usage_has_a_chunk_of_its_own_when_asked_for(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        body: dict[str, Any] = {"prompt": "abc", "max_tokens": 1, "n": 2}
        *_, last, done = await api.events("/v1/completions", {**body, "stream_options": {"include_usage": True}})
        assert done == "[DONE]"
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 2
        without = await api.events("/v1/completions", body)
        assert all(one["choices"] for one in without if one != "[DONE]")

    run(test, tmp_path)


@acts("n_cmpl")
def test_several_prompts_and_completions(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        body = {"prompt": ["a", [1, 2]], "n": 2, "max_tokens": 1, "seed": 5}
        native = await api.json("/completion", body)
        assert [one["index"] for one in native] == [0, 1, 2, 3]
        assert [one["tokens_evaluated"] for one in native] == [1, 1, 2, 2]
        assert [one["generation_settings"]["seed"] for one in native] == [5, 6, 5, 6]
        answer = await api.json("/v1/completions", body)
        assert [one["index"] for one in answer["choices"]] == [0, 1, 2, 3]
        assert (answer["usage"]["completion_tokens"], answer["usage"]["prompt_tokens"]) == (4, 3)

    run(test, tmp_path)


def test_a_stream_of_several_completions_ends_each_once(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        chunks = await api.events("/v1/completions", {"prompt": ["a", "b"], "n": 2, "max_tokens": 3})
        choices = [one["choices"][0] for one in chunks if one != "[DONE]"]
        for index in range(4):
            mine = [one for one in choices if one["index"] == index]
            assert "".join(one["text"] for one in mine) == "w0 w1 w2 "
            assert [one["finish_reason"] for one in mine if one["finish_reason"]] == ["length"]
        assert chunks[-2]["usage"]["completion_tokens"] == 12
        assert chunks[-2]["usage"]["prompt_tokens"] == 2

    run(test, tmp_path)


def test_stop_words(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        answer = await api.json("/completion", {"prompt": "a", "stop": ["w2"]})
        assert (answer["content"], answer["stop_type"], answer["stopping_word"]) == ("w0 w1 ", "word", "w2")
        answer = await api.json("/v1/completions", {"prompt": "a", "stop": "w2"})
        assert answer["choices"][0]["finish_reason"] == "stop"

    run(test, tmp_path)


@acts("return_tokens", "response_fields")
def test_optional_parts_of_a_native_answer(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        base = {"prompt": "abc", "n_predict": 2}
        assert (await api.json("/completion", {**base, "return_tokens": True}))["tokens"] == [0, 1]
        fields = ["content", "generation_settings/n_predict", "nope", "timings/nope"]
        answer = await api.json("/completion", {**base, "response_fields": fields})
        assert answer == {"content": "w0 w1 ", "generation_settings/n_predict": 2}
        first, *_ = await api.events("/completion", {**base, "return_progress": True})
        assert first["prompt_progress"] == {"total": 3, "cache": 0, "processed": 3, "time_ms": 1.0}
        timed, *_ = await api.events("/completion", {**base, "timings_per_token": True})
        assert set(timed["timings"]) == TIMINGS

    run(test, tmp_path)


@acts("verbose")
def test_verbose_adds_the_native_result(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        body = {"prompt": "abc", "max_tokens": 2, "verbose": True}
        answer = await api.json("/v1/completions", body)
        assert set(answer["__verbose"]) == NATIVE
        first, *_, last, _ = await api.events("/v1/completions", body)
        assert set(first["__verbose"]) == PARTIAL
        assert set(last["__verbose"]) == NATIVE

    run(test, tmp_path)


def test_probabilities_before_sampling(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        body = {"prompt": "abc", "n_predict": 2, "n_probs": 3}
        whole = (await api.json("/completion", body))["completion_probabilities"]
        assert [one["id"] for one in whole] == [0, 1]
        assert [top["id"] for top in whole[1]["top_logprobs"]] == [1, 0, 2]
        assert whole[1]["top_logprobs"][0]["logprob"] == pytest.approx(whole[1]["logprob"])
        *partials, final = await api.events("/completion", body)
        assert [item for one in partials for item in one["completion_probabilities"]] == whole
        assert "completion_probabilities" not in final

    run(test, tmp_path)


def test_probabilities_after_sampling(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        body = {"prompt": "abc", "n_predict": 1, "n_probs": 2, "post_sampling_probs": True}
        [item] = (await api.json("/completion", body))["completion_probabilities"]
        assert item["prob"] == 0.75
        assert [top["prob"] for top in item["top_probs"]] == [0.75, 0.25]

    run(test, tmp_path)


def test_openai_logprobs_in_the_legacy_shape(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        body = {"prompt": "abc", "max_tokens": 2, "logprobs": 2}
        logprobs = (await api.json("/v1/completions", body))["choices"][0]["logprobs"]
        assert set(logprobs) == {"tokens", "token_logprobs", "top_logprobs", "text_offset", "content"}
        assert logprobs["tokens"] == ["\0", "\1"]
        assert len(logprobs["top_logprobs"][0]) == 2
        chunks = await api.events("/v1/completions", body)
        streamed = [one["choices"][0]["logprobs"] for one in chunks[:-2]]
        assert [value for one in streamed for value in one["token_logprobs"]] == logprobs["token_logprobs"]
        assert chunks[-2]["choices"][0]["logprobs"] is None

    run(test, tmp_path)


def test_the_stop_words_tokens_have_no_probabilities_in_a_whole_answer(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        body = {"prompt": "a", "stop": ["c"], "n_probs": 1}
        answer = await api.json("/completion", body)
        assert answer["content"] == "ab"
        assert len(answer["completion_probabilities"]) == 2

    run(test, tmp_path, Script(pieces=["a", "b", "c", "d"]))


@acts("echo")
def test_echo_scores_the_prompt(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        body = {"prompt": "abcd", "echo": True, "logprobs": 1, "max_tokens": 1}
        [choice] = (await api.json("/v1/completions", body))["choices"]
        assert choice["text"] == "abcdw0 "
        logprobs = choice["logprobs"]
        assert logprobs["tokens"] == ["a", "b", "c", "d", "\0"]
        assert logprobs["token_logprobs"][0] is None
        assert logprobs["top_logprobs"][0] is None
        assert [list(top) for top in logprobs["top_logprobs"][1:4]] == [["b"], ["c"], ["d"]]
        assert logprobs["text_offset"] == [0, 1, 2, 3, 4]
        chunks = await api.events("/v1/completions", body)
        assert "".join(one["choices"][0]["text"] for one in chunks[:-1]) == choice["text"]
        streamed = [one["choices"][0]["logprobs"] for one in chunks[:-2]]
        assert [value for one in streamed for value in one["token_logprobs"]] == logprobs["token_logprobs"]

    run(test, tmp_path)


def test_echo_without_logprobs(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        body = {"prompt": [[97, 98], "x"], "echo": True, "max_tokens": 1, "n": 2}
        choices = (await api.json("/v1/completions", body))["choices"]
        assert [one["text"] for one in choices] == ["abw0 ", "abw0 ", "xw0 ", "xw0 "]

    run(test, tmp_path)


def test_prompt_log_probabilities_of_a_native_answer(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        body = {"prompt": "abc", "n_predict": 0, "prompt_logprobs": 2}
        items = (await api.json("/completion", body))["prompt_probabilities"]
        assert items[0] is None
        assert [one["id"] for one in items[1:]] == [98, 99]
        assert len(items[1]["top_logprobs"]) == 2
        *_, final = await api.events("/completion", body)
        assert final["prompt_probabilities"] == items

    run(test, tmp_path)


def test_what_the_engine_is_asked(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await api.json("/completion", {"prompt": "a", "temperature": 0, "n_predict": 3, "id_slot": 2})
        [task] = api.engine.got(Task)
        assert isinstance(task, Task)
        assert (task.max_tokens, task.slot, task.stream, task.sampling.temperature) == (3, 2, False, 0)
        assert task.sampling == replace(Sampling(), temperature=0.0)

    run(test, tmp_path)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_a_refused_request_has_its_own_status(tmp_path: Path, path: str, stream: bool) -> None:
    text = "request (900 tokens) exceeds the available context size (512 tokens), try increasing it"
    error = Error(400, "exceed_context_size_error", text, n_prompt_tokens=900, n_ctx=512)

    async def test(api: Api) -> None:
        result = await api.post(path, {"prompt": "a", "stream": stream})
        assert result.status_code == 400
        assert result.json["error"] == {
            "code": 400, "message": text, "type": "exceed_context_size_error", "n_prompt_tokens": 900, "n_ctx": 512,
        }  # fmt: skip

    run(test, tmp_path, Script(refuse=error))


def test_one_refusal_of_several_cancels_the_others(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        result = await api.post("/completion", {"prompt": ["a", "b"]})
        assert result.status_code == 429
        assert "retry-after" in result.headers

    run(test, tmp_path, Script(refuse=Error(429, "unavailable_error", "the queue is full")))


ENDLESS = {"prompt": "a", "n_predict": 100_000}


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_an_error_after_the_headers_is_the_last_event(tmp_path: Path, path: str) -> None:
    async def test(api: Api) -> None:
        async with api.open(path, ENDLESS) as stream:
            await stream.part()
            api.engine.die()
            last = events(await stream.rest())[-1]
        assert (last["error"]["code"], last["error"]["type"]) == (503, "unavailable_error")

    run(test, tmp_path, Script(step_seconds=0.01))


def test_a_dead_engine_is_an_error_of_whole_answers(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        request = asyncio.create_task(api.error("/completion", ENDLESS))
        await until(lambda: api.engine.got(Task))
        api.engine.die()
        assert (await request)[:2] == (503, "unavailable_error")

    run(test, tmp_path, Script(step_seconds=0.01))


@pytest.mark.parametrize("script", [Script(step_seconds=0.01), Script(hold=True)], ids=["generating", "queued"])
def test_a_client_that_leaves_a_stream_aborts_its_tasks(tmp_path: Path, script: Script) -> None:
    async def test(api: Api) -> None:
        async with api.open("/completion", {"prompt": ["a", "b"], "n_predict": 1000}):
            await until(lambda: len(api.engine.got(Task)) == 2)
        await until(lambda: len(api.engine.aborted) == 2)

    run(test, tmp_path, script)


@pytest.mark.parametrize("script", [Script(step_seconds=0.01), Script(hold=True)], ids=["generating", "queued"])
def test_a_client_that_leaves_before_a_whole_answer_aborts_its_tasks(tmp_path: Path, script: Script) -> None:
    async def test(api: Api) -> None:
        request = asyncio.create_task(api.post("/completion", {"prompt": ["a", "b"], "n_predict": 1000}))
        await until(lambda: len(api.engine.got(Task)) == 2)
        request.cancel()
        await until(lambda: len(api.engine.aborted) == 2)

    run(test, tmp_path, script)


@acts("sse_ping_interval")
def test_pings_while_a_stream_is_queued(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        body = {"prompt": "a", "n_predict": 2, "sse_ping_interval": 1}
        async with api.open("/completion", body) as stream:
            assert await stream.part() == b":\n\n"  # long before the interval: it carries the headers
            assert await stream.part() == b":\n\n"
            api.engine.script.hold = False
            assert '"stop":true' in await stream.rest()

    run(test, tmp_path, Script(hold=True))


def test_no_pings_when_they_are_off(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        request = asyncio.create_task(api.post("/completion", {"prompt": "a", "stream": True, "sse_ping_interval": -1}))
        await until(lambda: api.engine.got(Task))
        await asyncio.sleep(0.3)  # longer than a first silence
        api.engine.script.hold = False
        assert (await request).text.startswith("data: ")

    run(test, tmp_path, Script(hold=True))


INFILL = {"input_prefix": "ab", "input_suffix": "cd", "n_predict": 1}


def prompt_of(api: Api) -> list[int]:
    task = api.engine.got(Task)[-1]
    assert isinstance(task, Task)
    return memoryview(task.tokens).cast("i").tolist()


def test_infill_puts_the_marks_around_prefix_and_suffix(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        assert (await api.json("/infill", {**INFILL, "prompt": "e"}))["content"] == "w0 "
        assert prompt_of(api) == [258, 97, 98, 101, 259, 99, 100, 260]

    run(test, tmp_path)


def test_infill_of_a_model_that_wants_the_suffix_first(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await api.json("/infill", INFILL)
        assert prompt_of(api) == [259, 99, 100, 258, 97, 98, 260]

    run(test, tmp_path, config=replace(CONFIG, engine=replace(CONFIG.engine, spm_infill=True)))


def test_infill_keeps_what_is_near_the_gap(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        body = {**INFILL, "input_prefix": "p" * 500 + "q" * 384, "input_suffix": "s" * 126 + "t" * 500}
        extra = [{"text": "y" * 600 + "z" * 512, "filename": "f"}]
        await api.json("/infill", {**body, "input_extra": extra})
        expected = ["z" * 512 + "\0", "q" * 384, "s" * 126]
        tokens = prompt_of(api)
        assert bytes(t for t in tokens if t < 256).decode() == "".join(expected).replace("\0", "")
        assert tokens.index(258) == 512

    # 1024 of context - 512 of a batch leaves 512 for other files
    run(test, tmp_path, config=replace(CONFIG, engine=replace(CONFIG.engine, predict=0)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_prefix": None}, '"input_prefix" is required'),
        ({"input_suffix": None}, '"input_suffix" is required'),
        ({"input_suffix": 3}, '"input_suffix" must be a string'),
        ({"prompt": 3}, '"prompt" must be a string'),
        ({"input_extra": "x"}, '"input_extra" must be an array of {"filename": string, "text": string}'),
        ({"input_extra": [{}]}, 'extra_context chunk must contain a "text" field with a string value'),
        ({"input_extra": [{"text": "a", "filename": 1}]}, 'extra_context chunk\'s "filename" field must be a string'),
    ],
)
def test_bad_infill_requests(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    async def test(api: Api) -> None:
        assert await api.error("/infill", {**INFILL, **change}) == (400, "invalid_request_error", message)

    run(test, tmp_path)
