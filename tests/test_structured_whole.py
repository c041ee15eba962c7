"""Structured output through the whole server: reported cases, and hostile constraints beside a running stream."""

import json
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.server import Server

CHAT, COMPLETION = "/v1/chat/completions", "/completion"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


@pytest.fixture(scope="module")
def server(model_path: Path) -> Iterator[Server]:
    with Server(["-m", str(model_path), "-c", "2048", "-np", "4", "-a", "demo"]) as started:
        yield started.wait_ready()


def force(text: str) -> dict[str, Any]:
    """What makes the model say exactly this."""
    return {"grammar": f"root ::= {json.dumps(text, ensure_ascii=False)}", "temperature": 0, "n_predict": 60}


def streamed(server: Server, path: str, body: dict[str, Any]) -> list[Any]:
    with server.stream(path, {**body, "stream": True}) as events:
        return list(events)


@pytest.mark.parametrize("text", ["t", "alpha beta gamma delta", "hi 😀👨\u200d👩\u200d👧 ok", "Mars?\n"])
def test_a_forced_text_comes_whole_and_ends(server: Server, text: str) -> None:
    answer = server.post(COMPLETION, {"prompt": "x", **force(text)}).json()
    assert (answer["content"], answer["stop_type"]) == (text, "eos")
    events = streamed(server, COMPLETION, {"prompt": "x", **force(text)})
    assert "".join(event["content"] for event in events) == text
    assert not any("\ufffd" in event["content"] for event in events)


@pytest.mark.parametrize(
    ("text", "stop", "right"), [("alpha beta gam", "beta gamma", "alpha beta gam"), ("Mars?\n", "\n", "Mars?")]
)
def test_held_back_text_is_released(server: Server, text: str, stop: str, right: str) -> None:
    events = streamed(server, COMPLETION, {"prompt": "x", **force(text), "stop": [stop]})
    assert "".join(event["content"] for event in events) == right


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        ({"grammar": 'Root ::= "a"'}, ["line 1", "root"]),
        ({"grammar": 'rout::=\\"x'}, ["line 1", "column 8"]),
        ({"grammar": "answer ::= 'yes'"}, ["line 1", "column 12"]),
        (
            {"json_schema": {"properties": {"a": {"type": "string", "pattern": "^(?=x)a$"}}}},
            ["/properties/a", "pattern"],
        ),
        ({"regex": "(?=x)a"}, ["look-around"]),
        ({"lark": "start: foo"}, ["foo"]),
        ({"json_schema": {"items": {"uniqueItems": True}}}, ["/items", "uniqueItems"]),
    ],
)
def test_a_bad_constraint_is_refused_with_its_place(
    server: Server, constraint: dict[str, Any], words: list[str]
) -> None:
    response = server.post(COMPLETION, {"prompt": "x", "n_predict": 8, **constraint})
    assert response.status_code == 400
    assert all(word in response.json()["error"]["message"] for word in words)


@pytest.mark.parametrize(
    "pattern", ["^hello there indeed\\!$", "^hello there indeed\\\\!$", "\\S{1,4}"], ids=["escape", "backslash", "open"]
)
def test_patterns_in_chat_schemas_hold(server: Server, pattern: str) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": pattern, "maxLength": 30}},
        "required": ["a"],
    }
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0,
        "max_tokens": 60,
        "response_format": form,
    }
    answer = server.post(CHAT, body).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    jsonschema.validate(json.loads(answer["choices"][0]["message"]["content"]), schema)


def test_white_space_is_bounded(server: Server) -> None:
    body = {"prompt": "x", "json_schema": PERSON, "temperature": 0, "n_predict": 60}
    answer = server.post(COMPLETION, body).json()
    assert answer["content"].startswith('{"name": "')
    assert answer["stop_type"] != "eos" or json.loads(answer["content"])


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"e": {"enum": ["x", "y"]}}, "type": "array", "items": {"$ref": "#/$defs/e"}, "maxItems": 3},
        {"allOf": [{"type": "object", "properties": {"b": {"enum": [1, 2]}}, "required": ["b"]}], "maxProperties": 1},
        {"type": "object", "properties": {"t": {"enum": ["a", "b"]}}, "required": ["t"]},
        {"type": "string", "format": "date"},
    ],
)
def test_answers_are_valid_by_their_schema(server: Server, schema: dict[str, Any]) -> None:
    for seed in range(3):
        body = {"prompt": "Give me data:", "json_schema": schema, "seed": seed, "n_predict": 60, "temperature": 1.2}
        answer = server.post(COMPLETION, body).json()
        assert answer["stop_type"] == "eos"
        jsonschema.validate(json.loads(answer["content"]), schema)


def test_a_token_that_the_text_forces_counts_but_costs_no_step(server: Server) -> None:
    schema = {"type": "object", "properties": {"a_rather_long_name_of_a_property": {"enum": [1, 2]}}}
    schema["required"] = list(schema["properties"])
    events = streamed(server, COMPLETION, {"prompt": "x", "json_schema": schema, "n_predict": 60})
    assert any(len(event["tokens"]) > 3 for event in events[:-1])
    assert events[-1]["stop_type"] == "eos" and events[-1]["tokens_predicted"] > len(events)


HOSTILE: dict[str, Any] = {
    "brackets": {"grammar": "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000},
    "chain": {"grammar": "\n".join(["root ::= r0", *(f"r{i} ::= r{i + 1}" for i in range(5000)), 'r5000 ::= "a"'])},
    "repetitions": {"grammar": 'root ::= ("a"{1000}){1000}'},
    "optional": {"grammar": "root ::= " + ' "-"?' * 3000 + ' "b"'},
    "regex": {"regex": "(a{1000}){1000}"},
    "lark": {"lark": "start: " + "(" * 60_000 + '"a"' + ")" * 60_000},
}


def test_hostile_constraints_are_refused_while_a_stream_goes_on(server: Server) -> None:
    arrivals: list[float] = []

    def neighbour() -> None:
        body = {"prompt": "Once", "n_predict": 400, "ignore_eos": True, "stream": True}
        with server.stream(COMPLETION, body) as events:
            for _ in events:
                arrivals.append(time.monotonic())

    stream = threading.Thread(target=neighbour)
    stream.start()
    spans = []
    for constraint in HOSTILE.values():
        begin = time.monotonic()
        response = server.post(COMPLETION, {"prompt": "x", "n_predict": 4, **constraint})
        spans.append((begin, time.monotonic()))
        assert response.status_code == 400, response.text
    nested = '{"prompt": "x", "json_schema": ' + '{"items": ' * 2000 + "{}" + "}" * 2001
    assert server.http.post(COMPLETION, content=nested).status_code == 400
    stream.join(60)
    assert not stream.is_alive()
    during = [time for time in arrivals if spans[0][0] < time < spans[-1][1]]
    assert max(after - before for before, after in pairwise(during)) < 2
    assert max(end - begin for begin, end in spans) < 5  # a second, on a machine with nothing else to do


def test_an_ambiguous_grammar_stalls_nobody(server: Server) -> None:
    grammar = "\n".join(["root ::= sum", 'sum ::= term "+" sum | term', 'term ::= "(" sum ")" | "1"'])
    bias = [["(", 8.0], ["((", 8.0], ["((((", 8.0]]
    body = {"prompt": "((((", "grammar": grammar, "n_predict": 40, "logit_bias": bias, "temperature": 0}
    begin = time.monotonic()
    answer = server.post(COMPLETION, body).json()
    assert answer["content"].startswith("((((((((") and answer["tokens_predicted"] == 40
    assert time.monotonic() - begin < 30


def test_a_sleeping_grammar_wakes_at_its_trigger(server: Server) -> None:
    body = {
        "prompt": "The number is",
        "grammar": 'root ::= " the" " answer: " [0-9]{3}',
        "grammar_lazy": True,
        "grammar_triggers": [{"type": 2, "value": " the"}],
        "preserved_tokens": [],
        "logit_bias": [[" the", 100.0]],
        "n_predict": 40,
    }
    text = server.post(COMPLETION, body).json()["content"]
    assert text[:-3] == " the answer: " and text[-3:].isdigit()
