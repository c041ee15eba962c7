"""What a request of the Messages API becomes as a chat request."""

from typing import Any

import pytest

from api.anthropic_blocks import messages_of, system_messages
from api.anthropic_request import read_request
from api.errors import ApiError

USE = {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": "é"}}
TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": "é"}'}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
IMAGE_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
HI = {"role": "user", "content": "hi"}


def chat(**body: Any) -> dict[str, Any]:
    """The chat body of a request, without what every one has."""
    found = read_request({"messages": [HI], **body}).chat
    assert found.pop("messages")[-1] == HI
    return found


def test_system_texts_become_one_message() -> None:
    assert system_messages(None) == []
    assert system_messages("a") == [{"role": "system", "content": "a"}]
    blocks = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]
    assert system_messages(blocks) == [{"role": "system", "content": "ab"}]


@pytest.mark.parametrize(
    ("system", "steady"),
    [
        ("x-anthropic-billing-header: v=1; cch=a5145;You", "x-anthropic-billing-header: v=1; cch=fffff;You"),
        ("x-anthropic-billing-header: v=1; cch=a5145", "x-anthropic-billing-header: v=1; cch=fffff"),
        ("x-anthropic-billing-header: v=1; cch=a51;You", "x-anthropic-billing-header: v=1; cch=a51;You"),
        ("You pay by cch=a5145;", "You pay by cch=a5145;"),
    ],
)
def test_the_stamp_of_a_billing_header_is_the_same_for_all(system: str, steady: str) -> None:
    assert system_messages(system)[0]["content"] == steady
    assert system_messages([{"type": "text", "text": system}])[0]["content"] == steady


@pytest.mark.parametrize(
    ("turn", "messages"),
    [
        (HI, [HI]),
        ({"role": "user", "content": [{"type": "text", "text": "hi"}]}, [HI]),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]},
            [{"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE_PART]}],
        ),
        (
            {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]},
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}],
        ),
        ({"role": "assistant", "content": []}, []),
        ({"role": "assistant"}, []),
        ({"role": "assistant", "content": ""}, []),
        (
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""}, USE]},
            [{"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [TOOL_CALL]}],
        ),
        (
            {
                "role": "assistant",
                "content": [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "a"}],
            },
            [{"role": "assistant", "content": "a"}],
        ),
        (
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "42"}]},
            [{"role": "tool", "tool_call_id": "c1", "content": "42"}],
        ),
        (
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1"}]},
            [{"role": "tool", "tool_call_id": "c1", "content": ""}],
        ),
        (
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "c1",
                        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                    },
                    {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "a"}, IMAGE]},
                    {"type": "text", "text": "hi"},
                ],
            },
            [
                {"role": "tool", "tool_call_id": "c1", "content": "ab"},
                {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "a"}, IMAGE_PART]},
                HI,
            ],
        ),
        (
            {
                "role": "user",
                "content": [{"type": "document", "title": "T", "source": {"type": "text", "data": "body"}}],
            },
            [{"role": "user", "content": "T\nbody"}],
        ),
    ],
    ids=str,
)
def test_messages_become_messages(turn: Any, messages: list[Any]) -> None:
    assert messages_of([turn]) == messages


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "'messages' is required"),
        ("hi", "'messages'"),
        (["hi"], "'messages[0]'"),
        ([{"content": "hi"}], "messages[0].role"),
        ([{"role": "tool", "content": "hi"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0]: 'content' is required"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": [3]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "video"}]}], "messages[0].content[0].type: 'video'"),
        ([{"role": "user", "content": [{"type": "image"}]}], "messages[0].content[0].source"),
        ([{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}], "'base64' or 'url'"),
        ([{"role": "user", "content": [{"type": "document", "source": {"type": "base64"}}]}], "only 'text'"),
        ([{"role": "user", "content": [{"type": "tool_result"}]}], "messages[0].content[0].tool_use_id"),
        ([{"role": "assistant", "content": [{**USE, "input": "x"}]}], "messages[0].content[0].input"),
        ([{"role": "assistant", "content": [{**USE, "name": None}]}], "messages[0].content[0].name"),
    ],
    ids=str,
)
def test_messages_that_cannot_be_read(value: Any, message: str) -> None:
    with pytest.raises(ApiError) as raised:
        messages_of(value)
    assert raised.value.code == 400
    assert message in raised.value.message


@pytest.mark.parametrize(
    ("body", "mapped"),
    [
        ({}, {"max_tokens": 4096}),
        ({"max_tokens": 7}, {}),
        ({"stop_sequences": ["a"]}, {"stop": ["a"]}),
        ({"temperature": 0, "top_k": 3, "grammar": "g"}, {"temperature": 0, "top_k": 3, "grammar": "g"}),
        ({"metadata": {"user_id": "u"}, "service_tier": "auto", "n": 2}, {}),
        ({"thinking": {"type": "enabled", "budget_tokens": 99}}, {"thinking_budget_tokens": 99}),
        ({"thinking": {"type": "enabled"}}, {"thinking_budget_tokens": 10000}),
        ({"thinking": {"type": "disabled"}}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"thinking": {"type": "adaptive"}}, {}),
        (
            {"thinking": {"type": "disabled"}, "chat_template_kwargs": {"a": 1, "enable_thinking": True}},
            {"chat_template_kwargs": {"a": 1, "enable_thinking": True}},
        ),
        ({"tool_choice": {"type": "auto"}}, {"tool_choice": "auto"}),
        ({"tool_choice": {"type": "none"}}, {"tool_choice": "none"}),
        ({"tool_choice": {"type": "any"}}, {"tool_choice": "required"}),
        (
            {"tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True}},
            {"tool_choice": {"type": "function", "function": {"name": "f"}}, "parallel_tool_calls": False},
        ),
        (
            {"tools": [{"name": "f", "input_schema": {"type": "object"}}, {"type": "bash_20250124", "name": "bash"}]},
            {
                "tools": [
                    {"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}}
                ]
            },
        ),
        (
            {"output_config": {"effort": "max", "format": {"type": "json_schema", "schema": {"type": "object"}}}},
            {
                "reasoning_effort": "high",
                "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
            },
        ),
    ],
    ids=str,
)
def test_fields_become_fields(body: dict[str, Any], mapped: dict[str, Any]) -> None:
    assert chat(**body) == {"max_tokens": body.get("max_tokens", 4096), **mapped}


def test_tools_of_anthropic_are_skipped_with_a_warning() -> None:
    request = read_request({"messages": [HI], "tools": [{"type": "bash_20250124", "name": "bash"}]})
    assert request.warnings == ["tools: type 'bash_20250124' is not supported, skipped"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"system": 3}, "'system'"),
        ({"stop_sequences": "a"}, "'stop_sequences'"),
        ({"thinking": {"type": "deep"}}, "thinking.type"),
        ({"tool_choice": "auto"}, "'tool_choice'"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool"}}, "'tool_choice.name'"),
        ({"tools": [{"input_schema": {}}]}, "'tools[0].name'"),
        ({"tools": [{"name": "f", "input_schema": 3}]}, "'tools[0].input_schema'"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
    ],
    ids=str,
)
def test_fields_that_are_refused(body: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError) as raised:
        chat(**body)
    assert raised.value.code == 400
    assert message in raised.value.message
