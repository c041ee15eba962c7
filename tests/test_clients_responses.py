"""OpenAI's client of the Responses API against a whole server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.server import Server
from tests.thinking_server import CITY, EMOJI, GREEDY, QUESTION, THINK, THOUGHT, TURN, Person, forced, thinking_server


@pytest.fixture(scope="module")
def server(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two workers, which share the stored responses."""
    store = tmp_path_factory.mktemp("store") / "responses.db"
    with thinking_server(model_path, "--responses-db", str(store), "--http-workers", "2") as running:
        yield running.wait_ready()


@pytest.fixture(scope="module")
def openai_client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


FUNCTION: Any = {"type": "function", "name": "get_weather", "parameters": CITY, "strict": True}


def test_responses_speak(openai_client: openai.OpenAI) -> None:
    answer = openai_client.responses.create(model="any", input="hi", extra_body=forced(EMOJI), max_output_tokens=40)
    assert (answer.output_text, answer.status) == (EMOJI, "completed")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    capped = openai_client.responses.create(
        model="any", input="hi", max_output_tokens=3, extra_body={"ignore_eos": True}
    )
    assert capped.usage is not None
    assert capped.usage.output_tokens == 3
    assert capped.status == "incomplete"
    assert capped.incomplete_details is not None
    assert capped.incomplete_details.reason == "max_output_tokens"


def test_responses_stream(openai_client: openai.OpenAI) -> None:
    deltas = []
    with openai_client.responses.stream(
        model="any", input="hi", extra_body=forced(EMOJI), max_output_tokens=40
    ) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                deltas.append(event.delta)
                assert event.snapshot == "".join(deltas)
        assert stream.get_final_response().output_text == "".join(deltas) == EMOJI
    assert len(deltas) > 1


def test_responses_think_and_call(openai_client: openai.OpenAI) -> None:
    ask: Any = {"model": "any", "input": QUESTION, "tools": [FUNCTION], "tool_choice": "required", **GREEDY}
    ask |= {"parallel_tool_calls": False, "extra_body": THINK}
    whole: Any = openai_client.responses.create(**ask)
    with openai_client.responses.stream(**ask) as stream:
        streamed: Any = stream.get_final_response()
    for answer in (whole, streamed):
        assert answer.status == "completed"
        reasoning, call = answer.output
        assert reasoning.type == "reasoning"
        assert reasoning.content[0].text == THOUGHT
        assert call.type == "function_call"
        assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Oslo"})
        assert 0 < answer.usage.output_tokens_details.reasoning_tokens < answer.usage.output_tokens
    items: Any = [TURN, *whole.output, {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
    after = openai_client.responses.create(
        model="any", input=items, tools=[FUNCTION], tool_choice="none", extra_body=forced("It rains.")
    )
    assert after.output_text == "It rains."


def test_responses_are_parsed(openai_client: openai.OpenAI) -> None:
    answer = openai_client.responses.parse(model="any", input="Tom is 35", text_format=Person, temperature=0)
    assert isinstance(answer.output_parsed, Person)
    with openai_client.responses.stream(model="any", input="Tom is 35", text_format=Person, temperature=0) as stream:
        assert stream.get_final_response().output_parsed == answer.output_parsed


def test_responses_are_continued_by_whichever_worker(openai_client: openai.OpenAI) -> None:
    previous = None
    for i in range(4):
        with openai.OpenAI(
            base_url=openai_client.base_url, api_key="none", max_retries=0
        ) as client:  # a new connection
            answer = client.responses.create(
                model="any", input=str(i), previous_response_id=previous, extra_body=forced("ok"), max_output_tokens=9
            )
            assert client.responses.retrieve(answer.id).output_text == "ok"
            previous = answer.id
    assert previous is not None
    assert [item.type for item in openai_client.responses.input_items.list(previous)] == ["message"]
    openai_client.responses.delete(previous)
    with pytest.raises(openai.NotFoundError):
        openai_client.responses.retrieve(previous)
    with pytest.raises(openai.BadRequestError, match="not found"):
        openai_client.responses.create(model="any", input="x", previous_response_id=previous)


def test_responses_counted(openai_client: openai.OpenAI) -> None:
    counted = openai_client.responses.input_tokens.count(model="any", input=QUESTION)
    answer = openai_client.responses.create(model="any", input=QUESTION, max_output_tokens=1)
    assert answer.usage is not None
    assert counted.input_tokens == answer.usage.input_tokens
