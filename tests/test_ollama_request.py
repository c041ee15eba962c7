"""What requests of Ollama's API become, and which bodies of /api/chat are Ollama's."""

from typing import Any

import pytest

from api.errors import ApiError
from api.fields import INT32_MAX
from api.ollama_request import chat_body, completion_body, generate_body, is_openai

HI = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    ("body", "openai"),
    [
        ({"messages": [HI]}, True),
        ({"messages": [HI], "max_tokens": 3}, True),
        ({"messages": [HI], "stream": True}, True),
        ({"model": "m", "messages": [HI], "temperature": 0}, True),
        ({"model": "m", "messages": [HI], "response_format": {"type": "json_object"}}, True),
        ({"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}, True),
        ({"model": "m", "messages": [HI]}, False),
        ({"model": "m", "messages": [HI], "stream": False}, False),
        ({"model": "m", "messages": [HI], "stream": True, "tools": [], "logprobs": True}, False),
        ({"model": "m", "messages": [HI], "options": {"temperature": 0}, "keep_alive": "5m"}, False),
        ({"messages": [HI], "options": {}}, False),
        ({"messages": [{**HI, "images": []}]}, False),
        ({"model": "m", "messages": [{"role": "tool", "tool_name": "f", "content": "1"}], "user": "me"}, False),
        ({"messages": "hi"}, True),
        ({"messages": ["hi"], "model": "m"}, False),
    ],
    ids=str,
)
def test_whose_body_it_is(body: dict[str, Any], openai: bool) -> None:
    assert is_openai(body) is openai


def chat(**body: Any) -> dict[str, Any]:
    """The chat body of a request, without what every one has."""
    found = chat_body({"messages": [HI], **body})
    assert found.pop("messages") == [HI]
    return found


@pytest.mark.parametrize(
    ("body", "mapped"),
    [
        ({}, {"stream": True}),
        ({"stream": None}, {"stream": True}),
        ({"stream": False}, {"stream": False}),
        ({"model": "m", "keep_alive": 0, "truncate": True}, {"stream": True, "model": "m"}),
        (
            {"options": {"num_predict": 7, "temperature": 0, "seed": 3, "stop": ["a"], "top_k": 1, "num_keep": 2}},
            {"stream": True, "n_predict": 7, "temperature": 0, "seed": 3, "stop": ["a"], "top_k": 1, "n_keep": 2},
        ),
        (
            {"options": {"num_predict": -2, "repeat_last_n": -1}},
            {"stream": True, "n_predict": -1, "repeat_last_n": INT32_MAX},
        ),
        ({"options": {"num_ctx": 99, "num_gpu": 1, "unknown": 1, "seed": None}}, {"stream": True}),
        ({"format": ""}, {"stream": True}),
        ({"format": "json"}, {"stream": True, "response_format": {"type": "json_object"}}),
        (
            {"format": SCHEMA},
            {"stream": True, "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        ),
        ({"think": False}, {"stream": True, "chat_template_kwargs": {"enable_thinking": False}}),
        (
            {"think": "high"},
            {"stream": True, "chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "high"},
        ),
        ({"logprobs": True, "top_logprobs": 2}, {"stream": True, "logprobs": True, "top_logprobs": 2}),
        ({"tools": []}, {"stream": True}),
        (
            {"tools": [{"function": {"name": "f"}}]},
            {"stream": True, "tools": [{"type": "function", "function": {"name": "f"}}]},
        ),
    ],
    ids=str,
)
def test_fields_become_fields(body: dict[str, Any], mapped: dict[str, Any]) -> None:
    assert chat(**body) == mapped


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        (HI, HI),
        ({"role": "assistant"}, {"role": "assistant", "content": ""}),
        (
            {**HI, "images": ["AAAA"]},
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                    {"type": "text", "text": "hi"},
                ],
            },
        ),
        (
            {
                "role": "assistant",
                "content": "",
                "thinking": "hm",
                "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
            },
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": "hm",
                "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
            },
        ),
        (
            {"role": "tool", "content": "42", "tool_name": "f", "tool_call_id": "c1"},
            {"role": "tool", "content": "42", "name": "f", "tool_call_id": "c1"},
        ),
    ],
    ids=str,
)
def test_messages_become_messages(turn: dict[str, Any], message: dict[str, Any]) -> None:
    assert chat_body({"messages": [turn]})["messages"] == [message]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"messages": "hi"}, "'messages'"),
        ({"messages": [3]}, "'messages[0]'"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{**HI, "content": 3}]}, "messages[0].content"),
        ({"messages": [{**HI, "images": "AAAA"}]}, "messages[0].images"),
        ({"messages": [{**HI, "images": [3]}]}, "messages[0].images"),
        ({"messages": [{**HI, "tool_calls": {}}]}, "messages[0].tool_calls"),
        ({"stream": "yes"}, "'stream'"),
        ({"options": []}, "'options'"),
        ({"format": "xml"}, "'format'"),
        ({"think": "hard"}, "'think'"),
        ({"think": 3}, "'think'"),
        ({"tools": "f"}, "'tools'"),
    ],
    ids=str,
)
def test_what_is_refused(body: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError) as raised:
        chat_body({"messages": [HI], **body})
    assert raised.value.code == 400
    assert message in raised.value.message


def test_generate_is_a_chat_of_one_question() -> None:
    assert generate_body({"prompt": "hi"})["messages"] == [HI]
    system = {"role": "system", "content": "Be brief."}
    assert generate_body({"prompt": "hi", "system": "Be brief."})["messages"] == [system, HI]
    (turn,) = generate_body({"prompt": "hi", "images": ["AAAA"]})["messages"]
    assert [part["type"] for part in turn["content"]] == ["image_url", "text"]


@pytest.mark.parametrize(
    ("read", "body", "message"),
    [
        (generate_body, {"template": "{{ .Prompt }}"}, "'template' is not supported"),
        (generate_body, {"context": [1]}, "'context' is not supported"),
        (generate_body, {"system": 3}, "'system'"),
        (completion_body, {"context": [1]}, "'context' is not supported"),
        (completion_body, {"images": ["A"]}, "'images' are not supported"),
    ],
    ids=str,
)
def test_what_generate_refuses(read: Any, body: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError) as raised:
        read({"prompt": "hi", **body})
    assert raised.value.code == 400
    assert message in raised.value.message
