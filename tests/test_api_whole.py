"""Completions of the demo model through the whole server: reported cases with their right answers."""

import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from engine.batch import Batch
from engine.context import Context
from engine.model import Model
from tests.server import Server, wait_for

EMOJI = "hi 😀👨‍👩‍👧 ok"
CONTEXT = 256  # of one slot


def forced(text: str) -> dict[str, str]:
    """A request that makes any model answer exactly `text`."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return {"grammar": f'root ::= "{escaped}"'}


def hello(n: int) -> str:
    """A prompt of about n tokens."""
    return "hello " * n


@pytest.fixture(scope="module")
def server(model_path: Path) -> Iterator[Server]:
    # small batches of one shape, for libllama's matrix kernels differ in the third digit
    args = ["-m", str(model_path), "-c", str(4 * CONTEXT), "-np", "4", "--no-kv-unified", "-a", "demo", "-ub", "32"]
    with Server(args) as started:
        yield started.wait_ready()


def ok(server: Server, path: str, body: dict[str, Any]) -> Any:
    """The decoded answer, which must be a success."""
    response = server.post(path, body)
    assert response.status_code == 200, response.text
    return response.json()


def refused(server: Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The error object of a request that must get 400."""
    response = server.post(path, body)
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    assert error["code"] == 400
    return error


def native_stream(server: Server, body: dict[str, Any]) -> tuple[str, dict[str, Any], list[dict[str, Any]]]:
    """Joined text, final result and all partials of a native stream."""
    with server.stream("/completion", {**body, "stream": True}) as events:
        *partials, final = events
    return "".join(one["content"] for one in partials), final, partials


def text_stream(server: Server, body: dict[str, Any]) -> str:
    """Joined text of a /v1/completions stream."""
    with server.stream("/v1/completions", {**body, "stream": True}) as events:
        return "".join(one["choices"][0]["text"] for one in events)


def test_real_text(server: Server) -> None:
    body = {"prompt": "The capital of France is", "n_predict": 2, "temperature": 0}
    assert ok(server, "/completion", body)["content"].startswith(" Paris")


@pytest.mark.parametrize("name", ["n_predict", "max_tokens", "max_completion_tokens"])
def test_all_names_of_the_token_cap(server: Server, name: str) -> None:
    answer = ok(server, "/v1/completions", {"prompt": "Once upon a time", name: 3, "ignore_eos": True})
    assert answer["usage"]["completion_tokens"] == 3
    assert answer["choices"][0]["finish_reason"] == "length"


def test_n_choices_differ_and_usage_is_their_sum(server: Server) -> None:
    body = {"prompt": "Once upon a time", "n": 3, "max_tokens": 8, "seed": 1, "temperature": 1.5, "ignore_eos": True}
    answer = ok(server, "/v1/completions", body)
    assert [one["index"] for one in answer["choices"]] == [0, 1, 2]
    assert len({one["text"] for one in answer["choices"]}) == 3
    assert (answer["usage"]["completion_tokens"], answer["usage"]["prompt_tokens"]) == (24, 4)
    error = refused(server, "/v1/completions", {**body, "n": 5})
    assert "between 1 <= value <= 4" in error["message"]


def test_a_seed_repeats(server: Server) -> None:
    body = {"prompt": "Once upon a time", "n_predict": 12, "seed": 7, "temperature": 1.2, "id_slot": 0}
    first, second = (ok(server, "/completion", {**body, "cache_prompt": False})["content"] for _ in range(2))
    assert first == second


def test_an_emoji_of_many_tokens_arrives_whole(server: Server) -> None:
    body = {"prompt": "x", "n_predict": 40, "temperature": 0, **forced(EMOJI)}
    text, _, partials = native_stream(server, {**body, "n_probs": 3})
    assert text == EMOJI
    assert not any("\ufffd" in one["content"] for one in partials)
    assert ok(server, "/completion", body)["content"] == EMOJI
    assert text_stream(server, body) == EMOJI


def test_a_stop_string_over_token_borders_is_never_sent(server: Server) -> None:
    body = {"prompt": "x", "n_predict": 40, "stop": ["beta gamma"], **forced("alpha beta gamma delta")}
    answer = ok(server, "/completion", body)
    assert (answer["content"], answer["stop_type"], answer["stopping_word"]) == ("alpha ", "word", "beta gamma")
    text, final, _ = native_stream(server, body)
    assert (text, final["stopping_word"]) == ("alpha ", "beta gamma")
    choice = ok(server, "/v1/completions", body)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("alpha ", "stop")


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [("alpha beta gam", "beta gamma", "alpha beta gam"), ("Mars?\n", "\n", "Mars?"), ("你好", "好啊", "你好")],
)
def test_text_that_was_held_back_is_released(server: Server, text: str, stop: str, expected: str) -> None:
    body = {"prompt": "x", "n_predict": 40, "stop": [stop, ""], **forced(text)}
    assert ok(server, "/completion", body)["content"] == expected
    assert native_stream(server, body)[0] == expected


def test_null_means_absent(server: Server) -> None:
    names = ["temperature", "top_p", "stop", "n", "logit_bias", "stream_options", "user", "logprobs", "grammar"]
    body = {"prompt": "a", "max_tokens": 3, "seed": 3}
    nulls = dict.fromkeys(names)
    plain, same = (ok(server, "/v1/completions", one) for one in (body, {**body, **nulls}))
    assert plain["choices"][0]["text"] == same["choices"][0]["text"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_a_prompt_that_is_too_long_is_a_400_everywhere(server: Server, path: str, stream: bool) -> None:
    error = refused(server, path, {"prompt": hello(300), "stream": stream})
    assert error["type"] == "exceed_context_size_error"
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (301, CONTEXT)


def test_generation_ends_where_the_context_ends(server: Server) -> None:
    answer = ok(server, "/completion", {"prompt": hello(230), "n_predict": -1, "ignore_eos": True})
    assert (answer["stop_type"], answer["truncated"]) == ("limit", True)
    assert 0 < answer["tokens_predicted"] <= 32


def test_the_same_prompt_is_read_once(server: Server) -> None:
    body = {"prompt": hello(120) + "again", "n_predict": 1, "temperature": 0, "id_slot": 1}
    first, second = (ok(server, "/completion", body) for _ in range(2))
    assert second["timings"]["cache_n"] == second["tokens_evaluated"] - 1
    assert first["content"] == second["content"]


def test_no_tokens_when_none_are_asked_for(server: Server) -> None:
    answer = ok(server, "/completion", {"prompt": "abc", "n_predict": 0})
    assert (answer["content"], answer["tokens_predicted"]) == ("", 0)
    assert ok(server, "/completion", {"prompt": ""})["content"] == ""


@pytest.mark.parametrize(
    "body",
    [
        {"grammar": 'root::="x'},
        {"grammar": 'Root ::= "a"'},
        {"json_schema": {"type": "nope"}},
        {"regex": "("},
        {"lark": "start: missing"},
        {"json_schema": {"type": "string", "pattern": "^(?=x)a$"}},
    ],
    ids=str,
)
def test_a_constraint_that_does_not_compile_is_refused(server: Server, body: dict[str, Any]) -> None:
    assert refused(server, "/completion", {"prompt": "x", "n_predict": 4, **body})["message"]


def test_constraints(server: Server) -> None:
    base = {"prompt": "x", "n_predict": 60, "seed": 1}
    assert ok(server, "/completion", {**base, "choice": ["yes", "no"]})["content"] in ("yes", "no")
    assert ok(server, "/completion", {**base, "regex": "[0-9]{3}-[a-c]{2}"})["content"][3] == "-"
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    text = ok(server, "/v1/completions", {**base, "response_format": form})["choices"][0]["text"]
    assert text.replace(" ", "").replace("\n", "") in ('{"ok":true}', '{"ok":false}')


def direct_logprobs(model: Model, tokens: list[int]) -> list[float]:
    """log p(token | those before it) by a softmax of libllama's logits."""
    with closing(Context(model, n_ctx=CONTEXT, n_batch=CONTEXT, n_ubatch=32, n_seq_max=1)) as context:
        batch = Batch(CONTEXT)
        batch.add(np.array(tokens, np.int32), 0, 0, "all")
        assert context.decode(batch) == 0
        rows = [context.logits(i).astype(np.float64) for i in range(len(tokens) - 1)]
    normalizers = [row.max() + math.log(np.exp(row - row.max()).sum()) for row in rows]
    return [float(row[t] - norm) for row, t, norm in zip(rows, tokens[1:], normalizers, strict=True)]


def test_prompt_log_probabilities_equal_a_direct_softmax(server: Server, model: Model) -> None:
    prompt = " ".join(f"The {color} fox number {i} jumps." for i, color in enumerate(["red", "brown", "blue"] * 8))
    body = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    choice = ok(server, "/v1/completions", body)["choices"][0]
    assert choice["text"].startswith(prompt)
    values = choice["logprobs"]["token_logprobs"]
    tokens = server.post("/tokenize", {"content": prompt}).json()["tokens"]
    assert len(values) == len(tokens) + 1
    assert values[0] is None
    assert values[1:-1] == pytest.approx(direct_logprobs(model, tokens), abs=1e-4)


def test_pings_come_while_a_stream_waits_for_a_slot(server: Server) -> None:
    long = {"prompt": "a", "n_predict": 200, "ignore_eos": True, "stream": True}
    with httpx.Client(base_url=server.url, timeout=60) as client:
        streams = [client.stream("POST", "/completion", json=long) for _ in range(4)]
        opened = [stream.__enter__() for stream in streams]
        try:
            body = {"prompt": "b", "n_predict": 1, "stream": True, "sse_ping_interval": 1}
            with client.stream("POST", "/completion", json=body) as waiting:
                assert waiting.status_code == 200
                parts = waiting.iter_raw()
                assert next(parts) == b":\n\n"
                assert next(parts) == b":\n\n"
            with client.stream("POST", "/completion", json={**body, "return_queue_position": True}) as waiting:
                parts = waiting.iter_raw()
                assert next(parts) == b": queue_position=0\n\n"
                assert next(parts) == b": queue_position=0\n\n"  # a ping
        finally:
            for stream in streams:
                stream.__exit__(None, None, None)
        assert all(one.status_code == 200 for one in opened)


def idle(server: Server) -> bool:
    return not any(slot["is_processing"] for slot in server.get("/slots").json())


@pytest.mark.parametrize("prompt", ["a", hello(230)], ids=["generating", "prefill"])
def test_a_client_that_leaves_frees_its_slot(server: Server, prompt: str) -> None:
    wait_for(lambda: idle(server), 10)
    timings = ok(server, "/completion", {"prompt": hello(30), "n_predict": 4, "cache_prompt": False})["timings"]
    one_step = (timings["prompt_ms"] + timings["predicted_ms"]) / 1000  # slow on a busy machine
    body = {"prompt": prompt, "n_predict": 200, "ignore_eos": True, "cache_prompt": False}
    with pytest.raises(httpx.TimeoutException):
        httpx.post(f"{server.url}/completion", json=body, timeout=0.3)
    wait_for(lambda: idle(server), max(1, 3 * one_step))


def test_the_openai_client(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    assert [model.id for model in client.models.list()] == ["demo"]
    whole = client.completions.create(model="any", prompt="Once upon", max_tokens=5, temperature=0, logprobs=2)
    assert whole.model == "demo"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 5
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    assert len(logprobs.token_logprobs) == 5
    chunks = list(client.completions.create(model="any", prompt="Once upon", max_tokens=5, temperature=0, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    with pytest.raises(openai.BadRequestError, match="exceeds the available context size"):
        client.completions.create(model="any", prompt=hello(300), stream=True)


def test_the_server_limit_holds_for_every_request(model_path: Path) -> None:
    with Server(["-m", str(model_path), "-c", "256", "-np", "1", "-n", "20"]) as server:
        server.wait_ready()
        for more in ({}, {"max_tokens": 1000}, {"n_predict": -1}):
            answer = ok(server, "/v1/completions", {"prompt": "a", "ignore_eos": True, **more})
            assert answer["usage"]["completion_tokens"] <= 20
            assert answer["choices"][0]["finish_reason"] == "length"


def fill_in_the_middle(model: Path, target: Path) -> Path:
    """A copy of the demo model that says which tokens mark prefix, suffix and middle."""
    marks = {"fim_pre": "4", "fim_suf": "5", "fim_mid": "6", "fim_rep": "7", "fim_sep": "8"}
    options = [part for name, token in marks.items() for part in ("--special-token-by-id", name, token)]
    command = [sys.executable, "-m", "gguf.scripts.gguf_new_metadata", "--force", *options, str(model), str(target)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return target


def test_infill(model_path: Path, tmp_path: Path) -> None:
    path = fill_in_the_middle(model_path, tmp_path / "fim.gguf")
    with Server(["-m", str(path), "-c", "512", "-np", "1", "-b", "64", "-ub", "64"]) as server:
        server.wait_ready()
        body = {"input_prefix": "def add(a, b):\n", "input_suffix": "\n", "prompt": "    return", "n_predict": 2}
        answer = ok(server, "/infill", {**body, "input_extra": [{"text": "x = 1", "filename": "x.py"}]})
        pieces = [server.post("/detokenize", {"tokens": [token]}).json()["content"] for token in range(4, 9)]
        pre, suf, mid, rep, sep = pieces
        extra = f"{rep}myproject\n{sep}x.py\nx = 1{sep}filename\n"
        assert answer["prompt"] == f"{extra}{pre}def add(a, b):\n    return{suf}\n{mid}"
        assert answer["tokens_predicted"] == 2
        long = ok(server, "/infill", {**body, "input_prefix": "a " * 900})
        assert long["tokens_evaluated"] < 80  # three quarters of a batch of the prefix, and the marks
