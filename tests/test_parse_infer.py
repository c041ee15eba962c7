"""Formats found by rendering templates, and answers as those templates would write them."""

import json
import random

import pytest

from api.parse.calls import JsonCalls
from api.parse.format import Format
from api.parse.formats import HERMES, FormatError, find_format, renderer, taught
from api.parse.layout import Ask, Pair, Thinking
from api.parse.params import JsonArgs, TaggedArgs
from api.parse.stream import Parser
from api.parse.tags import CallId, TagCalls
from api.parse.trial import FIRST, ID_A, ID_B, SECOND, TOOLS, Trial, from_mark, shared_end
from api.template import ChatTemplate, Tokens
from tests.chat_cases import FAMILIES, FOLDER
from tests.parse_cases import cut_randomly, plain, stream

THINK = Thinking("<think>", "</think>")
IN_TAGS = JsonCalls(call=Pair("<tool_call>", "</tool_call>"), order=("name", "arguments"))
R1_CALL = Pair("<\uff5ctool\u2581call\u2581begin\uff5c>", "<\uff5ctool\u2581call\u2581end\uff5c>")
R1_SECTION = Pair("<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581calls\u2581end\uff5c>")
R1_SEPARATOR = "<\uff5ctool\u2581sep\uff5c>"
EXPECTED = {
    "chatml": (None, Pair(), None),
    "command-r": (
        Thinking("<|START_THINKING|>", "<|END_THINKING|>"),
        Pair("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        JsonCalls(
            Pair("<|START_ACTION|>", "<|END_ACTION|>"),
            array=True,
            name="tool_name",
            args="parameters",
            id="tool_call_id",
            order=("tool_call_id", "tool_name", "parameters"),
        ),
    ),
    "deepseek-r1": (
        THINK,
        Pair(),
        TagCalls(JsonArgs(), R1_SECTION, R1_CALL, Pair(f"function{R1_SEPARATOR}", "```json"), close="```"),
    ),
    "deepseek-v3": (THINK, Pair(), TagCalls(JsonArgs(), R1_SECTION, R1_CALL, Pair("", R1_SEPARATOR))),
    "gemma": (None, Pair(), None),
    "glm": (
        THINK,
        Pair(),
        TagCalls(
            TaggedArgs(Pair("<arg_key>", "</arg_key>"), Pair("<arg_value>", "</arg_value>")),
            call=Pair("<tool_call>", "</tool_call>"),
        ),
    ),
    "granite": (None, Pair(), IN_TAGS),
    "hermes": (None, Pair(), IN_TAGS),
    "llama2": (None, Pair(), None),
    "llama3": (None, Pair(), JsonCalls(args="parameters", order=("name", "parameters"), parallel=False)),
    "mistral-nemo": (
        None,
        Pair(),
        JsonCalls(
            Pair("[TOOL_CALLS]"),
            array=True,
            id="id",
            order=("name", "arguments", "id"),
            id_pattern="/[A-Za-z0-9]{9}/",
        ),
    ),
    "mistral-small": (
        None,
        Pair(),
        TagCalls(JsonArgs(Pair("[ARGS]")), call=Pair("[TOOL_CALLS]"), id=CallId("between", Pair("[CALL_ID]"))),
    ),
    "mistral-v1": (None, Pair(), None),
    "phi3": (None, Pair(), None),
    "phi4": (None, Pair(), None),
    "qwen2.5": (None, Pair(), IN_TAGS),
    "qwen3": (THINK, Pair(), IN_TAGS),
}
INLINE = {
    "function as key": (
        "{{'<|t|>['}}{%for c in m.tool_calls%}{{'{\"'~c.function.name~'\": '~c.function.arguments|tojson~'}'}}"
        "{{', ' if not loop.last}}{%endfor%}{{']<|/t|>'}}",
        JsonCalls(Pair("<|t|>", "<|/t|>"), array=True, name_is_key=True, order=(FIRST,)),
    ),
    "nested": (
        "{%for c in m.tool_calls%}{{'<c>'~({'type': 'function', 'function': {'name': c.function.name,"
        " 'arguments': c.function.arguments}}|tojson)~'</c>'}}{%endfor%}",
        JsonCalls(
            call=Pair("<c>", "</c>"),
            name="function.name",
            args="function.arguments",
            order=("function.name", "function.arguments"),
        ),
    ),
    "array in marks of each call": (
        "{%for c in m.tool_calls%}{{'<c>['~({'name': c.function.name, 'arguments': c.function.arguments}|tojson)"
        "~']</c>'}}{%endfor%}",
        JsonCalls(call=Pair("<c>", "</c>"), array=True, order=("name", "arguments")),
    ),
    "lines in a section": (
        "{{'<cs>\\n'}}{%for c in m.tool_calls%}{{{'name': c.function.name, 'arguments': c.function.arguments}|tojson}}"
        "{{'\\n'}}{%endfor%}{{'</cs>'}}",
        JsonCalls(Pair("<cs>", "</cs>"), order=("name", "arguments")),
    ),
    "function tags with JSON": (
        "{%for c in m.tool_calls%}{{'<function='~c.function.name~'>'~c.function.arguments|tojson~'</function>'}}"
        "{%endfor%}",
        TagCalls(JsonArgs(), call=Pair("<function=", "</function>"), name=Pair("", ">")),
    ),
    "invocations in a section": (
        "{{'<m:calls>\\n'}}{%for c in m.tool_calls%}{{'<invoke name=\"'~c.function.name~'\">\\n'}}"
        "{%for k, v in c.function.arguments.items()%}{{'<parameter name=\"'~k~'\">'~v~'</parameter>\\n'}}{%endfor%}"
        "{{'</invoke>\\n'}}{%endfor%}{{'</m:calls>'}}",
        TagCalls(
            TaggedArgs(Pair('<parameter name="', '">'), Pair("", "</parameter>")),
            Pair("<m:calls>", "</m:calls>"),
            Pair('<invoke name="', "</invoke>"),
            Pair("", '">'),
        ),
    ),
    "functions in calls, values on lines": (
        "{%for c in m.tool_calls%}{{'<t>\\n<f='~c.function.name~'>\\n'}}"
        "{%for k, v in c.function.arguments.items()%}{{'<p='~k~'>\\n'~v~'\\n</p>\\n'}}{%endfor%}"
        "{{'</f>\\n</t>\\n'}}{%endfor%}",
        TagCalls(
            TaggedArgs(Pair("<p=", ">"), Pair("", "</p>"), newline=True),
            call=Pair("<t>", "</t>"),
            name=Pair("<f=", ">"),
            close="</f>",
        ),
    ),
    "id before the name": (
        "{{'<cs>'}}{%for c in m.tool_calls%}{{'<c>'~c.id~'<n>'~c.function.name~'<a>'~c.function.arguments|tojson"
        "~'</c>'}}{%endfor%}{{'</cs>'}}",
        TagCalls(
            JsonArgs(),
            Pair("<cs>", "</cs>"),
            Pair("<c>", "</c>"),
            Pair("<n>", "<a>"),
            id=CallId("before", Pair()),
        ),
    ),
}


def chat(calls: str) -> str:
    """A ChatML template that writes calls by the piece `calls`."""
    return (
        "{%for m in messages%}{{'<|im_start|>'~m.role~'\\n'~(m.content or '')}}{%if m.tool_calls%}"
        + calls
        + "{%endif%}{{'<|im_end|>\\n'}}{%endfor%}{%if add_generation_prompt%}{{'<|im_start|>assistant\\n'}}{%endif%}"
    )


def template_of(source: str):
    return renderer(ChatTemplate(source, Tokens("<s>", "</s>")))


def family_source(family: str) -> str:
    return (FOLDER / f"{family}.jinja").read_text()


@pytest.mark.parametrize("family", EXPECTED)
def test_families_that_only_their_templates_tell(family):
    source = family_source(family)
    format = find_format(source, template_of(source))
    assert (format.thinking, format.content, format.calls) == EXPECTED[family]


@pytest.mark.parametrize("name", INLINE)
def test_shapes_of_calls(name):
    calls, expected = INLINE[name]
    assert find_format(chat(calls), template_of(chat(calls))).calls == expected


ARGUMENTS = ({"KEYalpha": 'a "q" <b>\nline & é', "KEYbeta": "x"}, {"KEYalpha": "", "KEYbeta": "3"})
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
SOURCES = {family: family_source(family) for family in FAMILIES if family != "gpt-oss"} | {
    name: chat(calls) for name, (calls, _) in INLINE.items()
}


@pytest.mark.parametrize("name", SOURCES)
def test_calls_as_the_template_writes_them_are_read_back(name):
    source = SOURCES[name]
    trial = Trial(template_of(source))
    format = find_format(source, template_of(source))
    if format.calls is None and format.name == "automatic":
        return
    calls = [made_up(FIRST, ID_A, ARGUMENTS[0]), made_up(SECOND, ID_B, ARGUMENTS[1])]
    text = trial.calls(*calls)
    if text is None:  # one call at a time
        calls = calls[:1]
        text = trial.calls(*calls)
    assert text
    text = without_ending(text, trial.answer() or "")
    rng = random.Random(name)
    ask = Ask(tools=SCHEMAS, calls=True)
    if format.thinking and Parser(format, ask, trial.opening(True)).thinking and format.thinking.end not in text:
        text = format.thinking.end + text  # past answers are shown without their thinking
    whole = stream(format, [text], trial.opening(True), ask)
    assert [(call.name, json.loads(call.arguments)) for call in whole.calls] == [
        (call["function"]["name"], call["function"]["arguments"]) for call in calls
    ]
    assert whole.content == ""
    for _ in range(20):
        assert plain(stream(format, cut_randomly(text, rng), trial.opening(True), ask)) == plain(whole)


def made_up(name: str, id: str, arguments: dict[str, str]) -> dict:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def without_ending(text: str, answer: str) -> str:
    shared = shared_end(text, answer)
    ending = from_mark(shared) or (shared if not shared.strip("\n ") else "")
    return text.removesuffix(ending) if ending else text


@pytest.mark.parametrize(
    ("opening", "silent", "expected"),
    [
        ("<think>\n", "<think>\n\n</think>\n\n", THINK),
        ("", "<think>\n\n</think>\n\n", THINK),
        ("[THINK]", "", Thinking("[THINK]", "[/THINK]")),
        ("<|START_THINKING|>", "", Thinking("<|START_THINKING|>", "<|END_THINKING|>")),
        ("", "", None),
    ],
)
def test_thinking_that_only_the_generation_prompt_shows(opening, silent, expected):
    source = chat("").replace(
        "{%if add_generation_prompt%}{{'<|im_start|>assistant\\n'}}{%endif%}",
        "{%if add_generation_prompt%}{{'<|im_start|>assistant\\n'}}"
        f"{{{{ {opening!r} if enable_thinking else {silent!r} }}}}{{%endif%}}",
    )
    assert find_format(source, template_of(source)).thinking == expected


def test_thinking_without_an_opening_tag():
    source = chat("").replace("(m.content or '')", "(m.reasoning_content~'[BEGIN]' if m.reasoning_content)~m.content")
    format = find_format(source, template_of(source))
    assert format.thinking == Thinking("", "[BEGIN]")
    assert plain(stream(format, ["Hm", "[BEGIN]Hi"])) == ("Hm", "Hi", [])


@pytest.mark.parametrize(
    ("text", "thinking", "content"),
    [
        ("{#- content.split('</think>') #}", THINK, Pair()),
        (
            "{#- Write your thoughts between <think></think> and write your response between <response></response> #}",
            THINK,
            Pair("<response>", "</response>"),
        ),
    ],
)
def test_what_templates_do_not_show(text, thinking, content):
    format = find_format(text + chat(""), template_of(text + chat("")))
    assert (format.thinking, format.content) == (thinking, content)


def test_content_in_marks():
    format = Format("granite", thinking=THINK, content=Pair("<response>", "</response>"))
    for text in ("<think>Hm</think><response>\nHi\n</response>", "<think>Hm</think>\n\n<response>Hi"):
        assert plain(stream(format, [text])) == ("Hm", "Hi", [])


def test_ids_are_short_where_the_template_wants_them_so():
    source = family_source("mistral-nemo")
    format = find_format(source, template_of(source))
    text = '[TOOL_CALLS][{"name": "ping", "arguments": {}}]'
    (call,) = stream(format, [text]).calls
    assert len(call.id) == 9


def test_a_template_that_renders_nothing_is_refused():
    with pytest.raises(FormatError, match="Unable to generate parser"):
        find_format("{{ raise_exception('no') }}", template_of("{{ raise_exception('no') }}"))


def test_a_prompt_can_teach_the_calls():
    format = Format("plain", thinking=THINK)
    assert taught(format, "hermes").calls == HERMES.calls
    assert taught(format, None) is format
