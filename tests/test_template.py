from datetime import datetime
from typing import Any

import pytest

from api.chat_errors import TemplateError
from api.template import ChatTemplate, ChatTemplates, Tokens, suffix_between

USER = [{"role": "user", "content": "Hi"}]


def render(source: str, **options: Any) -> str:
    return ChatTemplate(source).render(USER, **options)


def test_variables_are_those_of_the_contract() -> None:
    names = "messages tools bos_token eos_token enable_thinking add_generation_prompt datetime date_string mine"
    source = "".join(f"{{{{ '{name} ' if {name} is defined }}}}" for name in names.split())
    assert render(source, kwargs={"mine": 1}) == names.replace("tools ", "") + " "
    assert (
        render(source, add_generation_prompt=False)
        == "messages bos_token eos_token enable_thinking datetime date_string "
    )
    assert "tools" in render(source, tools=[{"type": "function"}])


def test_dates_are_written_as_templates_expect() -> None:
    source = "{{ datetime }}|{{ date_string }}"
    assert render(source, now=datetime(2024, 7, 26)) == "Jul 26 2024|26 Jul 2024"
    assert render(source, now=datetime(2024, 7, 26), kwargs={"date_string": "now"}) == "Jul 26 2024|now"


def test_strftime_now_gives_the_local_time() -> None:
    assert render("{{ strftime_now('%Y') }}") == str(datetime.now().year)


def test_preserve_reasoning_is_known_by_all_its_names() -> None:
    source = "{{ preserve_thinking }} {{ clear_thinking }} {{ truncate_history_thinking }} {{ drop_thinking }}"
    assert render(source, kwargs={"preserve_reasoning": True}) == "True False False False"
    assert render(source, kwargs={"preserve_reasoning": False, "clear_thinking": 7}) == "False 7 True True"


def test_reasoning_effort_is_also_called_strength() -> None:
    assert render("{{ reasoning_strength }}", kwargs={"reasoning_effort": "low"}) == "low"


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("{'a': '<é>', 'b': [1, true, none]} | tojson", '{"a": "<é>", "b": [1, true, null]}'),
        ("{'b': 1, 'a': 2} | tojson(sort_keys=true)", '{"a": 2, "b": 1}'),
        ("{'a': 1} | tojson(indent=2)", '{\n  "a": 1\n}'),
        ("[1, 2] | tojson(separators=(',', ':'))", "[1,2]"),
        ("'é' | tojson(ensure_ascii=true)", '"\\u00e9"'),
    ],
)
def test_tojson_writes_what_hugging_face_writes(expression: str, text: str) -> None:
    assert render(f"{{{{ {expression} }}}}") == text


def test_generation_tag_and_loop_controls_are_understood() -> None:
    loop = "{% for n in [1, 2, 3] %}{% if n == 3 %}{% break %}{% endif %}{{ n }}{% endfor %}"
    assert render(f"{{% generation %}}{loop}{{% endgeneration %}}") == "12"


def test_block_tags_take_their_line_with_them() -> None:
    assert render("  {% if true %}\nyes\n  {% endif %}\n") == "yes\n"


def test_bos_and_eos_are_left_to_a_tokenizer_that_adds_them() -> None:
    source = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    assert ChatTemplate(source, Tokens("<s>", "</s>")).render(USER) == "<s>Hi</s>"
    assert ChatTemplate(source, Tokens("<s>", "</s>", add_bos=True, add_eos=True)).render(USER) == "Hi"


def test_refusal_of_the_template_is_the_message() -> None:
    with pytest.raises(TemplateError) as failure:
        render("{{ raise_exception('Roles must alternate') }}")
    assert (failure.value.code, failure.value.message) == (400, "Roles must alternate")


def test_failure_names_the_line() -> None:
    with pytest.raises(TemplateError, match="the chat template failed in line 2: "):
        render("a\n{{ 1 / 0 }}")


def test_template_that_does_not_compile_names_the_line() -> None:
    with pytest.raises(TemplateError, match="the chat template is not valid in line 2"):
        ChatTemplate("a\n{% if %}")


@pytest.mark.parametrize("expression", ["''.__class__.__mro__", "messages.__class__", "cycler.__init__.__globals__"])
def test_python_stays_out_of_reach(expression: str) -> None:
    try:
        assert "class" not in render(f"{{{{ {expression} }}}}")
    except TemplateError as error:
        assert "unsafe" in error.message


def test_missing_values_read_as_nothing() -> None:
    assert render("{{ 'a' + missing.deeper.still }}{{ 'b' + none }}{{ none | map('upper') | list }}") == "ab[]"


def test_template_may_change_its_own_lists_and_not_the_caller_s() -> None:
    message = {"role": "assistant", "content": "", "tool_calls": [{"id": "a"}]}
    source = "{% set ids = [] %}{% set _ = ids.append(messages[0].tool_calls.pop().id) %}{{ ids | join }}"
    assert ChatTemplate(source).render([message]) == "a"
    assert message["tool_calls"] == [{"id": "a"}]


def test_tools_have_a_template_of_their_own_where_the_model_has_one() -> None:
    both = ChatTemplates.of("plain", "tooled")
    assert both.select([]).source == "plain"
    assert both.select([{"type": "function"}]).source == "tooled"
    assert ChatTemplates.of("plain", "tooled", override="mine").select([1]).source == "mine"
    assert ChatTemplates.of(None, "tooled").select([]).source == "tooled"
    assert ChatTemplates.of().default.render(USER) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("without", "whole", "suffix"),
    [("ab", "abcd", "cd"), ("abX", "abcd", "cd"), ("", "x", "x"), ("same", "same", ""), ("xyz", "abc", "abc")],
)
def test_suffix_is_what_the_other_text_lacks(without: str, whole: str, suffix: str) -> None:
    assert suffix_between(without, whole) == suffix


def test_thoughts_go_where_the_template_looks_for_them() -> None:
    thought = [{"role": "assistant", "content": "c", "reasoning_content": "r"}]
    field = "{% for message in messages %}{{ message.content }}{{ message.thinking }}{% endfor %}"
    assert ChatTemplate(field).render(thought) == "cr"
    part = "{{ part.thinking if part.type == 'thinking' else part.text }}"
    blocks = f"[THINK]{{% for part in messages[0].content %}}{part}{{% endfor %}}"
    assert ChatTemplate(blocks).render(thought) == "[THINK]rc"
