"""/v1/responses against an engine without a model."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ipc.config import Config
from ipc.messages import Abort, Error
from tests.api_client import CONFIG, Api, until
from tests.chat_vocab import THOUGHT, TRANSCRIPT
from tests.wire_events import PLAIN, named, named_events, prompt_of, response_of, run, task_of

PATH = "/v1/responses"
ASK = {"input": "hi"}
TOOLS = [{"type": "function", "name": name, "parameters": {}} for name in ("get_weather", "get_time")]


def stored(folder: Path) -> Config:
    """A configuration with a store."""
    return replace(CONFIG, http=replace(CONFIG.http, responses_db=str(folder / "responses.db")))


@pytest.mark.parametrize("path", [PATH, "/responses"])
def test_a_whole_response(tmp_path: Path, path: str) -> None:
    async def test(api: Api) -> None:
        answer = await api.json(path, {**ASK, "model": "other", "temperature": 0.5, "metadata": {"a": "b"}})
        assert answer["id"].startswith("resp_")
        assert (answer["object"], answer["status"], answer["model"]) == ("response", "completed", "other")
        assert answer["completed_at"] >= answer["created_at"]
        assert answer["error"] is answer["incomplete_details"] is answer["previous_response_id"] is None
        (message,) = answer["output"]
        text = "".join(f"w{i} " for i in range(16))
        assert message["content"] == [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
        assert (message["type"], message["role"], message["status"]) == ("message", "assistant", "completed")
        assert answer["usage"] == {
            "input_tokens": 2,
            "output_tokens": 16,
            "total_tokens": 18,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        }
        assert (answer["temperature"], answer["metadata"], answer["store"]) == (0.5, {"a": "b"}, False)
        assert answer["text"]["format"] == {"type": "text"}
        assert answer["timings"]["predicted_n"] == 16

    run(test, tmp_path, template=PLAIN)


def test_events_tell_the_whole_response(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        body = {**ASK, "tools": TOOLS, "metadata": {"a": "b"}}
        events = await named_events(api, PATH, body)
        created, last = events[0]["response"], response_of(events)
        assert events[-1]["type"] == "response.completed"
        assert created["status"] == "in_progress"
        assert created["usage"] is created["completed_at"] is None
        assert created.keys() | {"timings"} == last.keys()
        assert created["tools"] == TOOLS
        whole = await api.json(PATH, body)
        assert [item["type"] for item in whole["output"]] == [item["type"] for item in last["output"]]
        assert whole["usage"] == last["usage"]
        assert last["usage"]["output_tokens_details"]["reasoning_tokens"] == len(THOUGHT)
        call = last["output"][2]
        assert call["id"].removeprefix("fc_") == call["call_id"].removeprefix("call_")

    run(test, tmp_path, TRANSCRIPT, size=1)


@pytest.mark.parametrize("n", [2, 40, len(TRANSCRIPT) - 30])
def test_a_limit_makes_it_incomplete(tmp_path: Path, n: int) -> None:
    async def test(api: Api) -> None:
        body = {**ASK, "tools": TOOLS, "max_output_tokens": n}
        last = response_of(await named_events(api, PATH, body))
        for answer in (last, await api.json(PATH, body)):
            assert answer["status"] == "incomplete"
            assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
            assert answer["usage"]["output_tokens"] == n
            assert [item["status"] for item in answer["output"]][-1:] == ["incomplete"]

    run(test, tmp_path, TRANSCRIPT, size=1)


def test_progress_and_timings(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        body = {**ASK, "max_output_tokens": 2, "return_progress": True, "timings_per_token": True}
        events = await named_events(api, PATH, body)
        (progress,) = [event for event in events if "prompt_progress" in event]
        assert progress["type"] == "response.in_progress"
        assert progress["prompt_progress"]["total"] == 2
        assert "timings" in next(event for event in events if event["type"] == "response.output_text.delta")

    run(test, tmp_path, template=PLAIN)


def test_log_probabilities(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        body = {**ASK, "max_output_tokens": 3, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
        whole = (await api.json(PATH, body))["output"][0]["content"][0]["logprobs"]
        assert [len(one["top_logprobs"]) for one in whole] == [2, 2, 2]
        assert {"token", "bytes", "logprob"} <= whole[0].keys()
        events = await named_events(api, PATH, body)
        assert response_of(events)["output"][0]["content"][0]["logprobs"] == whole

    run(test, tmp_path, template=PLAIN)


def test_a_skipped_tool_is_told_in_a_header(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        result = await api.post(PATH, {**ASK, "max_output_tokens": 1, "tools": [*TOOLS, {"type": "web_search"}]})
        assert result.status_code == 200
        assert "web_search" in result.headers["x-llamarada-warning"]

    run(test, tmp_path, TRANSCRIPT)


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_refuses_is_an_error_of_its_own_status(tmp_path: Path, stream: bool) -> None:
    async def test(api: Api) -> None:
        api.engine.script.refuse = Error(400, "exceed_context_size_error", "too long", 600, 512)
        result = await api.post(PATH, {**ASK, "stream": stream})
        assert result.status_code == 400
        error = result.json["error"]
        assert (error["type"], error["n_prompt_tokens"], error["n_ctx"]) == ("exceed_context_size_error", 600, 512)

    run(test, tmp_path, template=PLAIN)


def test_an_engine_that_dies_fails_the_response(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        async with api.open(PATH, ASK) as stream:
            while b"output_text.delta" not in await stream.part():
                pass
            api.engine.die()
            text = await stream.rest()
        assert "event: response.failed" in text
        last = text.strip().split("\n\n")[-1]
        assert last.startswith('event: error\ndata: {"type":"error"')
        assert '"error":{"code":503' in last

    run(test, tmp_path, "x" * 3000, template=PLAIN)


def test_an_engine_that_dies_before_it_says_anything_fails_the_response(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        api.engine.script.hold = True
        async with api.open(PATH, ASK) as stream:
            assert (await stream.part()).startswith(b":"), "the headers are out"
            api.engine.die()
            events = named(await stream.rest())
        kinds = ["response.created", "response.in_progress", "response.failed", "error"]
        assert [event["type"] for event in events] == kinds
        assert events[2]["response"]["error"]["message"]

    run(test, tmp_path, template=PLAIN)


def test_a_client_that_leaves_ends_the_work(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        async with api.open(PATH, ASK) as stream:
            while b"output_text.delta" not in await stream.part():
                pass
        await until(lambda: api.engine.got(Abort))

    run(test, tmp_path, "x" * 30000, stored(tmp_path), template=PLAIN)


def test_input_tokens(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        for path in ("/v1/responses/input_tokens", "/responses/input_tokens"):
            assert await api.json(path, {"input": "hello"}) == {"object": "response.input_tokens", "input_tokens": 5}

    run(test, tmp_path, template=PLAIN)


def test_nothing_is_stored_without_a_file(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        status, kind, message = await api.error(PATH, {**ASK, "previous_response_id": "resp_x"})
        assert (status, kind) == (400, "invalid_request_error")
        assert "--responses-db" in message
        assert (await api.json(PATH, {**ASK, "store": True, "max_output_tokens": 1}))["store"] is False
        result = await api.get("/v1/responses/resp_x")
        assert result.status_code == 501
        assert "--responses-db" in result.json["error"]["message"]

    run(test, tmp_path, template=PLAIN)


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_goes_on_from_its_last_response(tmp_path: Path, stream: bool) -> None:
    everything = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"

    async def ask(api: Api, **body: Any) -> dict[str, Any]:
        body["max_output_tokens"] = 1
        if not stream:
            return await api.json(PATH, body)  # type: ignore[no-any-return]
        return response_of(await named_events(api, PATH, body))

    async def test(api: Api) -> None:
        first = await ask(api, input="one", instructions="Be brief.")
        second = await ask(api, input="two", previous_response_id=first["id"])
        third = await ask(api, input="three", previous_response_id=second["id"], instructions="Be long.")
        assert first["store"] is True
        assert third["previous_response_id"] == second["id"]
        turns = "[system:Be long.][user:one][assistant:w0 ][user:two][assistant:w0 ][user:three]"
        assert prompt_of(api).decode() == turns
        other = await ask(api, input="two?", previous_response_id=first["id"])
        assert prompt_of(api).decode() == "[user:one][assistant:w0 ][user:two?]"
        assert (await api.get(f"/v1/responses/{other['id']}")).json == other

    run(test, tmp_path, config=stored(tmp_path), template=everything)


def test_stored_responses_can_be_read_and_forgotten(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        items = [{"role": "user", "content": str(i)} for i in range(5)]
        answer = await api.json(PATH, {"input": items, "max_output_tokens": 1})
        path = f"/v1/responses/{answer['id']}"
        listed = (await api.get(f"{path}/input_items", params={"order": "asc", "limit": 2})).json
        assert [item["content"] for item in listed["data"]] == [[{"type": "input_text", "text": i}] for i in "01"]
        assert listed["has_more"] is True
        rest = (await api.get(f"{path}/input_items", params={"order": "asc", "after": listed["last_id"]})).json
        assert [item["content"][0]["text"] for item in rest["data"]] == ["2", "3", "4"]
        assert rest["has_more"] is False
        newest = (await api.get(f"{path}/input_items")).json["data"]
        assert [item["content"][0]["text"] for item in newest] == ["4", "3", "2", "1", "0"]
        gone = await api.http.simulate_delete(path)
        assert gone.json == {"id": answer["id"], "object": "response", "deleted": True}
        for missing in (
            await api.get(path),
            await api.http.simulate_delete(path),
            await api.get(f"{path}/input_items"),
        ):
            assert missing.status_code == 404
            assert missing.json["error"]["type"] == "not_found_error"
        status, _, message = await api.error(PATH, {**ASK, "previous_response_id": answer["id"]})
        assert status == 400
        assert answer["id"] in message

    run(test, tmp_path, config=stored(tmp_path), template=PLAIN)


def test_what_is_not_to_be_stored_is_not(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        answer = await api.json(PATH, {**ASK, "store": False, "max_output_tokens": 1})
        assert answer["store"] is False
        assert (await api.get(f"/v1/responses/{answer['id']}")).status_code == 404

    run(test, tmp_path, config=stored(tmp_path), template=PLAIN)


def test_null_means_absent(tmp_path: Path) -> None:
    names = ("instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "previous_response_id",
             "reasoning", "store", "stream", "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p",
             "truncation", "user", "include", "background", "conversation", "prompt", "model")  # fmt: skip

    async def test(api: Api) -> None:
        plain, same = [await api.json(PATH, body) for body in (ASK, {**ASK, **dict.fromkeys(names)})]
        for answer in (plain, same):
            for name in ("id", "created_at", "completed_at", "timings"):
                del answer[name]
            del answer["output"][0]["id"]
        assert plain == same

    run(test, tmp_path, template=PLAIN)


@pytest.mark.parametrize("body", ["{", "[]", '"x"', "", '{"input":' + "[" * 5000], ids=lambda body: body[:12])
def test_bodies_that_are_no_requests(tmp_path: Path, body: str) -> None:
    async def test(api: Api) -> None:
        for path in (PATH, "/v1/messages", "/api/chat"):
            result = await api.http.simulate_post(path, body=body)
            assert result.status_code == 400
            assert result.json["error"]

    run(test, tmp_path, template=PLAIN)


def test_sampling_goes_to_the_engine(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await api.json(PATH, {**ASK, "temperature": 0.25, "top_k": 3, "grammar": 'root ::= "a"', "n": 3})
        task = task_of(api)
        assert (task.sampling.temperature, task.sampling.top_k) == (0.25, 3)
        assert task.constraint is not None
        assert task.constraint.text == 'root ::= "a"'

    run(test, tmp_path, template=PLAIN)
