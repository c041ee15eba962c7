"""/v1/messages against an engine without a model."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ipc.messages import Abort, Error, Task
from tests.api_client import CONFIG, Api, until
from tests.chat_vocab import TRANSCRIPT
from tests.wire_events import PLAIN, message_of, named_events, run, task_of

PATH = "/v1/messages"
ASK = {"max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]}
TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in ("get_weather", "get_time")]


def test_a_whole_message(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        answer = await api.json(PATH, {**ASK, "model": "other"})
        assert answer.pop("id").startswith("chatcmpl-")
        assert answer == {
            "type": "message",
            "role": "assistant",
            "model": "other",
            "content": [{"type": "text", "text": "w0 w1 w2 "}],
            "stop_reason": "max_tokens",
            "stop_sequence": None,
            "usage": {
                "input_tokens": 2,
                "output_tokens": 3,
                "cache_read_input_tokens": 0,
                "cache_creation_input_tokens": 0,
            },
        }

    run(test, tmp_path, template=PLAIN)


def test_events_tell_the_whole_message(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        body = {**ASK, "max_tokens": 500, "tools": TOOLS}
        events = await named_events(api, PATH, body)
        start = events[0]["message"]
        assert (start["role"], start["stop_reason"], start["usage"]["output_tokens"]) == ("assistant", None, 0)
        assert start["usage"]["input_tokens"] > 0
        starts = [event["content_block"] for event in events if event["type"] == "content_block_start"]
        assert [block["type"] for block in starts] == ["thinking", "text", "tool_use", "tool_use"]
        assert starts[2]["input"] == {}
        whole, streamed = await api.json(PATH, body), message_of(events)
        for answer in (whole, streamed):
            del answer["id"]
            for block in answer["content"]:
                block.pop("id", None)
        assert streamed == whole

    run(test, tmp_path, TRANSCRIPT)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_sequence_is_told(tmp_path: Path, stream: bool) -> None:
    async def test(api: Api) -> None:
        body = {**ASK, "stop_sequences": ["w2"]}
        answer = message_of(await named_events(api, PATH, body)) if stream else await api.json(PATH, body)
        assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", "w2")
        assert answer["content"][0]["text"] == "w0 w1 "

    run(test, tmp_path, template=PLAIN)


def test_calls_that_were_cut_have_no_input(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        cut = TRANSCRIPT.index("Oslo") + 2
        answer = await api.json(PATH, {**ASK, "max_tokens": cut, "tools": TOOLS})
        assert answer["content"][-1]["input"] == {}
        assert answer["stop_reason"] == "max_tokens"

    run(test, tmp_path, TRANSCRIPT, size=1)


def test_an_empty_answer_has_no_blocks(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        api.engine.script.pieces = []
        assert (await api.json(PATH, ASK))["content"] == []
        events = await named_events(api, PATH, ASK)
        assert [event["type"] for event in events if event["type"] != "ping"] == [
            "message_start",
            "message_delta",
            "message_stop",
        ]
        assert message_of(events)["stop_reason"] == "end_turn"

    run(test, tmp_path, template=PLAIN)


def test_counting(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        assert await api.json(f"{PATH}/count_tokens", {"messages": ASK["messages"]}) == {"input_tokens": 2}
        assert not api.engine.got(Task)

    run(test, tmp_path, template=PLAIN)


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        (PATH, {}, 400, "invalid_request_error"),
        (PATH, {**ASK, "temperature": "hot"}, 400, "invalid_request_error"),
        (PATH, [], 400, "invalid_request_error"),
        (f"{PATH}/count_tokens", {"messages": 3}, 400, "invalid_request_error"),
        (f"{PATH}/nope", ASK, 404, "not_found_error"),
    ],
    ids=str,
)
def test_errors_have_anthropics_shape(tmp_path: Path, path: str, body: Any, status: int, kind: str) -> None:
    async def test(api: Api) -> None:
        result = await api.post(path, body)
        assert result.status_code == status
        assert result.json["type"] == "error"
        assert result.json["error"]["type"] == kind
        assert result.json["error"]["message"]

    run(test, tmp_path, template=PLAIN)


def test_errors_before_the_handler_have_it_too(tmp_path: Path) -> None:
    config = replace(CONFIG, http=replace(CONFIG.http, api_key=("secret",), api_prefix="/p"))

    async def test(api: Api) -> None:
        refused = await api.post("/p/v1/messages", ASK)
        assert (refused.status_code, refused.json["type"]) == (401, "error")
        assert refused.json["error"]["type"] == "authentication_error"
        allowed = await api.post("/p/v1/messages", ASK, headers={"x-api-key": "secret"})
        assert allowed.status_code == 200
        broken = await api.http.simulate_post("/p/v1/messages", body="{", headers={"x-api-key": "secret"})
        assert (broken.status_code, broken.json["type"]) == (400, "error")
        wrong = await api.get("/p/v1/messages", headers={"x-api-key": "secret"})
        assert (wrong.status_code, wrong.json["type"]) == (405, "error")

    run(test, tmp_path, config=config, template=PLAIN)


@pytest.mark.parametrize("stream", [False, True])
def test_too_long_a_prompt_is_told_in_anthropics_words(tmp_path: Path, stream: bool) -> None:
    async def test(api: Api) -> None:
        api.engine.script.refuse = Error(400, "exceed_context_size_error", "too long", 600, 512)
        result = await api.post(PATH, {**ASK, "stream": stream})
        assert result.status_code == 400
        error = result.json["error"]
        assert (error["type"], error["n_prompt_tokens"], error["n_ctx"]) == ("exceed_context_size_error", 600, 512)
        assert error["message"] == "prompt is too long: 600 tokens > 512 maximum. too long"

    run(test, tmp_path, template=PLAIN)


def test_an_image_needs_a_model_that_sees(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
        blocks = [{"type": "tool_result", "tool_use_id": "c1", "content": [image]}]
        result = await api.post(PATH, {**ASK, "messages": [{"role": "user", "content": blocks}]})
        assert result.status_code == 400
        assert "mmproj" in result.json["error"]["message"]

    run(test, tmp_path, template=PLAIN)


def test_an_engine_that_dies_is_an_error_event(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        async with api.open(PATH, {**ASK, "max_tokens": 3000}) as stream:
            while b"text_delta" not in await stream.part():
                pass
            api.engine.die()
            text = await stream.rest()
        last = text.strip().split("\n\n")[-1]
        assert last.startswith('event: error\ndata: {"type":"error","error":{"type":"overloaded_error"')

    run(test, tmp_path, "x" * 3000, template=PLAIN)


def test_a_client_that_leaves_ends_the_work(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        async with api.open(PATH, {**ASK, "max_tokens": 30000}) as stream:
            while b"text_delta" not in await stream.part():
                pass
        await until(lambda: api.engine.got(Abort))

    run(test, tmp_path, "x" * 30000, template=PLAIN)


def test_null_means_absent(tmp_path: Path) -> None:
    names = ("system", "stop_sequences", "temperature", "thinking", "tool_choice", "tools", "top_k", "top_p", "stream",
             "metadata", "output_config", "service_tier", "chat_template_kwargs", "model")  # fmt: skip

    async def test(api: Api) -> None:
        plain, same = [await api.json(PATH, body) for body in (ASK, {**ASK, **dict.fromkeys(names)})]
        assert plain.pop("id") != same.pop("id")
        assert plain == same

    run(test, tmp_path, template=PLAIN)


def test_what_goes_to_the_engine(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await api.json(PATH, {**ASK, "top_k": 7, "thinking": {"type": "enabled", "budget_tokens": 5}})
        task = task_of(api)
        assert (task.sampling.top_k, task.max_tokens) == (7, 3)
        assert task.reasoning is not None
        assert task.reasoning.tokens == 5
        await api.json(PATH, {"messages": ASK["messages"]})
        assert task_of(api).max_tokens == 4096

    run(test, tmp_path, TRANSCRIPT)
