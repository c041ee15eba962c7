from typing import Any

import pytest

from api.capabilities import Capabilities
from api.chat_adapt import adapt
from api.chat_errors import ChatError
from api.chat_messages import Media, MediaPart, content_text, parse_messages
from api.chat_tools import parse_tools, with_plain_calls
from api.json_repair import closed_json

USER = {"role": "user", "content": "Hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
ABLE = Capabilities(supports_object_arguments=True)
TEXT_IMAGE = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "http://a/b.png"}}]


def parsed(message: Any) -> dict[str, Any]:
    return parse_messages([message]).turns[0]


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        (None, "'messages' is required"),
        ("hi", "Expected 'messages' to be an array"),
        ({}, "Expected 'messages' to be an array"),
        ([], "'messages' must not be empty"),
        (["hi"], "Failed to parse messages: Expected 'message' to be an object, got \"hi\""),
        ([{"role": "user"}], "All non-assistant messages must contain 'content'"),
        ([{"role": "tool", "tool_call_id": "x"}], "All non-assistant messages must contain 'content'"),
        ([{"role": "assistant"}], "Assistant message must contain either 'content' or 'tool_calls'!"),
        (
            [{"role": "assistant", "tool_calls": None}],
            "Assistant message must contain either 'content' or 'tool_calls'!",
        ),
        ([{"role": "user", "content": 5}], "Expected 'content' to be a string or an array"),
        ([{"role": "user", "content": {}}], "Expected 'content' to be a string or an array"),
        ([{"content": "x"}], 'Failed to parse messages: Missing \'role\' in message: {"content": "x"}'),
        ([{"role": 1, "content": "x"}], "Failed to parse messages: Expected 'role' to be a string, got 1"),
        ([{"role": "user", "content": [{"type": "pdf"}]}], "unsupported content[].type"),
        ([{"role": "user", "content": ["x"]}], 'Failed to parse messages: Missing content part type: "x"'),
        (
            [{"role": "user", "content": [{"type": "text", "text": 1}]}],
            "Failed to parse messages: Expected 'text' to be a string, got 1",
        ),
        (
            [{"role": "user", "content": TEXT_IMAGE}],
            "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj",
        ),
        (
            [{"role": "assistant", "content": "", "tool_calls": {}}],
            "Failed to parse messages: Expected 'tool_calls' to be an array, got {}",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"type": "custom"}]}],
            'Failed to parse messages: Unsupported tool call type: {"type": "custom"}',
        ),
        (
            [{"role": "assistant", "tool_calls": [{"type": "function"}]}],
            'Failed to parse messages: Missing tool call function: {"type": "function"}',
        ),
    ],
)
def test_bad_messages_are_named(messages: Any, error: str) -> None:
    with pytest.raises(ChatError) as failure:
        parse_messages(messages)
    assert (failure.value.code, failure.value.message) == (400, error)


@pytest.mark.parametrize("junk", [None, 0, 1.5, True, "x", [], {}, [[]], {"a": {}}])
@pytest.mark.parametrize("key", ["role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content"])
def test_no_value_of_any_member_is_more_than_a_client_fault(key: str, junk: Any) -> None:
    for role in ("user", "assistant", "tool"):
        try:
            turns = parse_messages([{"role": role, "content": "x", key: junk}]).turns
            adapt(turns, ABLE, "")
        except ChatError as error:
            assert error.code == 400


@pytest.mark.parametrize("junk", [None, 0, True, "x", [], {}, [None], {"url": 1}])
@pytest.mark.parametrize("kind", ["text", "image_url", "input_audio", "input_video", "video_url"])
def test_no_content_part_is_more_than_a_client_fault(kind: str, junk: Any) -> None:
    try:
        parse_messages(
            [{"role": "user", "content": [{"type": kind, kind: junk}]}], Media(image=True, audio=True, video=True)
        )
    except ChatError as error:
        assert error.code == 400


@pytest.mark.parametrize(
    "answer",
    [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "assistant", "content": "", "tool_calls": [CALL], "refusal": None, "reasoning_content": None},
        {"role": "assistant", "content": "Yes", "tool_calls": None},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": "", "tool_calls": [{**CALL, "id": None, "type": None}]},
    ],
)
def test_our_own_answers_are_accepted_as_history(answer: dict[str, Any]) -> None:
    turn = adapt([parsed(answer)], ABLE, "")[0]
    assert turn["content"] == (answer.get("content") or "")
    assert "reasoning_content" not in turn
    if answer.get("tool_calls"):
        assert turn["tool_calls"][0]["function"]["arguments"] == {"a": 1}


@pytest.mark.parametrize("content", ["42", [{"type": "text", "text": "42"}]])
@pytest.mark.parametrize("call_id", [{"tool_call_id": "c1"}, {"tool_call_id": None}, {}])
def test_tool_results_come_as_text_or_parts_with_or_without_id(content: Any, call_id: dict[str, Any]) -> None:
    turn = adapt([parsed({"role": "tool", "content": content, **call_id})], ABLE, "")[0]
    assert turn["content"] == "42"
    assert ("tool_call_id" in turn) == bool(call_id.get("tool_call_id"))


def test_media_become_markers_in_place_and_files_in_order() -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    media = Media(image=True, audio=True, marker="<m>")
    messages = parse_messages([{"role": "user", "content": [*TEXT_IMAGE, audio, {"type": "text", "text": "?"}]}], media)
    assert content_text(messages.turns[0]["content"]) == "see<m><m>?"
    assert messages.media == [MediaPart("image", "http://a/b.png"), MediaPart("audio", "AAAA")]


def test_parts_are_joined_by_line_breaks() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert adapt([parsed({"role": "user", "content": parts})], Capabilities(), "")[0]["content"] == "a\nb"


@pytest.mark.parametrize(
    ("string", "typed", "content", "adapted"),
    [
        (True, False, "a", "a"),
        (False, True, "a", [{"type": "text", "text": "a"}]),
        (True, True, "a", "a"),
        (True, True, [{"type": "text", "text": "a"}], [{"type": "text", "text": "a"}]),
        (True, True, [{"type": "media_marker", "text": "<m>"}], "<m>"),
        (False, True, [{"type": "media_marker", "text": "<m>"}], [{"type": "text", "text": "<m>"}]),
    ],
)
def test_content_takes_the_kind_that_the_template_knows(string: bool, typed: bool, content: Any, adapted: Any) -> None:
    able = Capabilities(supports_string_content=string, supports_typed_content=typed)
    assert adapt([{"role": "user", "content": content}], able, "")[0]["content"] == adapted


def test_developer_is_a_system_message_except_in_harmony() -> None:
    turns = [{"role": "developer", "content": "x"}]
    assert adapt(turns, ABLE, "")[0]["role"] == "system"
    assert adapt(turns, ABLE, "<|channel|>")[0]["role"] == "developer"


@pytest.mark.parametrize(
    ("roles", "adapted"),
    [
        ("su", [("user", "0\n1")]),
        ("ssu", [("user", "0\n1\n2")]),
        ("uasu", [("user", "0"), ("assistant", "1"), ("user", "2\n3")]),
        ("us", [("user", "0\n1")]),
        ("s", []),
    ],
)
def test_system_text_joins_its_neighbour_where_the_role_is_unknown(roles: str, adapted: Any) -> None:
    names = {"s": "system", "u": "user", "a": "assistant"}
    turns = [{"role": names[role], "content": str(index)} for index, role in enumerate(roles)]
    result = adapt(turns, Capabilities(supports_system_role=False), "")
    assert [(turn["role"], turn["content"]) for turn in result] == adapted


def test_arguments_stay_text_where_the_template_wants_text() -> None:
    turn = adapt([parsed({"role": "assistant", "tool_calls": [CALL]})], Capabilities(), "")[0]
    assert turn["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'


@pytest.mark.parametrize(
    ("arguments", "value"),
    [("", {}), (None, {}), ({"a": "é"}, {"a": "é"}), ('{"a": "cut sh', {"a": "cut sh"}), ('{"a": [1, {"b"', None)],
)
def test_arguments_are_read_leniently(arguments: Any, value: Any) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    turn = adapt([parsed({"role": "assistant", "tool_calls": [call]})], ABLE, "")[0]
    result = turn["tool_calls"][0]["function"]["arguments"]
    assert result == value if value is not None else isinstance(result, dict)


def test_arguments_that_are_no_json_are_refused() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": "a=1"}}
    with pytest.raises(ChatError, match="Failed to parse tool call arguments as JSON"):
        adapt([parsed({"role": "assistant", "tool_calls": [call]})], ABLE, "")


def test_json_cut_anywhere_is_closed() -> None:
    whole = r'{"a": "x\"y\\z\u00e9", "b": [1.5, true, null, {"c": []}], "d": -2}'
    for end in range(1, len(whole)):
        assert isinstance(closed_json(whole[:end]), dict), whole[:end]
    assert closed_json(whole) is None


def test_stepfun_contents_are_trimmed() -> None:
    source = "You have access to the following functions in JSONSchema format"
    assert adapt([{"role": "user", "content": " a "}], ABLE, source)[0]["content"] == "a"
    assert adapt([{"role": "user", "content": " a "}], ABLE, "")[0]["content"] == " a "


@pytest.mark.parametrize(
    ("tools", "error"),
    [
        ({}, "Expected 'tools' to be an array, got {}"),
        (["x"], 'Missing tool type: "x"'),
        ([{"type": "code"}], 'Unsupported tool type: {"type": "code"}'),
        ([{"type": "function"}], 'Missing tool function: {"type": "function"}'),
        ([{"type": "function", "function": {}}], 'Missing tool name: {"type": "function", "function": {}}'),
    ],
)
def test_bad_tools_are_named(tools: Any, error: str) -> None:
    with pytest.raises(ChatError) as failure:
        parse_tools(tools)
    assert failure.value.message == f"Failed to parse tools: {error}"


def test_tool_without_parameters_takes_an_empty_object() -> None:
    assert parse_tools(None) == []
    for parameters in ({}, {"parameters": None}, {"parameters": {}}):
        tool = parse_tools([{"type": "function", "function": {"name": "f", **parameters}}])[0]
        assert tool["function"]["parameters"] == {"type": "object", "properties": {}}


def test_calls_in_plain_text_keep_turns_alternating() -> None:
    result = {"role": "tool", "content": "42"}
    asked = {"role": "assistant", "content": "Wait.", "tool_calls": [CALL, CALL]}
    turns = with_plain_calls([USER, asked, result, result, USER, USER])
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user", "user"]
    assert turns[1]["content"].count('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>') == 2
    assert turns[2]["content"].count("<tool_response>\n42\n</tool_response>") == 2
    assert turns[2]["content"].endswith("\nHi")
