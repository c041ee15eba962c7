"""Each family's prompts, against its documented format (`templates/FAMILY.txt`)."""

from datetime import datetime

import pytest

from api.chat_errors import ChatError
from api.chat_prompt import ChatDefaults, build_chat_prompt
from tests.chat_cases import CASES, FAMILIES, expected, templates

DEFAULTS = ChatDefaults(kwargs={"date_string": "26 Jul 2024"})
NO_TOOLS = {"chatml", "gemma", "llama2", "mistral-v1", "phi3", "phi4"}
OWN_CALLS = {"deepseek-r1", "deepseek-v3"}  # calls, but no list of tools
THINKING = {"command-r", "deepseek-r1", "deepseek-v3", "glm", "gpt-oss", "qwen3"}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("family", FAMILIES)
def test_prompt_is_the_documented_one(family: str, case: str) -> None:
    try:
        text = build_chat_prompt(templates(family), None, CASES[case], DEFAULTS).prompt.text
    except ChatError as error:
        text = f"! {error.message}"
    assert text.replace(datetime.now().strftime("%Y-%m-%d"), "2025-08-05") == expected(family)[case]


@pytest.mark.parametrize("family", FAMILIES)
def test_generation_prompt_is_the_end_that_belongs_to_the_answer(family: str) -> None:
    asked = build_chat_prompt(templates(family), None, CASES["turns"], DEFAULTS)
    plain = build_chat_prompt(templates(family), None, {**CASES["turns"], "add_generation_prompt": False}, DEFAULTS)
    assert plain.generation_prompt == ""
    assert asked.prompt.text.endswith(asked.generation_prompt)
    if family != "phi3":  # whose EOS stands where the generation prompt would
        assert asked.prompt.text == plain.prompt.text + asked.generation_prompt


@pytest.mark.parametrize("family", FAMILIES)
def test_capabilities_of_the_families(family: str) -> None:
    able = templates(family).default.capabilities
    assert able.supports_tools == (family not in NO_TOOLS | OWN_CALLS)
    assert able.supports_tool_calls == (family not in NO_TOOLS)
    assert able.supports_parallel_tool_calls == (family not in NO_TOOLS | {"llama3", "gpt-oss"})
    assert able.supports_system_role == (family != "gemma")
    assert able.supports_thinking == (family in THINKING)
    assert able.supports_typed_content == (family == "mistral-small")
    assert able.supports_reasoning_effort == (family == "gpt-oss")


@pytest.mark.parametrize("family", FAMILIES)
def test_prompt_names_the_format_it_taught(family: str) -> None:
    taught = build_chat_prompt(templates(family), None, CASES["tools"], DEFAULTS).tool_format
    assert taught == ("hermes" if family in NO_TOOLS else None)


@pytest.mark.parametrize("family", FAMILIES)
def test_parallel_calls_and_their_results_are_accepted(family: str) -> None:
    calls = [
        {
            "id": f"call0000{n}",
            "type": "function",
            "function": {"name": "get_time", "arguments": f'{{"city": "{city}"}}'},
        }
        for n, city in enumerate(("Rome", "Oslo"))
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": call["id"]} for call in calls]
    asked = {"role": "assistant", "content": None, "tool_calls": calls}
    request = {**CASES["tools"], "messages": [*CASES["tools"]["messages"], asked, *results]}
    if family == "llama3":
        with pytest.raises(ChatError, match="single tool-calls"):
            build_chat_prompt(templates(family), None, request, DEFAULTS)
    else:
        assert "Rome" in build_chat_prompt(templates(family), None, request, DEFAULTS).prompt.text
