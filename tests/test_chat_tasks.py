"""What a chat request makes of the engine's task, and what is wrong with it."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ipc.config import Config
from ipc.messages import EndReasoning, Task
from tests.api_client import CONFIG, Api
from tests.api_client import run as run_api
from tests.chat_answers import call_of
from tests.chat_vocab import ARGUMENTS, ASKED, TOOL_CALL, TOOLS, TRANSCRIPT, ChatVocab, pieces
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


def task_of(api: Api) -> Task:
    """The last task that the engine got."""
    task = api.engine.got(Task)[-1]
    assert isinstance(task, Task)
    return task


def test_null_means_absent(tmp_path: Path) -> None:
    names = ("temperature", "top_p", "stop", "seed", "n", "max_tokens", "tools", "tool_choice", "response_format",
             "logit_bias", "stream_options", "user", "logprobs", "top_logprobs", "grammar", "json_schema",
             "parallel_tool_calls", "reasoning_effort", "chat_template_kwargs", "stream")  # fmt: skip

    async def test(api: Api) -> None:
        plain, same = [await api.json(CHAT, body) for body in (ASK, {**ASK, **dict.fromkeys(names)})]
        assert plain["choices"] == same["choices"]
        tasks = [replace(task, id=0, label="") for task in api.engine.got(Task)]
        assert tasks[0] == tasks[1]

    run(test, tmp_path)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "'messages' is required"),
        ({"messages": "hi"}, "Expected 'messages' to be an array"),
        ({"messages": []}, "'messages' must not be empty"),
        ({"messages": [{"role": "user"}]}, "must contain 'content'"),
        ({**ASK, "temperature": "hot"}, "'temperature'"),
        ({**ASK, "response_format": {"type": "nope"}}, "response_format type must be one of"),
        ({**ASK, "response_format": "json"}, "response_format"),
        ({**ASK, "json_schema": {"type": "nope"}}, "nope"),
        ({**ASK, "grammar": "root ::= x", "json_schema": {}}, "Cannot use both json_schema and grammar"),
        ({**ASK, "top_logprobs": 2}, "top_logprobs requires logprobs"),
        ({**ASK, "logprobs": 3}, "'logprobs'"),
        ({**ASK, "logprobs": True, "top_logprobs": -1}, "'top_logprobs'"),
        ({**WITH_TOOLS, "logprobs": True, "stream": True}, "logprobs is not supported with tools + stream"),
        ({**WITH_TOOLS, "grammar": 'root ::= "a"'}, "Cannot use custom grammar constraints with tools."),
        ({**WITH_TOOLS, "tool_choice": "some"}, "Invalid tool_choice: some"),
        ({**WITH_TOOLS, "tool_choice": {"type": "function", "function": {"name": "nope"}}}, "'nope'"),
        ({**ASK, "tool_choice": "required"}, "there are no tools"),
        ({**ASK, "tools": [{"type": "browser"}]}, "Unsupported tool type"),
        ({**ASK, "tools": {}}, "Failed to parse tools"),
        ({**WITH_TOOLS, "parallel_tool_calls": "yes"}, "'parallel_tool_calls'"),
        ({**ASK, "reasoning_format": "deep"}, "Unknown reasoning format: deep"),
        ({**ASK, "reasoning_effort": 3}, "reasoning_effort"),
        ({**ASK, "chat_template_kwargs": []}, "chat_template_kwargs"),
        ({**ASK, "chat_template_kwargs": {"enable_thinking": "no"}}, "enable_thinking"),
        ({**ASK, "continue_final_message": True}, "Cannot set both add_generation_prompt"),
        ({**ASK, "reasoning_budget_tokens": -2}, "'reasoning_budget_tokens'"),
        ({**ASK, "stream_options": 3}, "stream_options"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "mmproj"),
    ],
    ids=str,
)
def test_faults_of_the_client(tmp_path: Path, body: dict[str, Any], message: str) -> None:
    async def test(api: Api) -> None:
        status, kind, text = await api.error(CHAT, body)
        assert (status, kind) == (400, "invalid_request_error")
        assert message in text
        assert not api.engine.got(Task)

    run(test, tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '"x"', "", "\xff", '{"messages": [[]]}', '{"messages": [1]}'], ids=repr)
def test_bodies_that_are_no_requests(tmp_path: Path, text: str) -> None:
    async def test(api: Api) -> None:
        headers = {"content-type": "text/plain"}  # which nobody looks at
        result = await api.http.simulate_post(CHAT, body=text.encode("latin-1"), headers=headers)
        assert result.status_code == 400
        assert set(result.json["error"]) == {"code", "message", "type"}
        assert (await api.get(CHAT)).status_code == 405

    run(test, tmp_path)


def test_what_the_engine_is_told_of_thinking(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await api.json(CHAT, {**ASK, "max_tokens": 1})
        assert task_of(api).reasoning is None
        await api.json(CHAT, {**ASK, "max_tokens": 1, "thinking_budget_tokens": 7, "reasoning_budget_message": "So"})
        budget = task_of(api).reasoning
        assert budget is not None
        vocab = ChatVocab()
        assert (budget.start, budget.tokens, budget.control) == (vocab.encode("<think>").tolist(), 7, False)
        assert budget.ends == [vocab.encode("</think>").tolist()]
        assert budget.forced == vocab.encode("So</think>").tolist()
        assert budget.prefix == budget.start, "the prompt has opened the thinking"
        await api.json(CHAT, {**ASK, "max_tokens": 1, "reasoning_control": True, "reasoning_effort": "none"})
        budget = task_of(api).reasoning
        assert budget is not None
        assert (budget.control, budget.prefix) == (True, [])

    run(test, tmp_path)


def test_what_the_engine_is_told_of_tools(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await api.json(CHAT, WITH_TOOLS)
        task = task_of(api)
        assert task.constraint is not None
        assert task.constraint.lazy
        assert [trigger.token for trigger in task.constraint.triggers] == [TOOL_CALL]
        assert TOOL_CALL in task.preserved_tokens
        assert task.reasoning is not None, "a call inside the thinking must not wake the constraint"
        await api.json(CHAT, {**WITH_TOOLS, "tool_choice": "required"})
        constraint = task_of(api).constraint
        assert constraint is not None
        assert not constraint.lazy
        await api.json(CHAT, {**WITH_TOOLS, "tool_choice": "none"})
        assert task_of(api).constraint is None
        named = {"type": "function", "function": {"name": "get_time"}}
        await api.json(CHAT, {**WITH_TOOLS, "tool_choice": named})
        constraint = task_of(api).constraint
        assert constraint is not None
        assert "get_weather" not in constraint.text

    run(test, tmp_path, TRANSCRIPT)


def test_a_task_carries_the_id_and_where_messages_begin(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        turns = [ASKED[0], {"role": "assistant", "content": "Fine"}, {"role": "user", "content": "And élan?"}]
        answer = await api.json(CHAT, {"messages": turns, "stop": ["x"], "max_tokens": 1})
        task = task_of(api)
        assert task.label == answer["id"]
        assert task.stop == ["x"]
        text = bytes(min(token, 255) for token in memoryview(task.tokens).cast("i"))
        starts = [ASKED[0]["content"].encode(), "And élan?".encode()]
        assert task.message_starts == [text.index(start) for start in starts]

    run(test, tmp_path)


def test_thinking_is_ended_by_the_completions_id(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        control = CHAT + "/control"
        assert await api.json(control, {"id": "chatcmpl-x", "action": "reasoning_end"}) == {"success": True}
        message = api.engine.got(EndReasoning)[0]
        assert isinstance(message, EndReasoning)
        assert message.label == "chatcmpl-x"
        assert (await api.error(control, {"action": "reasoning_end"}))[2] == "missing completion id"
        assert (await api.error(control, {"id": "x", "action": "stop"}))[2] == "unknown control action"

    run(test, tmp_path)


def test_the_servers_settings_hold(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await api.json(CHAT, {**WITH_TOOLS, "max_tokens": 1000})
        task = task_of(api)
        assert task.max_tokens == 50
        assert task.constraint is None
        message = (await api.json(CHAT, WITH_TOOLS))["choices"][0]["message"]
        assert message == {"role": "assistant", "content": TRANSCRIPT[: 3 * 50]}

    chat = replace(CONFIG.chat, skip_parsing=True)
    run(test, tmp_path, TRANSCRIPT, replace(CONFIG, chat=chat, engine=replace(CONFIG.engine, predict=50)))


def test_what_was_relaxed_of_a_schema_is_told(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        schema = {"type": "object", "properties": {"a": {"type": "string", "format": "telephone"}}}
        result = await api.post(CHAT, {**ASK, "json_schema": schema, "max_tokens": 1})
        assert result.status_code == 200, result.text
        assert "response_format: a: format 'telephone'" in result.headers["x-llamarada-warning"]

    run(test, tmp_path)
