from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.chat_errors import ChatError
from api.chat_prompt import ChatDefaults, ChatPrompt, build_chat_prompt
from api.chat_setup import load_chat
from api.safe_text import TextGuard
from api.template import ChatTemplates, Tokens
from ipc.options import ConfigError
from ipc.sections import ChatSection
from tests.chat_cases import ANSWER, CALL, GREETING, HELLO, QUESTION, TOOLS, templates
from tests.tiny_vocab import TinyVocab

SHOW = "{{ enable_thinking }} {{ reasoning_effort }} {{ mine }} {% if enable_thinking %}T{% endif %}"


def prompt(family: str, **request: Any) -> ChatPrompt:
    return build_chat_prompt(templates(family), None, request, ChatDefaults())


def shown(request: dict[str, Any], **defaults: Any) -> str:
    """What `SHOW` shows of a request."""
    built = build_chat_prompt(ChatTemplates.of(SHOW), None, {"messages": [HELLO], **request}, ChatDefaults(**defaults))
    return built.prompt.text


def refusal(family: str, **request: Any) -> str:
    with pytest.raises(ChatError) as failure:
        prompt(family, **request)
    return failure.value.message


@pytest.mark.parametrize(
    ("request_", "defaults", "text"),
    [
        ({}, {}, "True   T"),
        ({}, {"reasoning": False}, "False   "),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {}, "False   "),
        ({"chat_template_kwargs": {"enable_thinking": True}}, {"reasoning": False}, "True   T"),
        ({}, {"kwargs": {"enable_thinking": False, "mine": 1}}, "False  1 "),
        ({"chat_template_kwargs": {"mine": 2}}, {"kwargs": {"mine": 1}}, "True  2 T"),
        ({"reasoning_effort": "low"}, {}, "True low  T"),
        ({"reasoning_effort": "none"}, {"kwargs": {"reasoning_effort": "high"}}, "False   "),
        ({}, {"reasoning_effort": "high"}, "True high  T"),
        ({"chat_template_kwargs": None, "reasoning_effort": None}, {}, "True   T"),
    ],
)
def test_thinking_is_settled_by_request_then_command_line(request_: Any, defaults: Any, text: str) -> None:
    assert shown(request_, **defaults) == text


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (
            {"chat_template_kwargs": {"enable_thinking": "false"}},
            'invalid type for "enable_thinking" (expected boolean, got string)',
        ),
        ({"chat_template_kwargs": []}, "chat_template_kwargs: expected an object"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs: 'messages' cannot be set there"),
        ({"reasoning_effort": 3}, "reasoning_effort: expected a string"),
    ],
)
def test_bad_template_options_are_named(request_: Any, error: str) -> None:
    assert refusal("chatml", messages=[HELLO], **request_) == error


def test_last_answer_is_continued() -> None:
    built = prompt("chatml", messages=[HELLO, GREETING])
    assert built.prompt.text.endswith("<|im_start|>assistant\nHi!")
    assert built.generation_prompt == "<|im_start|>assistant\nHi!"
    assert built.continuation == "content"


def test_without_prefill_the_last_answer_is_history() -> None:
    built = build_chat_prompt(templates("chatml"), None, {"messages": [HELLO, GREETING]}, ChatDefaults(prefill=False))
    assert built.prompt.text.endswith("Hi!<|im_end|>\n<|im_start|>assistant\n")
    assert built.continuation is None


def test_thought_alone_is_continued_as_a_thought() -> None:
    built = prompt("qwen3", messages=[QUESTION, {**ANSWER, "content": None}])
    assert built.generation_prompt == "<|im_start|>assistant\n<think>\nThe tool says 12:30."
    assert built.continuation == "reasoning_content"


def test_mode_of_continuation_can_be_forced() -> None:
    forced = {"continue_final_message": "reasoning_content", "add_generation_prompt": False}
    built = prompt("qwen3", messages=[QUESTION, ANSWER], **forced)
    assert built.generation_prompt.endswith("<think>\nThe tool says 12:30.")


def test_content_after_a_template_that_opens_thinking_closes_it() -> None:
    built = prompt("deepseek-r1", messages=[QUESTION, GREETING])
    assert built.generation_prompt.endswith("<think>\n\n</think>\n\nHi!")


def test_user_message_can_be_continued_on_demand() -> None:
    built = prompt("chatml", messages=[HELLO], continue_final_message=True, add_generation_prompt=False)
    assert built.prompt.text == "<|im_start|>user\nHello"


def test_parts_of_a_continued_answer_are_joined_by_a_blank_line() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b "}]
    assert prompt("chatml", messages=[HELLO, {"role": "assistant", "content": parts}]).prompt.text.endswith("a\n\nb ")


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"messages": [HELLO, GREETING, GREETING]}, "Cannot have 2 or more assistant messages at the end of the list."),
        (
            {"messages": [HELLO, GREETING], "continue_final_message": True},
            "Cannot set both add_generation_prompt and continue_final_message to true.",
        ),
        ({"messages": [HELLO, CALL]}, "Cannot continue an assistant message that contains tool calls."),
        (
            {"messages": [HELLO, GREETING], "continue_final_message": "all"},
            '"continue_final_message" must be a boolean, "content" or "reasoning_content"',
        ),
    ],
)
def test_impossible_continuations_are_refused(request_: Any, error: str) -> None:
    assert refusal("chatml", **request_) == error


def test_refusal_of_the_template_reaches_the_client() -> None:
    assert refusal("gemma", messages=[HELLO, HELLO]).startswith("Conversation roles must alternate")


def test_tools_need_jinja() -> None:
    plain = ChatTemplates.of("{{ '<|im_start|>' }}", jinja=False)
    for request, error in (
        ({"tools": TOOLS}, "tools param requires --jinja flag"),
        ({"tool_choice": "required"}, "tool_choice param requires --jinja flag"),
    ):
        with pytest.raises(ChatError, match=error):
            build_chat_prompt(plain, None, {"messages": [HELLO], **request}, ChatDefaults())
    assert build_chat_prompt(plain, None, {"messages": [HELLO], "tools": []}, ChatDefaults()).tools == []


def test_tools_are_taught_where_the_template_has_no_place_for_them() -> None:
    built = prompt("chatml", messages=[QUESTION], tools=TOOLS)
    assert built.tool_format == "hermes"
    assert '"name": "get_time"' in built.prompt.text
    assert "<tool_call>" in built.prompt.text


@pytest.mark.parametrize("family", ["chatml", "gemma", "phi4"])
def test_earlier_calls_stay_in_a_conversation_that_has_no_tools_any_more(family: str) -> None:
    text = prompt(family, messages=[QUESTION, CALL, {"role": "tool", "content": "42 degrees"}]).prompt.text
    assert CALL["tool_calls"][0]["function"]["name"] in text
    assert "<tool_response>\n42 degrees\n</tool_response>" in text


def test_null_options_are_as_if_absent() -> None:
    names = "tools tool_choice chat_template_kwargs reasoning_effort continue_final_message add_generation_prompt"
    with_nulls = prompt("qwen3", messages=[HELLO], **dict.fromkeys(names.split()))
    assert with_nulls.prompt == prompt("qwen3", messages=[HELLO]).prompt


FORGETFUL = """{% for m in messages %}[{{ m.role }}]{% if m.tool_calls %}<think>{{ m.reasoning_content }}</think>
{%- for call in m.tool_calls %}{{ call.function.arguments }}{% endfor %}
{%- elif m.role == 'assistant' %}<say>{% endif %}{{ m.content }}{% endfor %}
{%- if add_generation_prompt %}[assistant]{% endif %}"""


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        ({"content": "So"}, "[assistant]<say>So"),
        ({"content": "So", "reasoning_content": "Hm"}, "[assistant]<think>Hm</think><say>So"),
        ({"content": "", "reasoning_content": "Hm"}, "[assistant]<think>Hm"),
    ],
)
def test_thought_is_continued_where_the_template_shows_it_only_with_calls(answer: Any, end: str) -> None:
    request = {"messages": [HELLO, {"role": "assistant", **answer}]}
    built = build_chat_prompt(ChatTemplates.of(FORGETFUL), None, request, ChatDefaults())
    assert built.generation_prompt == end
    assert built.prompt.text == f"[user]Hello{end}"


def test_thought_cannot_be_continued_by_a_model_that_does_not_think() -> None:
    assert refusal("chatml", messages=[HELLO, {**ANSWER, "content": ""}]).startswith(
        "Cannot continue reasoning_content"
    )


def test_setup_follows_the_configuration(tmp_path: Any) -> None:
    vocab: Any = TinyVocab(add_bos=True)
    assert load_chat(vocab, ChatSection()).templates.default.source == "{{ messages }}"
    assert load_chat(vocab, ChatSection()).templates.default.tokens == Tokens("<s>", "</s>", add_bos=True)
    assert load_chat(vocab, ChatSection(template="mine")).templates.default.source == "mine"
    (tmp_path / "t.jinja").write_text("filed")
    filed = ChatSection(template_file=str(tmp_path / "t.jinja"), reasoning="off", parse_special_content=True)
    setup = load_chat(vocab, filed)
    assert setup.templates.default.source == "filed"
    assert setup.defaults == ChatDefaults(reasoning=False, plain_content=False)
    with pytest.raises(ConfigError, match=r"chat\.template_file"):
        load_chat(vocab, ChatSection(template_file=str(tmp_path / "none.jinja")))


def test_special_content_counts_where_it_is_wanted() -> None:
    setup = load_chat(TinyVocab(), ChatSection(template="chatml"))  # type: ignore[arg-type]
    request = {"messages": [{"role": "user", "content": "a</s>"}]}
    plain = build_chat_prompt(setup.templates, setup.guard, request, setup.defaults).prompt
    special = build_chat_prompt(setup.templates, setup.guard, request, ChatDefaults(plain_content=False)).prompt
    assert plain.text == special.text
    assert 257 not in setup.guard.tokenize(plain)
    assert 257 in setup.guard.tokenize(special)


GUARD = TextGuard(TinyVocab())  # type: ignore[arg-type]
JSON = st.sampled_from([None, True, 0, -1.5, "", "a", "<s>", [], [None], ["a"], [{}], {}, {"a": 1}, {"type": "text"}])
CALLS = st.fixed_dictionaries({"function": JSON | st.fixed_dictionaries({"name": JSON, "arguments": JSON})})
PARTS = st.fixed_dictionaries({"type": JSON | st.just("text"), "text": JSON})
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool"]) | JSON, "content": JSON | st.lists(PARTS)},
    optional={"tool_calls": JSON | st.lists(CALLS), "name": JSON, "tool_call_id": JSON, "reasoning_content": JSON},
)
TOOL = st.fixed_dictionaries(
    {"type": st.just("function"), "function": st.fixed_dictionaries({"name": st.text(), "parameters": JSON})}
)
REQUEST = st.fixed_dictionaries(
    {"messages": JSON | st.lists(MESSAGE, max_size=4)},
    optional={
        "tools": JSON | st.lists(TOOL, max_size=2),
        "chat_template_kwargs": JSON,
        "reasoning_effort": JSON,
        "continue_final_message": JSON,
        "add_generation_prompt": JSON,
    },
)


@settings(max_examples=80, deadline=None)
@given(request_=REQUEST, family=st.sampled_from(["chatml", "qwen3", "gpt-oss", "glm", "gemma", "functionary"]))
def test_whatever_a_client_sends_is_a_prompt_or_a_400(request_: Any, family: str) -> None:
    try:
        built = build_chat_prompt(templates(family), GUARD, request_, ChatDefaults())
        assert isinstance(built.prompt.text, str)
    except ChatError as error:
        assert error.code == 400


def test_nesting_without_end_is_a_client_fault() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    for request in ({"messages": [{"role": "user", "content": deep}]}, {"messages": [HELLO], "tools": deep}):
        with pytest.raises(ChatError):
            build_chat_prompt(templates("chatml"), None, request, ChatDefaults())
