"""/v1/chat/completions against an engine without a model: what clients see of its answers."""

import json
from pathlib import Path
from typing import Any

import pytest

from ipc.config import Config
from ipc.messages import Task
from tests.acts import acts
from tests.api_client import CONFIG, Api, until
from tests.api_client import run as run_api
from tests.chat_answers import call_of, joined, without_ids
from tests.chat_vocab import ARGUMENTS, ASKED, SAID, THOUGHT, TOOLS, TRANSCRIPT, ChatVocab, pieces
from tests.fake_engine import Script

CHAT = "/v1/chat/completions"
ASK = {"messages": ASKED}
PLAIN = "{{ messages[0]['content'] }}"  # a template without thinking and tools
WITH_TOOLS = {**ASK, "tools": TOOLS}
CALLS = [call_of("get_weather", ARGUMENTS[0]), call_of("get_time", ARGUMENTS[1])]


def run(test: Any, folder: Path, text: str = "", config: Config = CONFIG, template: str | None = None) -> None:
    """Run a test against a model that answers `text`; "" answers "w0 w1 …"."""
    script = Script(pieces=pieces(text) if text else None, step_seconds=0.002)
    run_api(test, folder, script, config, ChatVocab() if template is None else ChatVocab(template))


async def chunks(api: Api, body: dict[str, Any]) -> list[dict[str, Any]]:
    """A stream without its [DONE]."""
    *found, done = await api.events(CHAT, body)
    assert done == "[DONE]"
    return found


def probabilities(found: list[dict[str, Any]]) -> list[Any]:
    """The log-probabilities of all chunks."""
    choices = [choice for one in found for choice in one["choices"]]
    return [item for choice in choices if "logprobs" in choice for item in choice["logprobs"]["content"]]


@pytest.mark.parametrize("path", [CHAT, "/chat/completions", "/api/chat"])
def test_a_whole_answer(tmp_path: Path, path: str) -> None:
    async def test(api: Api) -> None:
        answer = await api.json(path, {**ASK, "model": "other", "max_completion_tokens": 9, "max_tokens": 2})
        assert answer["choices"] == [
            {"finish_reason": "length", "index": 0, "message": {"role": "assistant", "content": "w0 w1 "}}
        ]
        assert (answer["object"], answer["model"]) == ("chat.completion", "other")
        assert answer["usage"] == {
            "completion_tokens": 2,
            "prompt_tokens": len(ASKED[0]["content"]),
            "total_tokens": 2 + len(ASKED[0]["content"]),
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        assert answer["timings"]["predicted_n"] == 2
        assert set(answer) == {
            "choices", "created", "id", "model", "system_fingerprint", "object", "usage", "timings",
        }  # fmt: skip

    run(test, tmp_path, template=PLAIN)


def test_the_grammar_of_a_stream(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        found = await chunks(api, {**ASK, "max_tokens": 3})
        assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
        assert all("finish_reason" in one["choices"][0] for one in found)
        assert not any("usage" in one or not one["choices"] for one in found)
        assert joined(found)["message"]["content"] == "w0 w1 w2 "
        assert joined(found)["finish_reason"] == "length"
        assert len({(one["id"], one["created"], one["model"], one["object"]) for one in found}) == 1
        assert ["timings" in one for one in found] == [False] * (len(found) - 1) + [True]
        again = await chunks(api, ASK)
        assert again[0]["id"] != found[0]["id"]

    run(test, tmp_path, template=PLAIN)


def test_usage_in_a_stream_is_one_more_chunk(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        *rest, last = await chunks(api, {**ASK, "max_tokens": 3, "stream_options": {"include_usage": True}})
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 3
        assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
        assert "timings" in last
        assert not any("usage" in one or "timings" in one for one in rest)

    run(test, tmp_path, template=PLAIN)


@pytest.mark.parametrize(
    ("form", "stream", "apart"),
    [
        ("auto", False, True),
        ("deepseek", True, True),
        ("deepseek-legacy", False, True),
        ("deepseek-legacy", True, False),
        ("none", False, False),
        ("none", True, False),
    ],
)
@acts("reasoning_format")
def test_thinking_and_calls(tmp_path: Path, form: str, stream: bool, apart: bool) -> None:
    async def test(api: Api) -> None:
        body = {**WITH_TOOLS, "reasoning_format": form}
        if stream:
            choice = joined(await chunks(api, body))
        else:
            choice = (await api.json(CHAT, body))["choices"][0]
            choice["message"] = without_ids(choice["message"])
        message = choice["message"]
        assert message["tool_calls"] == CALLS
        assert choice["finish_reason"] == "tool_calls"
        if apart:
            assert (message["reasoning_content"], message["content"]) == (THOUGHT, SAID)
        else:
            assert "reasoning_content" not in message
            assert message["content"].replace("<think>", "").lstrip() == f"{THOUGHT}\n</think>\n\n{SAID}"

    run(test, tmp_path, TRANSCRIPT)


def test_calls_that_were_cut_or_cannot_be_read(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        api.engine.script.pieces = ["x\n</think>\n\n", '<tool_call>{"name": "get_weather", "arguments": {"ci', "ty"]
        for body in ({**WITH_TOOLS, "max_tokens": 2}, {**WITH_TOOLS, "max_tokens": 2, "stream": True}):
            choice = joined(await chunks(api, body)) if "stream" in body else (await api.json(CHAT, body))["choices"][0]
            assert choice["finish_reason"] == "length"
            assert choice["message"]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": '{"ci'}
        api.engine.script.pieces = ["x\n</think>\n\n", "<tool_call>get_weather?"]
        choice = (await api.json(CHAT, WITH_TOOLS))["choices"][0]
        assert choice["message"]["content"] == "<tool_call>get_weather?"
        assert choice["finish_reason"] == "stop"

    run(test, tmp_path, TRANSCRIPT)


def test_thinking_is_counted(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        usage = (await api.json(CHAT, ASK))["usage"]
        assert usage["completion_tokens_details"] == {"reasoning_tokens": len(THOUGHT)}, "a token is a byte"
        *_, last = await chunks(api, {**ASK, "stream_options": {"include_usage": True}})
        assert last["usage"] == usage

    run(test, tmp_path, f"{THOUGHT}\n</think>\n\n" + SAID * 5)


def test_several_answers(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        body = {**ASK, "n": 2, "max_tokens": 3, "seed": 5}
        whole = await api.json(CHAT, body)
        assert [choice["index"] for choice in whole["choices"]] == [0, 1]
        assert whole["usage"]["completion_tokens"] == 6
        assert whole["usage"]["prompt_tokens"] == len(ASKED[0]["content"])
        assert [task.sampling.seed for task in api.engine.got(Task)] == [5, 6]  # type: ignore[union-attr]
        found = await chunks(api, {**body, "stream_options": {"include_usage": True}})
        assert [joined(found, index) for index in (0, 1)] == whole["choices"]
        assert found[-1]["usage"]["completion_tokens"] == 6
        assert "between 1 <= value <= 4" in (await api.error(CHAT, {**ASK, "n": 5}))[2]

    run(test, tmp_path, template=PLAIN)


def test_log_probabilities(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        body = {**ASK, "max_tokens": 2, "logprobs": True}
        item, second = (await api.json(CHAT, {**body, "top_logprobs": 2}))["choices"][0]["logprobs"]["content"]
        assert set(item) == {"id", "token", "bytes", "logprob", "top_logprobs"}
        assert [top["id"] for top in second["top_logprobs"]] == [1, 0]
        bare = (await api.json(CHAT, body))["choices"][0]["logprobs"]["content"]
        assert bare[0] == {**item, "top_logprobs": []}
        streamed = await chunks(api, body)
        assert probabilities(streamed) == bare
        assert "logprobs" not in (await api.json(CHAT, {**body, "logprobs": False}))["choices"][0]

    run(test, tmp_path, template=PLAIN)


def test_probabilities_of_withheld_text_come_with_the_rest(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        found = await chunks(api, {**ASK, "logprobs": True})
        assert len(probabilities(found)) == len(pieces(TRANSCRIPT))

    run(test, tmp_path, TRANSCRIPT)


def test_progress_and_timings_of_a_stream(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        found = await chunks(api, {**ASK, "max_tokens": 2, "return_progress": True, "timings_per_token": True})
        progress = [one["prompt_progress"] for one in found if "prompt_progress" in one]
        assert [set(one) for one in progress] == [{"total", "cache", "processed", "time_ms"}]
        assert sum("timings" in one for one in found) >= 2
        assert joined(found)["message"]["content"] == "w0 w1 "

    run(test, tmp_path, template=PLAIN)


def test_the_native_result_when_verbose(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        body = {**ASK, "max_tokens": 2, "verbose": True}
        native = (await api.json(CHAT, body))["__verbose"]
        assert (native["content"], native["stop_type"]) == ("w0 w1 ", "limit")
        found = await chunks(api, body)
        assert ["__verbose" in one for one in found].count(True) == 1
        assert found[-1]["__verbose"]["generation_settings"]["chat_format"] == "automatic"

    run(test, tmp_path, template=PLAIN)


def test_tools_that_may_not_be_called_are_text(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        for body in ({**WITH_TOOLS, "tool_choice": "none"}, {**ASK, "tool_choice": "none"}):
            choice = (await api.json(CHAT, body))["choices"][0]
            assert "tool_calls" not in choice["message"]
            assert choice["message"]["content"].startswith(SAID + "\n<tool_call>")
            assert choice["finish_reason"] == "stop"

    run(test, tmp_path, TRANSCRIPT)


def test_the_beginning_of_an_answer_is_repeated_on_demand(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        body = {"messages": [*ASKED, {"role": "assistant", "content": "It is "}], "max_tokens": 2}
        assert (await api.json(CHAT, body))["choices"][0]["message"]["content"] == "w0 w1 "
        assert (await api.json(CHAT, {**body, "echo": True}))["choices"][0]["message"]["content"] == "It is w0 w1 "
        assert joined(await chunks(api, {**body, "echo": True}))["message"]["content"] == "It is w0 w1 "
        prompt = (await api.json("/apply-template", body))["prompt"]
        assert prompt.endswith("It is ")

    run(test, tmp_path)


def test_templates_and_counts(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        prompt = (await api.json("/apply-template", WITH_TOOLS))["prompt"]
        assert prompt.endswith("<|im_start|>assistant\n<think>\n")
        assert '"get_weather"' in prompt
        n = len(ChatVocab().encode(prompt))
        for path in (CHAT + "/input_tokens", "/chat/completions/input_tokens"):
            assert await api.json(path, WITH_TOOLS) == {"object": "response.input_tokens", "input_tokens": n}
        assert not api.engine.got(Task)
        props = (await api.get("/props")).json
        assert props["chat_template"] == ChatVocab().template
        assert props["chat_template_caps"]["supports_tools"] is True

    run(test, tmp_path)


def test_a_stream_that_fails_ends_with_an_error_and_without_done(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        async with api.open(CHAT, ASK) as stream:
            assert await stream.part()
            await until(lambda: api.engine.got(Task))
            api.engine.die()
            last = (await stream.rest()).strip().split("\n\n")[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == 503

    run_api(test, tmp_path, Script(step_seconds=0.05), CONFIG, ChatVocab(PLAIN))
