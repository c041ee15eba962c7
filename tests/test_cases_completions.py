"""Reported cases of completions on the demo model through the whole server, beside those of test_api_whole.py."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server import Server, wait_for
from tests.test_api_whole import forced, idle, native_stream, ok, refused

KNOWN = {
    "The capital of France is": " Paris",
    "The capital of Italy is": " Rome",
    "Water freezes at 0 degrees": " Celsius",
    "One, two, three, four,": " five, six, seven",
    "The opposite of hot is": " cold",
    "def add(a, b):\n    return": " a + b",
}
STORY = "Once upon a time there was a little girl who lived in a village near the forest. "


@pytest.fixture(scope="module")
def server(model_path: Path) -> Iterator[Server]:
    with Server(["-m", str(model_path), "-c", "2048", "-np", "2", "--no-kv-unified", "--metrics"]) as started:
        yield started.wait_ready()


def metric(server: Server, name: str) -> float:
    """The value of one counter or gauge."""
    lines = server.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"llamacpp:{name}"))


@pytest.mark.parametrize("prompt", KNOWN)
def test_known_answers(server: Server, prompt: str) -> None:
    answer = ok(server, "/completion", {"prompt": prompt, "n_predict": 6, "temperature": 0})
    assert answer["content"].startswith(KNOWN[prompt])


def test_chunks_of_several_choices_carry_their_index_and_end_once(server: Server) -> None:
    """O05"""
    body = {"prompt": STORY, "n": 2, "max_tokens": 6, "seed": 1, "temperature": 1.5, "ignore_eos": True}
    whole = ok(server, "/v1/completions", body)["choices"]
    with server.stream("/v1/completions", {**body, "stream": True}) as events:
        chunks = list(events)
    for index in (0, 1):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert [one["finish_reason"] for one in mine if one["finish_reason"]] == ["length"]
        assert len("".join(one["text"] for one in mine)) > 5
    assert whole[0]["text"] != whole[1]["text"]
    assert chunks[-1]["usage"]["completion_tokens"] == 12


def test_of_two_token_caps_the_smaller_counts(server: Server) -> None:
    """O03"""
    body = {"prompt": STORY, "max_tokens": 9, "max_completion_tokens": 3, "ignore_eos": True}
    answer = ok(server, "/v1/completions", body)
    assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (3, "length")


@pytest.mark.parametrize("text", ["hi 😀👨‍👩‍👧 ok", "你好 歪é", "a\U0001f44b\u0301b"])
def test_characters_of_many_tokens_with_probabilities(server: Server, text: str) -> None:
    """U01: no piece ends inside a character, and the tokens' bytes are those of the text."""
    body = {"prompt": "x", "n_predict": 60, "temperature": 0, "n_probs": 2, "logprobs": 2, **forced(text)}
    joined, final, partials = native_stream(server, body)
    assert (joined, final["stop_type"]) == (text, "eos")
    spelled = b"".join(bytes(item["bytes"]) for one in partials for item in one.get("completion_probabilities", []))
    assert spelled.startswith(text.encode())
    with server.stream("/v1/completions", {**body, "stream": True}) as events:
        pieces = [event["choices"][0]["text"] for event in events]
    assert "".join(pieces) == text and "\ufffd" not in "".join(pieces)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_may_end_the_grammar_text(server: Server, stream: bool) -> None:
    """U05: what might have become a stop string is not lost."""
    body = {"prompt": "x", "n_predict": 40, "stop": ["gamma!"], **forced("alpha gamma")}
    text = native_stream(server, body)[0] if stream else ok(server, "/completion", body)["content"]
    assert text == "alpha gamma"


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"grammar": 'Root ::= "a"'}, "root"),
        ({"grammar": 'rout::="x'}, "line 1, column"),
        ({"grammar": "root ::= 'yes'"}, "line 1, column 10"),
        ({"json_schema": {"properties": {"a": {"type": "string", "pattern": "^(?=x)a$"}}}}, "#/properties/a"),
        ({"json_schema": {"properties": {"a": {"items": {"type": "strang"}}}}}, "#/properties/a/items"),
    ],
    ids=str,
)
def test_a_constraint_that_cannot_be_kept_is_refused_with_its_place(
    server: Server, body: dict[str, Any], place: str
) -> None:
    """G01"""
    assert place in refused(server, "/completion", {"prompt": "x", "n_predict": 4, **body})["message"]


def test_a_pattern_is_never_dropped(server: Server) -> None:
    """G01"""
    pattern = {"type": "string", "pattern": "^hello there indeed\\!$"}
    schema = {"type": "object", "properties": {"a": pattern}, "required": ["a"]}
    body = {"prompt": "x", "temperature": 0, "max_tokens": 40, "json_schema": schema}
    text = ok(server, "/v1/completions", body)["choices"][0]["text"]
    assert json.loads(text) == {"a": "hello there indeed!"}


def test_white_space_between_json_tokens_is_bounded(server: Server) -> None:
    """G04"""
    properties = {"name": {"type": "string"}, "age": {"type": "integer"}}
    schema = {"type": "object", "properties": properties, "required": ["name", "age"]}
    body = {"prompt": "x", "json_schema": schema, "temperature": 0, "n_predict": 60}
    answer = ok(server, "/completion", body)
    assert '"name"' in answer["content"]
    if answer["stop_type"] == "eos":
        assert set(json.loads(answer["content"])) == {"name", "age"}


def test_a_prompt_is_reused_as_far_as_it_goes(server: Server) -> None:
    """P04: again, with more behind it, and branching off at half."""
    base = {"n_predict": 1, "temperature": 0, "id_slot": 0}
    tokens = server.post("/tokenize", {"content": STORY * 10}).json()["tokens"][:176]
    longer, branch = [*tokens, 260, 282], [*tokens[:86], 260, 282, 253]
    cached = [ok(server, "/completion", {"prompt": p, **base})["timings"] for p in (tokens, tokens, longer, branch)]
    assert [one["cache_n"] for one in cached[1:]] == [175, 176, 86]
    assert [one["prompt_n"] for one in cached[1:]] == [1, 2, 3]
    fresh = ok(server, "/completion", {"prompt": longer, **base, "cache_prompt": False})
    assert fresh["timings"]["cache_n"] == 0
    assert fresh["content"] == ok(server, "/completion", {"prompt": longer, **base})["content"]


def send(server: Server, body: dict[str, Any]) -> socket.socket:
    """A request whose answer nobody has read yet."""
    data = json.dumps(body).encode()
    head = (
        f"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(head.encode() + data)
    return connection


def test_a_client_that_leaves_the_queue_never_starts(server: Server) -> None:
    """C01: the engine reads no token for it, and counts one abort for each that left."""
    wait_for(lambda: idle(server), 20)
    aborted = metric(server, "requests_aborted_total")
    busy = [send(server, {"prompt": "a", "n_predict": 900, "ignore_eos": True}) for _ in range(2)]
    wait_for(lambda: metric(server, "requests_processing") == 2, 20)
    waiting = send(server, {"prompt": STORY * 20, "n_predict": 5})
    wait_for(lambda: metric(server, "requests_deferred") == 1, 20)
    waiting.close()
    wait_for(lambda: metric(server, "requests_deferred") == 0, 20)
    read = metric(server, "prompt_tokens_total")
    for connection in busy:
        connection.close()
    wait_for(lambda: idle(server), 20)
    assert metric(server, "requests_aborted_total") == aborted + 3
    assert metric(server, "prompt_tokens_total") == read


def test_more_requests_than_slots_are_served_in_order(server: Server) -> None:
    """C05"""
    connections = [send(server, {"prompt": f"{i} is", "n_predict": 4, "ignore_eos": True}) for i in range(12)]
    answers = [json.loads(read_body(connection)) for connection in connections]
    assert all(answer["tokens_predicted"] == 4 for answer in answers)
    queued = [answer["timings"]["queue_ms"] for answer in answers]
    assert queued[0] < queued[-1]
    assert metric(server, "requests_deferred") == 0


def read_body(connection: socket.socket) -> bytes:
    """The body of a whole answer."""
    connection.settimeout(60)
    with connection, connection.makefile("rb") as lines:
        assert b" 200 " in lines.readline()
        length = 0
        while line := lines.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        return lines.read(length)
