"""Ollama's API against an engine without a model."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ipc.messages import Abort, Error, ModelInfo
from tests.api_client import CONFIG, Api, until
from tests.chat_vocab import ASKED, TOOLS, TRANSCRIPT, ChatVocab
from tests.fake_engine import N_EMBD
from tests.tiny_vocab import TinyVocab
from tests.wire_events import PLAIN, chat_of, lines, prompt_of, run, run_api, task_of

CHAT, GENERATE = "/api/chat", "/api/generate"
ASK: dict[str, Any] = {"model": "other", "messages": [{"role": "user", "content": "hi"}], "options": {"num_predict": 3}}
PROMPT: dict[str, Any] = {"model": "other", "prompt": "hi", "options": {"num_predict": 3}}
POOLED = ModelInfo("fake.gguf", "fake", "fake", 1000, 2000, "F32", 261, 1024, N_EMBD, N_EMBD, 1, 1, "mean")
COUNTS = ("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration")


def test_chat(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        whole = await api.json(CHAT, {**ASK, "stream": False})
        assert (whole["model"], whole["done"], whole["done_reason"]) == ("other", True, "length")
        assert whole["message"] == {"role": "assistant", "content": "w0 w1 w2 "}
        assert (whole["prompt_eval_count"], whole["eval_count"], whole["eval_duration"]) == (2, 3, 2_000_000)
        assert all(isinstance(whole[name], int) for name in COUNTS)
        found = await lines(api, CHAT, ASK)
        assert found[-1]["message"]["content"] == ""
        assert chat_of(found)["message"] == whole["message"]
        assert found[-1].keys() == whole.keys()
        assert found[0].keys() == {"model", "created_at", "message", "done"}

    run(test, tmp_path, template=PLAIN)


def test_a_call_comes_in_one_piece(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        found = await lines(api, CHAT, {"model": "tiny", "messages": ASKED, "tools": TOOLS})
        calls = [one["message"]["tool_calls"] for one in found if "tool_calls" in one["message"]]
        assert [len(one) for one in calls] == [1, 1]
        assert calls[0][0]["function"] == {"name": "get_weather", "arguments": {"city": "Oslo"}, "index": 0}
        assert calls[0][0]["id"] != calls[1][0]["id"]

    run(test, tmp_path, TRANSCRIPT)


def test_a_call_that_was_cut_has_no_arguments(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        options = {"num_predict": TRANSCRIPT.index("Oslo") + 2}
        body = {"model": "tiny", "messages": ASKED, "tools": TOOLS, "options": options}
        for answer in (await api.json(CHAT, {**body, "stream": False}), chat_of(await lines(api, CHAT, body))):
            assert answer["message"]["tool_calls"][0]["function"]["arguments"] == {}
            assert answer["done_reason"] == "length"

    run(test, tmp_path, TRANSCRIPT, size=1)


def test_generate(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        whole = await api.json(GENERATE, {**PROMPT, "stream": False, "system": "Be brief."})
        assert (whole["response"], whole["done_reason"]) == ("w0 w1 w2 ", "length")
        assert prompt_of(api) == b"[system:Be brief.][user:hi]"
        found = await lines(api, GENERATE, PROMPT)
        assert "".join(one["response"] for one in found) == "w0 w1 w2 "
        assert [one["done"] for one in found] == [False] * (len(found) - 1) + [True]
        assert found[-1]["response"] == ""

    run(test, tmp_path, template="{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}")


def test_generate_shows_the_thinking(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        whole = await api.json(GENERATE, {"model": "m", "prompt": "hi", "stream": False})
        assert (whole["thinking"], whole["response"]) == ("hm", "yes")
        found = await lines(api, GENERATE, {"model": "m", "prompt": "hi"})
        assert "".join(one.get("thinking", "") for one in found) == "hm"
        assert "".join(one["response"] for one in found) == "yes"

    run(test, tmp_path, "hm\n</think>\n\nyes")


def test_a_raw_prompt_sees_no_template(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        schema = {"type": "object"}
        whole = await api.json(
            GENERATE, {**PROMPT, "prompt": "<think>", "raw": True, "stream": False, "format": schema}
        )
        assert whole["response"] == "w0 w1 w2 "
        assert prompt_of(api) == b"<think>"
        constraint = task_of(api).constraint
        assert constraint is not None
        assert json.loads(constraint.text) == schema
        assert "".join(one["response"] for one in await lines(api, GENERATE, {**PROMPT, "raw": True})) == "w0 w1 w2 "

    run(test, tmp_path)


def test_a_suffix_fills_in_the_middle(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        whole = await api.json(GENERATE, {**PROMPT, "prompt": "a", "suffix": "b", "stream": False})
        assert whole["response"] == "w0 w1 w2 "
        tokens = memoryview(task_of(api).tokens).cast("i").tolist()
        assert TinyVocab().decode(tokens) == b"<pre>a<suf>b<mid>"

    run_api(test, tmp_path)


def test_a_suffix_needs_a_model_that_can_fill_in(tmp_path: Path) -> None:
    class NoFill(ChatVocab):
        fim_pre = fim_suf = fim_mid = None

    async def test(api: Api) -> None:
        result = await api.post(GENERATE, {**PROMPT, "suffix": "b"})
        assert result.status_code == 400
        assert "Infill is not supported by this model" in result.json["error"]

    run_api(test, tmp_path, vocab=NoFill(PLAIN))


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        (CHAT, {"model": "tiny", "messages": []}, "load"),
        (CHAT, {"model": "tiny", "keep_alive": 0}, "unload"),
        (GENERATE, {"model": "tiny"}, "load"),
        (GENERATE, {"model": "tiny", "prompt": "", "keep_alive": "0"}, "unload"),
    ],
    ids=str,
)
def test_a_request_that_says_nothing_finds_the_model_loaded(tmp_path: Path, path: str, body: Any, reason: str) -> None:
    async def test(api: Api) -> None:
        answer = await api.json(path, body)
        assert (answer["done"], answer["done_reason"]) == (True, reason)

    run(test, tmp_path, template=PLAIN)


def test_a_body_of_openai_gets_openais_answer(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        answer = await api.json(CHAT, {"messages": ASK["messages"], "max_tokens": 2})
        assert answer["object"] == "chat.completion"
        assert answer["choices"][0]["message"]["content"] == "w0 w1 "
        assert (await api.events(CHAT, {"messages": ASK["messages"], "max_tokens": 2}))[-1] == "[DONE]"
        assert (await api.error(CHAT, {"messages": "hi"}))[:2] == (400, "invalid_request_error")

    run(test, tmp_path, template=PLAIN)


def test_null_means_absent(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        nulls = dict.fromkeys(("format", "keep_alive", "think", "tools", "logprobs", "top_logprobs"))
        turn = {**ASK["messages"][0], **dict.fromkeys(("images", "thinking", "tool_calls", "tool_name"))}
        whole = await api.json(CHAT, {**ASK, **nulls, "messages": [turn], "stream": False})
        assert whole["message"]["content"] == "w0 w1 w2 "
        found = await lines(api, CHAT, {"model": "m", "messages": [turn], "options": None, "stream": None})
        assert chat_of(found)["eval_count"] == 16
        more = dict.fromkeys(("system", "template", "context", "raw", "suffix", "images"))
        assert (await api.json(GENERATE, {**PROMPT, **nulls, **more, "stream": False}))["response"] == "w0 w1 w2 "

    run(test, tmp_path, template=PLAIN)


def test_log_probabilities(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        body = {**ASK, "logprobs": True, "top_logprobs": 2}
        whole = (await api.json(CHAT, {**body, "stream": False}))["logprobs"]
        assert [len(one["top_logprobs"]) for one in whole] == [2, 2, 2]
        streamed = [one for found in await lines(api, CHAT, body) for one in found.get("logprobs", ())]
        assert streamed == whole

    run(test, tmp_path, template=PLAIN)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (CHAT, {**ASK, "format": "xml"}, "'format'"),
        (CHAT, {**ASK, "options": {"temperature": "hot"}}, "'temperature'"),
        (CHAT, {**ASK, "messages": [{"role": "user", "content": "", "images": ["AAAA"]}]}, "mmproj"),
        (GENERATE, {**PROMPT, "template": "x"}, "'template'"),
        (GENERATE, {**PROMPT, "raw": "yes"}, "'raw'"),
        (GENERATE, {**PROMPT, "prompt": 3}, "'prompt'"),
        (GENERATE, [], "must be a JSON object"),
    ],
    ids=str,
)
def test_errors_are_a_text(tmp_path: Path, path: str, body: Any, message: str) -> None:
    async def test(api: Api) -> None:
        result = await api.post(path, body)
        assert result.status_code == 400
        assert message in result.json["error"]

    run(test, tmp_path, template=PLAIN)


def test_errors_before_the_handler_are_texts_too(tmp_path: Path) -> None:
    config = replace(CONFIG, http=replace(CONFIG.http, api_key=("secret",)))

    async def test(api: Api) -> None:
        assert (await api.post(CHAT, ASK)).json == {"error": "Invalid API Key"}
        key = {"Authorization": "Bearer secret"}
        missing = await api.get("/api/nope", headers=key)
        assert (missing.status_code, missing.json) == (404, {"error": "File Not Found"})
        assert (await api.get(CHAT, headers=key)).json == {"error": "Method Not Allowed"}

    run(test, tmp_path, config=config, template=PLAIN)


def test_a_stream_that_fails_ends_with_a_line(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        async with api.open(CHAT, {"model": "tiny", "messages": ASKED}) as stream:
            while not await stream.part():
                pass
            api.engine.die()
            last = (await stream.rest()).strip().split("\n")[-1]
        assert isinstance(json.loads(last)["error"], str)
        api.engine.start()
        await api.client.ready(5)
        api.engine.script.refuse = Error(400, "exceed_context_size_error", "too long", 600, 512)
        result = await api.post(CHAT, ASK)
        assert (result.status_code, result.json) == (400, {"error": "too long"})

    run(test, tmp_path, "x" * 3000, template=PLAIN)


def test_a_client_that_leaves_ends_the_work(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        async with api.open(CHAT, {"model": "tiny", "messages": ASKED}) as stream:
            while not await stream.part():
                pass
        await until(lambda: api.engine.got(Abort))

    run(test, tmp_path, "x" * 30000, template=PLAIN)
