"""The official clients of Anthropic's Messages and Ollama's API against a whole server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import ollama
import pytest

from tests.server import Server
from tests.thinking_server import (
    CITY,
    CONTEXT,
    EMOJI,
    GREEDY,
    LIMIT,
    THINK,
    THOUGHT,
    TURN,
    Person,
    forced,
    thinking_server,
)


@pytest.fixture(scope="module")
def server(model_path: Path) -> Iterator[Server]:
    with thinking_server(model_path, "--http-workers", "1") as running:
        yield running.wait_ready()


@pytest.fixture(scope="module")
def anthropic_client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def ollama_client(server: Server) -> ollama.Client:
    return ollama.Client(host=server.url, timeout=60)


# Messages

TOOL: Any = {"name": "get_weather", "input_schema": CITY}


def test_messages_speak(anthropic_client: anthropic.Anthropic) -> None:
    ask: Any = {"model": "any", "max_tokens": 40, "messages": [TURN], "extra_body": forced(EMOJI)}
    answer = anthropic_client.messages.create(**ask)
    assert answer.content[0].type == "text"
    assert answer.content[0].text == EMOJI
    assert answer.stop_reason == "end_turn"
    with anthropic_client.messages.stream(**ask) as stream:
        texts = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(texts) == EMOJI
    assert len(texts) > 1
    assert final.usage.output_tokens >= len(texts)
    prompt = final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0)
    counted = anthropic_client.messages.count_tokens(model="any", messages=[TURN])
    assert prompt == counted.input_tokens
    assert final.usage.cache_read_input_tokens, "the second request found the first one's prompt"


def test_messages_stop(anthropic_client: anthropic.Anthropic) -> None:
    ask: Any = {"model": "any", "max_tokens": 40, "messages": [TURN], "extra_body": forced("one two three")}
    answer = anthropic_client.messages.create(stop_sequences=["two"], **ask)
    assert answer.stop_sequence == "two"
    assert answer.content[0].type == "text"
    assert answer.content[0].text == "one "
    capped = anthropic_client.messages.create(**ask | {"max_tokens": 1})
    assert (capped.stop_reason, capped.usage.output_tokens) == ("max_tokens", 1)


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}], ids=str)
def test_messages_think_and_call(anthropic_client: anthropic.Anthropic, choice: dict[str, Any]) -> None:
    ask: Any = {"model": "any", "max_tokens": LIMIT, "messages": [TURN], "tools": [TOOL], "extra_body": GREEDY | THINK}
    ask["tool_choice"] = {**choice, "disable_parallel_tool_use": True}
    whole: Any = anthropic_client.messages.create(**ask)
    with anthropic_client.messages.stream(**ask) as stream:
        streamed: Any = stream.get_final_message()
    for answer in (whole, streamed):
        thinking, use = answer.content
        assert thinking.type == "thinking"
        assert thinking.thinking == THOUGHT
        assert use.type == "tool_use"
        assert (use.name, use.input) == ("get_weather", {"city": "Oslo"})
        assert answer.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "rain"}]}
    turns: Any = [TURN, {"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
    after = anthropic_client.messages.create(
        model="any",
        max_tokens=20,
        messages=turns,
        tools=[TOOL],
        tool_choice={"type": "none"},
        extra_body=forced("Rain"),
    )
    assert after.content[0].type == "text"
    assert after.content[0].text == "Rain"


def test_messages_are_parsed(anthropic_client: anthropic.Anthropic) -> None:
    turn: Any = {"role": "user", "content": "Tom is 35"}
    answer = anthropic_client.messages.parse(
        model="any", max_tokens=60, messages=[turn], output_format=Person, extra_body=GREEDY
    )
    assert isinstance(answer.parsed_output, Person)


def test_messages_that_are_refused(anthropic_client: anthropic.Anthropic) -> None:
    image: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    with pytest.raises(anthropic.BadRequestError, match="mmproj"):
        anthropic_client.messages.create(model="any", max_tokens=1, messages=[{"role": "user", "content": [image]}])
    with pytest.raises(anthropic.BadRequestError, match="'nope'"):
        anthropic_client.messages.create(
            model="any", max_tokens=1, messages=[TURN], tools=[TOOL], tool_choice={"type": "tool", "name": "nope"}
        )


# Ollama


def test_ollama_chats(ollama_client: ollama.Client) -> None:
    options = {"num_predict": 5, "temperature": 0}
    answer = ollama_client.chat("any", [TURN], options=options)
    assert answer.message.content
    assert (answer.eval_count, answer.done_reason) == (5, "length")
    assert answer.total_duration is not None
    assert answer.eval_duration is not None
    assert answer.total_duration > answer.eval_duration > 0
    parts = list(ollama_client.chat("any", [TURN], options=options, stream=True))
    assert "".join(part.message.content or "" for part in parts) == answer.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]


def test_ollama_thinks_and_formats(ollama_client: ollama.Client) -> None:
    answer = ollama_client.chat(
        "any", [TURN], think=True, format=Person.model_json_schema(), options={"temperature": 0, "num_predict": 60}
    )
    assert answer.message.thinking == THOUGHT
    assert Person.model_validate_json(answer.message.content or "")
    assert ollama_client.chat("any", [TURN], think=False, options={"num_predict": 3}).message.thinking is None


def test_ollama_takes_tools_and_their_results(ollama_client: ollama.Client) -> None:
    def get_weather(city: str) -> str:
        """The weather of a city."""
        return city

    call: Any = {"function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}
    turns: Any = [
        TURN,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "get_weather", "content": "rain"},
    ]
    answer = ollama_client.chat("any", turns, tools=[get_weather], options={"num_predict": 3})
    assert answer.done


def test_ollama_generates(ollama_client: ollama.Client) -> None:
    options = {"num_predict": 4, "temperature": 0}
    for more in ({}, {"raw": True}, {"system": "Be brief."}):
        answer = ollama_client.generate("any", "Once upon", options=options, **more)
        parts = list(ollama_client.generate("any", "Once upon", options=options, stream=True, **more))
        assert "".join(part.response or "" for part in parts) == answer.response != ""
    assert ollama_client.generate("any").done_reason == "load"
    with pytest.raises(ollama.ResponseError, match="'suffix' is not supported"):
        ollama_client.generate("any", "a", suffix="b")


def test_ollama_knows_the_model(ollama_client: ollama.Client) -> None:
    (listed,) = ollama_client.list().models
    assert listed.details is not None
    assert (listed.details.family, listed.details.parameter_size) == ("llama", "134.5M")
    shown = ollama_client.show(listed.model or "")
    assert shown.modelinfo is not None
    assert shown.modelinfo["llama.context_length"] == 8192
    assert shown.capabilities is not None
    assert {"completion", "tools", "thinking"} <= set(shown.capabilities)
    (running,) = ollama_client.ps().models
    assert running.context_length == CONTEXT
    with pytest.raises(ollama.ResponseError, match="--embeddings"):
        ollama_client.embed("any", "hi")


# All of them


@pytest.mark.parametrize("stream", [False, True])
def test_too_long_a_prompt_is_a_400_everywhere(server: Server, stream: bool) -> None:
    long = "hello " * (CONTEXT + 100)
    turns = [{"role": "user", "content": long}]
    for path, body in (("/v1/responses", {"input": long}), ("/v1/messages", {"messages": turns, "max_tokens": 5})):
        answer = server.post(path, {**body, "stream": stream})
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["type"] == "exceed_context_size_error"
        assert error["n_prompt_tokens"] > error["n_ctx"] == CONTEXT
    refused = server.post("/api/chat", {"model": "any", "messages": turns, "stream": stream})
    assert refused.status_code == 400
    assert "exceeds the available context size" in refused.json()["error"]


def test_the_server_limit_holds_everywhere(server: Server) -> None:
    endless = {"ignore_eos": True, "temperature": 1}
    response = server.post("/v1/responses", {"input": "hi", "max_output_tokens": 1000, **endless}).json()
    assert (response["status"], response["usage"]["output_tokens"]) == ("incomplete", LIMIT)
    message = server.post("/v1/messages", {"messages": [TURN], **endless}).json()
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("max_tokens", LIMIT)


def test_an_old_seed_client_of_api_chat(server: Server) -> None:
    answer: httpx.Response = server.post("/api/chat", {"messages": [TURN], "max_tokens": 2})
    assert answer.json()["object"] == "chat.completion"
