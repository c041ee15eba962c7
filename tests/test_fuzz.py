"""No request ends a process, hangs or gets a 500, however wrong it is; and its neighbours go on meanwhile."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from falcon.testing import Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api_client import running
from tests.fake_engine import Script
from tests.fuzz import completions, requests
from tests.server import Server, wait_for

FUZZ = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
TINY = {"prompt": "a", "n_predict": 2}
Post = Callable[[str, str], Result]


@pytest.fixture(scope="module")
def post(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Post]:
    """POST text to the application in front of an engine without a model."""
    script = Script(n_embed_tokens=64)
    with asyncio.Runner() as runner:
        context = running(tmp_path_factory.mktemp("fuzz"), script)
        api = runner.run(context.__aenter__())

        async def within(path: str, body: str) -> Result:
            async with asyncio.timeout(20):
                return await api.http.simulate_post(path, body=body)

        yield lambda path, body: runner.run(within(path, body))
        runner.run(context.__aexit__(None, None, None))


@settings(FUZZ, max_examples=150)
@given(case=requests())
def test_every_api_answers_or_refuses(post: Post, case: tuple[str, dict[str, Any]]) -> None:
    path, body = case
    answer = post(path, json.dumps(body))
    assert answer.status_code in (200, 400, 404, 501), answer.text
    if answer.status_code != 200:
        assert answer.json["error"]


# ------------------------------------------------ the demo model behind it


@pytest.fixture(scope="module")
def server(model_path: Path) -> Iterator[Server]:
    with Server(["-m", str(model_path), "-c", "1024", "-np", "4", "--no-kv-unified"]) as started:
        started.wait_ready()
        assert started.post("/completion", {**TINY, "json_schema": {}}).status_code == 200  # compilers are set up
        yield started


class Neighbour:
    """Streams without a pause, and notes when something came."""

    def __init__(self, server: Server) -> None:
        self.moments: list[float] = []
        self.faults: list[Any] = []
        self.ended = 0
        self._server = server
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        body = {"prompt": "Once upon a time", "n_predict": 100, "ignore_eos": True, "stream": True}
        while not self._stopping:
            try:
                with self._server.stream("/completion", body) as events:
                    *partials, final = self._noted(events)
            except Exception as fault:
                self.faults.append(fault)
                return
            self.ended += 1
            n_tokens = sum(len(partial["tokens"]) for partial in partials)
            if (final["stop_type"], n_tokens) != ("limit", 100):
                self.faults.append(final)

    def _noted(self, events: Iterator[Any]) -> Iterator[Any]:
        for event in events:
            self.moments.append(time.monotonic())
            yield event

    def longest_gap(self, begin: float) -> float:
        """Of the time since `begin`."""
        moments = [begin, *(moment for moment in self.moments if moment >= begin), time.monotonic()]
        return max(later - earlier for earlier, later in pairwise(moments))

    def stop(self) -> None:
        self._stopping = True
        self._thread.join(60)


@pytest.fixture(scope="module")
def neighbour(server: Server) -> Iterator[Neighbour]:
    made = Neighbour(server)
    wait_for(lambda: made.moments, 30)
    yield made
    made.stop()
    assert not made.faults and made.ended


def nested(pattern: str, inner: str, n: int) -> str:
    before, after = pattern.split("@")
    return before * n + inner + after * n


def chained(form: str, last: str, n: int) -> str:
    return "".join(form.format(i, i + 1) for i in range(n)) + last.format(n)


STRING = '{"type":"string"}'
HOSTILE: dict[str, dict[str, Any] | str] = {
    "60,000 groups": {"grammar": "root ::= " + nested("(@)", '"a"', 60_000)},
    "60,000 open groups": {"grammar": "root ::= " + "(" * 60_000},
    "60,000 open classes": {"grammar": "root ::= " + "[" * 60_000},
    "5,000 rules": {"grammar": "root ::= r0\n" + chained("r{} ::= r{}\n", 'r{} ::= "a"', 5000)},
    "repeated repetitions": {"grammar": 'root ::= ("a"{1000}){1000}'},
    "left recursion": {"grammar": 'root ::= root "a" | "b"'},
    "properties 2,000 deep": nested('{"type":"object","properties":{"a":@}}', STRING, 2000),
    "items 2,000 deep": nested('{"type":"array","items":@}', STRING, 2000),
    "anyOf 300 deep": nested('{"anyOf":[@]}', STRING, 300),
    "a circle": {"json_schema": {"$ref": "#"}},
    "5,000 properties": {"json_schema": {"properties": {f"p{i}": {} for i in range(5000)}}},
    "a regex of repetitions": {"regex": "((a{1000}){1000}){1000}"},
    "a deep regex": {"regex": nested("(@)", "a", 20_000)},
    "50,000 rules of Lark": {"lark": "start: r0\n" + chained("r{}: r{}\n", 'r{}: "a"', 50_000)},
    "deep Lark": {"lark": "start: " + nested("(@)", '"a"', 20_000)},
    "endless choices": {"choice": [f"number {i}" for i in range(50_000)]},
    "a deep trigger": {
        "grammar": 'root ::= "a"',
        "grammar_lazy": True,
        "grammar_triggers": [{"type": 2, "value": "(" * 5000}],
    },
}


def raw(constraint: dict[str, Any] | str) -> str:
    """The request's text; one that no encoder would write comes as text."""
    if isinstance(constraint, str):
        return f'{{"prompt": "a", "n_predict": 2, "json_schema": {constraint}}}'
    return json.dumps({**TINY, **constraint})


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_constraint_is_refused_while_a_neighbour_goes_on(
    server: Server, neighbour: Neighbour, name: str
) -> None:
    text = raw(HOSTILE[name])
    begin = time.monotonic()
    assert server.post("/completion", TINY).status_code == 200
    limit = max(1.0, 10 * (time.monotonic() - begin))  # a busy machine is slow at everything
    begin = time.monotonic()
    answer = server.http.post("/completion", content=text)
    took = time.monotonic() - begin
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert took < limit
    assert neighbour.longest_gap(begin) < limit


MALFORMED = [
    b"",
    b"{",
    b"[]",
    b'"x"',
    b"null",
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b"{'prompt': 'a'}",
    b'{"prompt": "\\ud800"}',
    b'{"prompt": "a", "temperature": NaN}',
    b'{"prompt": "a", "temperature": Infinity}',
    b'{"prompt": "a", "seed": 1e999}',
    b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
    b'{"prompt": ' + b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"prompt": "a"} x',
    b"{}" * 1000,
    b'{"prompt": "\x00"',
    b'{"prompt": ' + b"[" * 2000 + b"1" + b"]" * 2000 + b"}",
]


@pytest.mark.parametrize("body", MALFORMED, ids=lambda body: repr(body[:40]))
def test_a_malformed_body_is_a_400(server: Server, body: bytes) -> None:
    for path in ("/completion", "/v1/completions"):
        answer = server.http.post(path, content=body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["code"] == 400


POST = b"POST /completion HTTP/1.1\r\nHost: x\r\n"
BROKEN = [
    b"GARBAGE\r\n\r\n",
    b"POST /completion HTTP/9.9\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00",
    POST + b"Content-Length: x\r\n\r\n",
    POST + b"Content-Length: 99\r\n\r\n{",
    POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
    POST + b"".join(b"X-%d: y\r\n" % i for i in range(5000)) + b"\r\n",
]


@pytest.mark.parametrize("data", BROKEN, ids=lambda data: repr(data[:40]))
def test_a_broken_connection_leaves_the_server_as_it_was(server: Server, data: bytes) -> None:
    workers = server.workers()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        assert b" 500 " not in connection.recv(200)
    assert server.post("/completion", TINY).status_code == 200
    assert server.workers() == workers


@settings(FUZZ, max_examples=60)
@given(path=st.sampled_from(["/completion", "/v1/completions"]), body=completions(3))
def test_a_real_engine_outlives_every_request(server: Server, path: str, body: dict[str, Any]) -> None:
    engine = server.engine()
    answer = server.http.post(path, content=json.dumps(body), timeout=httpx.Timeout(60))
    assert answer.status_code in (200, 400), answer.text
    assert server.engine() == engine
