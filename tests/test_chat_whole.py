"""Chat completions of the demo model through the whole server: reported cases with their right answers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.chat_answers import joined, without_ids
from tests.chat_vocab import TEMPLATE
from tests.server import Server

CHAT = "/v1/chat/completions"
CONTEXT = 512  # of one slot
ASKED: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
EMOJI = "hi 😀👨‍👩‍👧 ok"


def tool(name: str, **properties: Any) -> Any:
    """A function with these parameters, all of them required."""
    form = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": form}}


WEATHER = tool("get_weather", city={"type": "string", "enum": ["Paris"]})
TIME = tool("get_time", zone={"const": "UTC"})


@pytest.fixture(scope="module")
def server(model_path: Path) -> Iterator[Server]:
    """The model as it is: its template knows no tools."""
    with Server(
        ["-m", str(model_path), "-c", str(2 * CONTEXT), "-np", "2", "--no-kv-unified", "-a", "demo"]
    ) as started:
        yield started.wait_ready()


@pytest.fixture(scope="module")
def thinker(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The model with a template that lets it think, and knows tools."""
    path = tmp_path_factory.mktemp("template") / "thinker.jinja"
    path.write_text(TEMPLATE)
    args = ["-m", str(model_path), "-c", "2048", "-np", "1", "-a", "demo", "--chat-template-file", str(path)]
    with Server(args) as started:
        yield started.wait_ready()


def forced(text: str) -> dict[str, str]:
    """What makes any model answer exactly `text`."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return {"grammar": f'root ::= "{escaped}"'}


SAME = {"temperature": 0, "cache_prompt": False}  # a cached prompt gives logits that differ in the last digits


def answer(server: Server, body: dict[str, Any]) -> Any:
    """The decoded answer, which must be a success."""
    response = server.post(CHAT, {"messages": ASKED, **body})
    assert response.status_code == 200, response.text
    return response.json()


def choice(server: Server, body: dict[str, Any]) -> Any:
    """The only choice of a whole answer, without ids of calls."""
    (found,) = answer(server, body)["choices"]
    return {**found, "message": without_ids(found["message"])}


def chunks(server: Server, body: dict[str, Any]) -> list[Any]:
    """The chunks of a stream."""
    with server.stream(CHAT, {"messages": ASKED, **body, "stream": True}) as events:
        return list(events)


def refused(server: Server, body: dict[str, Any], path: str = CHAT) -> dict[str, Any]:
    """The error object of a request that must get 400."""
    response = server.post(path, {"messages": ASKED, **body})
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def client(server: Server) -> openai.OpenAI:
    """OpenAI's client."""
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")


def test_the_openai_client(server: Server) -> None:
    create = client(server).chat.completions.create
    options: Any = {"temperature": 0, "extra_body": {"cache_prompt": False}}
    whole = create(model="any", messages=ASKED, max_tokens=5, logprobs=True, top_logprobs=2, **options)
    assert whole.model == "demo"
    assert whole.usage is not None
    assert (whole.usage.completion_tokens, whole.choices[0].finish_reason) == (5, "length")
    assert whole.choices[0].logprobs is not None
    assert len(whole.choices[0].logprobs.content or []) == 5
    stream = create(model="any", messages=ASKED, max_tokens=5, stream=True, **options)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole.choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="exceeds the available context size"):
        create(model="any", messages=[{"role": "user", "content": "hello " * 600}], stream=True)


def test_structured_output_by_the_openai_client(server: Server) -> None:
    class City(BaseModel):
        name: str
        large: bool

    parse = client(server).chat.completions.parse
    parsed = parse(model="any", messages=ASKED, response_format=City, max_tokens=80, seed=1).choices[0].message.parsed
    assert isinstance(parsed, City)


def test_a_stream_of_tool_calls_by_the_openai_client(thinker: Server) -> None:
    options: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    budget = {"reasoning_budget_tokens": 4}
    completions = client(thinker).chat.completions
    with completions.stream(
        model="any", messages=ASKED, max_tokens=100, temperature=0, extra_body=budget, **options
    ) as stream:
        message = stream.get_final_completion().choices[0].message
    assert message.role == "assistant"
    (call,) = message.tool_calls or []
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict"])
def test_all_names_of_the_token_cap(server: Server, name: str) -> None:
    capped = answer(server, {name: 3, "ignore_eos": True})
    assert (capped["usage"]["completion_tokens"], capped["choices"][0]["finish_reason"]) == (3, "length")
    smaller = answer(server, {"max_tokens": 9, "max_completion_tokens": 9, name: 3, "ignore_eos": True})
    assert smaller["usage"]["completion_tokens"] == 3


def test_choices_differ_and_usage_is_their_sum(server: Server) -> None:
    body = {"n": 2, "max_tokens": 8, "seed": 1, "temperature": 1.5, "ignore_eos": True}
    whole = answer(server, body)
    assert len({one["message"]["content"] for one in whole["choices"]}) == 2
    assert whole["usage"]["completion_tokens"] == 16
    assert whole["usage"]["total_tokens"] == 16 + whole["usage"]["prompt_tokens"]
    found = chunks(server, {**body, "stream_options": {"include_usage": True}})
    assert {joined(found, index)["finish_reason"] for index in (0, 1)} == {"length"}
    assert "between 1 <= value <= 2" in refused(server, {"n": 3})["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, "/chat/completions"])
def test_a_prompt_that_is_too_long_is_a_400(server: Server, stream: bool, path: str) -> None:
    body = {"messages": [{"role": "user", "content": "hello " * 600}], "stream": stream}
    error = refused(server, body, path)
    assert error["type"] == "exceed_context_size_error"
    assert error["n_ctx"] == CONTEXT
    assert error["n_prompt_tokens"] > 600
    count = server.post(CHAT + "/input_tokens", body).json()["input_tokens"]
    assert count == error["n_prompt_tokens"]


def test_an_emoji_of_many_tokens_arrives_whole(server: Server) -> None:
    body = {"max_tokens": 40, "temperature": 0, **forced(EMOJI)}
    for more in ({}, {"logprobs": True, "top_logprobs": 3}):
        assert choice(server, {**body, **more})["message"]["content"] == EMOJI
        found = chunks(server, {**body, **more})
        assert joined(found)["message"]["content"] == EMOJI
        assert "\ufffd" not in json.dumps(found, ensure_ascii=False)


def test_a_stop_string_is_never_sent(server: Server) -> None:
    body = {"max_tokens": 40, "stop": ["beta gamma"], **forced("alpha beta gamma delta")}
    whole = choice(server, body)
    assert (whole["message"]["content"], whole["finish_reason"]) == ("alpha ", "stop")
    assert joined(chunks(server, body)) == whole


def test_tools_on_a_template_without_any(server: Server) -> None:
    plain = answer(server, {"max_tokens": 1})["usage"]["prompt_tokens"]
    body = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 60, "cache_prompt": False}
    whole = answer(server, body)
    assert whole["usage"]["prompt_tokens"] > plain + 20
    assert whole["choices"][0]["finish_reason"] == "tool_calls"
    (call,) = whole["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    streamed = joined(chunks(server, body))
    assert streamed["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
    assert streamed["finish_reason"] == "tool_calls"


def test_a_named_function_is_the_only_one_called(server: Server) -> None:
    body: dict[str, Any] = {"tools": [WEATHER, TIME], "max_tokens": 60}
    named = {"type": "function", "function": {"name": "get_time"}}
    (call,) = choice(server, {**body, "tool_choice": named})["message"]["tool_calls"]
    assert call["function"]["name"] == "get_time"
    assert json.loads(call["function"]["arguments"]) == {"zone": "UTC"}
    wrong = {"type": "function", "function": {"name": "nope"}}
    assert "nope" in refused(server, {**body, "tool_choice": wrong})["message"]
    assert "tool_calls" not in choice(server, {**body, "tool_choice": "none", "max_tokens": 8})["message"]
    assert choice(server, {"tool_choice": "none", "max_tokens": 2})["message"]["content"]


def test_a_thought_and_two_calls_are_the_same_whole_and_streamed(thinker: Server) -> None:
    body = {
        "tools": [WEATHER, TIME],
        "tool_choice": "required",
        "parallel_tool_calls": True,
        **SAME,
        "max_tokens": 110,
        "reasoning_budget_tokens": 12,
        "reasoning_budget_message": " So be it.",
    }
    whole = choice(thinker, body)
    assert whole["message"]["reasoning_content"].endswith(" So be it.")
    assert len(whole["message"]["tool_calls"]) >= 2
    assert joined(chunks(thinker, body)) == whole
    inline = choice(thinker, {**body, "reasoning_format": "none"})["message"]
    assert "</think>" in inline["content"]
    assert inline["tool_calls"] == whole["message"]["tool_calls"]


def test_a_forced_transcript_with_thinking(thinker: Server) -> None:
    body = {"max_tokens": 40, **forced("Paris,\nI think.\n</think>\n\nIt is Paris.")}
    whole = choice(thinker, body)
    assert whole["message"] == {
        "role": "assistant",
        "content": "It is Paris.",
        "reasoning_content": "Paris,\nI think.",
    }
    assert joined(chunks(thinker, body)) == whole


def test_a_schema_waits_for_the_end_of_the_thinking(thinker: Server) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    body = {"response_format": form, "max_tokens": 60, "reasoning_budget_tokens": 5, **SAME}
    whole = choice(thinker, body)
    assert whole["message"]["reasoning_content"]
    assert set(json.loads(whole["message"]["content"])) == {"ok"}
    assert joined(chunks(thinker, body)) == whole
    bare = choice(thinker, {**body, "chat_template_kwargs": {"enable_thinking": False}})["message"]
    assert "reasoning_content" not in bare
    assert set(json.loads(bare["content"])) == {"ok"}


def test_an_answer_begun_by_the_client_fits_its_schema(server: Server) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    begun = {"messages": [*ASKED, {"role": "assistant", "content": '{"ok":'}], "json_schema": schema, "max_tokens": 20}
    assert set(json.loads(choice(server, {**begun, "echo": True})["message"]["content"])) == {"ok"}
    begun["messages"] = [*ASKED, {"role": "assistant", "content": "[1"}]
    assert refused(server, begun)["message"]


def test_the_control_endpoint_ends_the_thinking(thinker: Server) -> None:
    control = CHAT + "/control"
    body = {"messages": ASKED, "max_tokens": 400, "ignore_eos": True, "stream": True}
    for allowed in (True, False):
        with thinker.stream(CHAT, {**body, "reasoning_control": allowed}) as events:
            first = next(events)
            order = {"id": first["id"], "action": "reasoning_end"}
            reply = thinker.post(control, order).json()
            if not allowed:
                assert reply == {
                    "success": False,
                    "message": "reasoning control not enabled for this completion",
                }
                break
            assert reply == {"success": True}
            thought = 0
            for event in events:
                delta = event["choices"][0]["delta"]
                thought += "reasoning_content" in delta
                if "content" in delta:
                    break
            assert thought < 300
    gone = thinker.post(control, {"id": "chatcmpl-x", "action": "reasoning_end"}).json()
    assert gone == {"success": False, "message": "no active completion for this id"}


@pytest.mark.parametrize(
    ("answered", "result"),
    [
        ({"content": None}, {"tool_call_id": "c1", "content": "42"}),
        ({}, {"tool_call_id": "c1", "content": "42"}),
        ({"content": ""}, {"tool_call_id": "c1", "content": [{"type": "text", "text": "42"}]}),
        ({"content": None}, {"tool_call_id": None, "content": "42"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("which", ["server", "thinker"])
def test_turns_with_calls_and_results(
    which: str, answered: dict[str, Any], result: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(which)
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'}}
    turns = [*ASKED, {"role": "assistant", "tool_calls": [call], **answered}, {"role": "tool", **result}]
    for tools in ([WEATHER], None):
        assert choice(server, {"messages": turns, "tools": tools, "max_tokens": 2})["finish_reason"]


@pytest.mark.parametrize("limit", [20, 100])
def test_our_own_answer_may_be_sent_back(thinker: Server, limit: int) -> None:
    body = {"tools": [WEATHER], "tool_choice": "required", "reasoning_budget_tokens": 4, "max_tokens": limit}
    message = answer(thinker, body)["choices"][0]["message"]
    again = [*ASKED, message, {"role": "user", "content": "Go on."}]
    assert choice(thinker, {**body, "messages": again, "max_tokens": 2})["finish_reason"] == "length"


def test_answers_that_cannot_be_read_are_no_errors(server: Server) -> None:
    pattern = {"type": "string", "pattern": "^hello there indeed\\\\!$"}
    schema = {"type": "object", "properties": {"a": pattern}, "required": ["a"]}
    whole = choice(server, {"json_schema": schema, "max_tokens": 60, "temperature": 0})
    assert json.loads(whole["message"]["content"]) == {"a": "hello there indeed\\!"}
    none = choice(server, {"tools": [tool("a")], "tool_choice": "required", "max_tokens": 60})
    assert json.loads(none["message"]["tool_calls"][0]["function"]["arguments"]) == {}
    for limit in range(1, 16):
        cut = choice(server, {"tools": [WEATHER], "tool_choice": "required", "max_tokens": limit})
        assert cut["finish_reason"] == "length"


def test_odd_schemas_do_not_kill_a_request(server: Server) -> None:
    texts = {"type": "array", "maxItems": 50, "items": {"type": "string", "maxLength": 2000}}
    tools = [tool("a"), tool("b", texts=texts), tool("c", text={"type": "string", "pattern": "\\S"})]
    for wish in ("auto", "required"):
        assert choice(server, {"tools": tools, "tool_choice": wish, "max_tokens": 4})["finish_reason"]
    odd = tool("d", text={"type": "string", "pattern": "^(?=x)a$"})
    message = refused(server, {"tools": [*tools, odd], "max_tokens": 4})["message"]
    assert all(word in message for word in ("'d'", "text", "pattern"))


def test_without_a_limit_an_answer_ends_with_the_context(server: Server) -> None:
    whole = answer(server, {"ignore_eos": True, "messages": [{"role": "user", "content": "hello " * 400}]})
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["total_tokens"] <= CONTEXT
