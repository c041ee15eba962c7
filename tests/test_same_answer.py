"""One answer — a thought, a text and two calls — is the same on every API, whole or streamed, however it is cut."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.api_client import Api
from tests.chat_vocab import ARGUMENTS, ASKED, SAID, THOUGHT, TOOLS, TRANSCRIPT
from tests.wire_events import chat_of, lines, message_of, named_events, prompt_of, response_of, run

SIZES = [1, 2, 3, 5, 8, 1000]
CALLS = [("get_weather", json.loads(ARGUMENTS[0])), ("get_time", {})]
FUNCTIONS = [tool["function"] for tool in TOOLS]
RESPONSES = {"input": ASKED[0]["content"], "tools": [{"type": "function", **function} for function in FUNCTIONS]}
MESSAGES = {
    "messages": ASKED,
    "tools": [{"name": one["name"], "input_schema": one["parameters"]} for one in FUNCTIONS],
}
OLLAMA = {"model": "tiny", "messages": ASKED, "tools": TOOLS}


def said(thought: str, text: str, calls: list[Any]) -> None:
    """The transcript."""
    assert (thought, text) == (THOUGHT, SAID)
    assert calls == CALLS


def check_response(response: dict[str, Any]) -> None:
    """The output is the transcript."""
    reasoning, message, *calls = response["output"]
    assert [item["type"] for item in response["output"]] == ["reasoning", "message", "function_call", "function_call"]
    found = [(call["name"], json.loads(call["arguments"])) for call in calls]
    said(reasoning["content"][0]["text"], message["content"][0]["text"], found)
    assert response["status"] == "completed"
    assert {item["status"] for item in response["output"]} == {"completed"}
    assert len({item["id"] for item in response["output"]}) == 4


def check_message(message: dict[str, Any]) -> None:
    """The content is the transcript."""
    thinking, text, *calls = message["content"]
    said(thinking["thinking"], text["text"], [(call["name"], call["input"]) for call in calls])
    assert message["stop_reason"] == "tool_use"
    assert thinking["signature"] == ""
    assert calls[0]["id"] != calls[1]["id"]


def check_chat(answer: dict[str, Any]) -> None:
    """The message is the transcript."""
    message = answer["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
    said(message["thinking"], message["content"], calls)
    assert [call["function"]["index"] for call in message["tool_calls"]] == [0, 1]
    assert answer["done_reason"] == "stop"


@pytest.mark.parametrize("size", SIZES)
def test_responses(tmp_path: Path, size: int) -> None:
    async def test(api: Api) -> None:
        check_response(await api.json("/v1/responses", RESPONSES))
        check_response(response_of(await named_events(api, "/v1/responses", RESPONSES)))

    run(test, tmp_path, TRANSCRIPT, size=size)


@pytest.mark.parametrize("size", SIZES)
def test_messages(tmp_path: Path, size: int) -> None:
    async def test(api: Api) -> None:
        check_message(await api.json("/v1/messages", MESSAGES))
        check_message(message_of(await named_events(api, "/v1/messages", MESSAGES)))

    run(test, tmp_path, TRANSCRIPT, size=size)


@pytest.mark.parametrize("size", SIZES)
def test_ollama(tmp_path: Path, size: int) -> None:
    async def test(api: Api) -> None:
        check_chat(await api.json("/api/chat", {**OLLAMA, "stream": False}))
        check_chat(chat_of(await lines(api, "/api/chat", OLLAMA)))

    run(test, tmp_path, TRANSCRIPT, size=size)


def test_our_own_answer_may_be_sent_back(tmp_path: Path) -> None:
    """The answer and the tools' results, in each API's own form, give one and the same prompt."""
    prompts: list[bytes] = []

    async def asked(api: Api, path: str, body: dict[str, Any]) -> None:
        await api.json(path, body)
        prompts.append(prompt_of(api))

    async def test(api: Api) -> None:
        output = (await api.json("/v1/responses", RESPONSES))["output"]
        results = [{"type": "function_call_output", "call_id": one["call_id"], "output": "42"} for one in output[2:]]
        items = [{"role": "user", "content": ASKED[0]["content"]}, *output, *results]
        await asked(api, "/v1/responses", {**RESPONSES, "input": items})

        content = (await api.json("/v1/messages", MESSAGES))["content"]
        blocks = [{"type": "tool_result", "tool_use_id": one["id"], "content": "42"} for one in content[2:]]
        turns = [*ASKED, {"role": "assistant", "content": content}, {"role": "user", "content": blocks}]
        await asked(api, "/v1/messages", {**MESSAGES, "messages": turns})

        message = (await api.json("/api/chat", {**OLLAMA, "stream": False}))["message"]
        results = [{"role": "tool", "tool_name": name, "content": "42"} for name, _ in CALLS]
        await asked(api, "/api/chat", {**OLLAMA, "messages": [*ASKED, message, *results], "stream": False})

    run(test, tmp_path, TRANSCRIPT)
    after_tools = [prompt.partition(b"<|im_end|>")[2] for prompt in prompts]  # descriptions differ
    assert THOUGHT.encode() in after_tools[0]
    assert after_tools[0].count(b'"get_weather"') == 1
    assert after_tools[0] == after_tools[1] == after_tools[2]
