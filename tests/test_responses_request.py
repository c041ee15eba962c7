"""What a request of the Responses API becomes as a chat request."""

from typing import Any

import pytest

from api.errors import ApiError
from api.responses_items import input_items, messages_of
from api.responses_request import read_request

CALL = {"type": "function_call", "call_id": "call_c1", "name": "f", "arguments": '{"a":1}'}
TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes", "annotations": []}]}


def chat(**body: Any) -> dict[str, Any]:
    """The chat body of a request."""
    return read_request({"input": "hi", **body}).chat


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        ("hi", [{"role": "user", "content": "hi"}]),
        ([{"role": "user", "content": "hi"}], [{"role": "user", "content": "hi"}]),
        ([{"type": "message", "role": "developer", "content": "hi"}], [{"role": "developer", "content": "hi"}]),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
            [{"role": "user", "content": "hi"}],
        ),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "data:x"}],
                }
            ],
            [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:x"}}],
                }
            ],
        ),
        ([SAID], [{"role": "assistant", "content": "yes"}]),
        (
            [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}],
            [{"role": "assistant", "content": "no"}],
        ),
        ([CALL], [{"role": "assistant", "tool_calls": [TOOL_CALL]}]),
        (
            [THOUGHT, SAID, CALL, {**CALL, "call_id": "call_c2"}],
            [
                {
                    "role": "assistant",
                    "reasoning_content": "hm",
                    "content": "yes",
                    "tool_calls": [TOOL_CALL, {**TOOL_CALL, "id": "c2"}],
                }
            ],
        ),
        (
            [SAID, SAID],
            [{"role": "assistant", "content": [{"type": "text", "text": "yes"}, {"type": "text", "text": "yes"}]}],
        ),
        (
            [{"type": "function_call_output", "call_id": "call_c1", "output": "42"}],
            [{"role": "tool", "tool_call_id": "c1", "content": "42"}],
        ),
        (
            [{"type": "function_call_output", "call_id": "other", "output": [{"type": "input_text", "text": "42"}]}],
            [{"role": "tool", "tool_call_id": "other", "content": "42"}],
        ),
        (
            [{"type": "reasoning", "summary": [], "encrypted_content": "xyz"}, SAID],
            [{"role": "assistant", "content": "yes"}],
        ),
        ([{"type": "reasoning", "summary": [], "encrypted_content": "xyz"}], []),
        ([{"role": "assistant", "content": None}, CALL], [{"role": "assistant", "tool_calls": [TOOL_CALL]}]),
        (
            [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]}],
            [{"role": "assistant", "reasoning_content": "so"}],
        ),
    ],
    ids=str,
)
def test_items_become_messages(items: Any, messages: list[Any]) -> None:
    assert messages_of(input_items(items)) == messages


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (None, "'input' is required"),
        (3, "'input' must be a string or array of objects"),
        ([3], "'input' must be a string or array of objects"),
        ([{}], "Cannot determine type of 'item' at input[0]"),
        ([SAID, {"type": "web_search_call"}], "input[1]: 'web_search_call'"),
        ([{"type": "item_reference", "id": "x"}], "'item_reference' is not supported"),
        ([{"role": "user"}], "input[0]: 'content' is required"),
        ([{"role": "judge", "content": "x"}], "input[0].role"),
        ([{"role": 3, "content": "x"}], "input[0].role"),
        ([{"role": "user", "content": 3}], "input[0].content"),
        ([{"role": "user", "content": ["x"]}], "input[0].content[0]"),
        ([{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}], "'input_file' is not supported"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "input_image"}]}], "'image_url' is required"),
        ([{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}], "'file_id' is not supported"),
        ([{"role": "user", "content": [{"type": "video"}]}], "'type' must be"),
        ([{"role": "assistant", "content": [{"type": "input_image"}]}], "'type' must be 'output_text' or 'refusal'"),
        ([{**CALL, "call_id": None}], "input[0].call_id"),
        ([{**CALL, "arguments": {}}], "input[0].arguments"),
        ([{"type": "function_call_output", "call_id": "c"}], "input[0].output"),
        ([{"type": "reasoning", "content": [{"text": 3}]}], "input[0].content.text"),
    ],
    ids=str,
)
def test_items_that_cannot_be_read(items: Any, message: str) -> None:
    with pytest.raises(ApiError) as raised:
        messages_of(input_items(items))
    assert raised.value.code == 400
    assert message in raised.value.message


@pytest.mark.parametrize(
    ("body", "mapped"),
    [
        ({"max_output_tokens": 7}, {"max_tokens": 7}),
        ({"max_output_tokens": None}, {}),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"reasoning": {"effort": None}}, {}),
        ({"temperature": 0, "top_k": 3, "stream": True}, {"temperature": 0, "top_k": 3, "stream": True}),
        ({"store": True, "metadata": {"a": "b"}, "n": 2, "stream_options": {"include_obfuscation": False}}, {}),
        ({"tool_choice": "required"}, {"tool_choice": "required"}),
        (
            {"tool_choice": {"type": "function", "name": "f"}},
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        ),
        ({"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
        (
            {"tools": [{"type": "function", "name": "f", "parameters": {}}, {"type": "web_search"}]},
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}}]},
        ),
        ({"tools": [{"type": "web_search"}]}, {}),
        ({"text": {"format": {"type": "text"}}}, {}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}},
        ),
        ({"include": ["message.output_text.logprobs"]}, {"logprobs": True, "top_logprobs": 0}),
        ({"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
        ({"include": ["reasoning.encrypted_content"], "top_logprobs": 0}, {}),
    ],
    ids=str,
)
def test_fields_become_fields(body: dict[str, Any], mapped: dict[str, Any]) -> None:
    assert chat(**body) == {"messages": [{"role": "user", "content": "hi"}], **mapped}


def test_instructions_and_earlier_items_come_first() -> None:
    request = read_request({"input": "hi", "instructions": "Be brief."}, [{"role": "user", "content": "old"}, SAID])
    assert [turn["content"] for turn in request.chat["messages"]] == ["Be brief.", "old", "yes", "hi"]
    assert request.items == [{"type": "message", "role": "user", "content": "hi"}]


def test_tools_of_openai_are_skipped_with_a_warning() -> None:
    request = read_request({"input": "hi", "tools": [{"type": "web_search"}]})
    assert request.warnings == ["tools: type 'web_search' is not supported, skipped"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"background": True}, "'background' is not supported"),
        ({"conversation": "c"}, "'conversation' is not supported"),
        ({"prompt": {"id": "p"}}, "'prompt' is not supported"),
        ({"truncation": "middle"}, "'truncation' must be"),
        ({"instructions": ["x"]}, "'instructions'"),
        ({"previous_response_id": 3}, "'previous_response_id'"),
        ({"store": "yes"}, "'store'"),
        ({"reasoning": "low"}, "'reasoning'"),
        ({"tools": {}}, "'tools'"),
        ({"tools": ["f"]}, "'tools[0]'"),
        ({"tool_choice": 3}, "'tool_choice'"),
        ({"tool_choice": {"type": "file_search"}}, "'tool_choice': type 'file_search' is not supported"),
        ({"tool_choice": {"type": "function"}}, "'tool_choice.name'"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "'text.format.schema'"),
        ({"text": "x"}, "'text'"),
        ({"include": "x"}, "'include'"),
    ],
    ids=str,
)
def test_fields_that_are_refused(body: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError) as raised:
        chat(**body)
    assert raised.value.code == 400
    assert message in raised.value.message
