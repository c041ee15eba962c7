"""Each format's grammar, by llguidance itself: it takes the family's calls and no others."""

import json
import re

import pytest

from api.parse import families
from api.parse.calls import JsonCalls
from api.parse.format import Format
from api.parse.formats import HERMES
from api.parse.lark import Grammar
from api.parse.layout import Pair, Start, Thinking, Wanted
from api.parse.params import JsonArgs
from api.parse.stream import Parser
from api.parse.tags import CallId, TagCalls
from tests.grammar_texts import SPECIALS, taken
from tests.parse_cases import ASK, TOOLS

B = "\uff5c"
THINK = Thinking("<think>", "</think>")
BARE = Format("Llama 3", calls=JsonCalls(args="parameters", parallel=False))
NEMO = Format("Nemo", calls=JsonCalls(Pair("[TOOL_CALLS]"), array=True, id="id", order=("name", "arguments", "id")))
SMALL = Format(
    "Mistral Small",
    calls=TagCalls(JsonArgs(Pair("[ARGS]")), call=Pair("[TOOL_CALLS]"), id=CallId("between", Pair("[CALL_ID]"))),
)
NESTED = Format(
    "nested",
    calls=JsonCalls(
        call=Pair("<c>", "</c>"),
        name="function.name",
        args="function.arguments",
        order=("function.name", "function.arguments"),
    ),
)
KEYED = Format("Apertus", calls=JsonCalls(Pair("<|t|>", "<|/t|>"), array=True, name_is_key=True))
THINKER = Format("Qwen 3", thinking=THINK, calls=HERMES.calls)

# format, generation prompt, a call of get_weather with a city "Oslo" and days 3, and what joins two calls
CASES = [
    (HERMES, "", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>', "\n"),
    (
        THINKER,
        "<think>\n",
        'Hm, <b>.\n</think>\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}\n'
        "</tool_call>",
        "",
    ),
    (BARE, "", '{"name": "get_weather", "parameters": {"city": "Oslo", "days": 3}}', ""),
    (
        NEMO,
        "",
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}, "id": "abc123def"}]',
        "",
    ),
    (SMALL, "", '[TOOL_CALLS]get_weather[CALL_ID]abc123def[ARGS]{"city": "Oslo", "days": 3}', ""),
    (NESTED, "", '<c>{"function": {"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}}</c>', "\n"),
    (KEYED, "", '<|t|>[{"get_weather": {"city": "Oslo", "days": 3}}]<|/t|>', ""),
    (
        families.MINISTRAL,
        "",
        '[THINK]Hm.[/THINK][TOOL_CALLS]get_weather[ARGS]{"city": "Oslo", "days": 3}',
        "",
    ),
    (
        families.HARMONY,
        "<|start|>assistant",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather"
        ' <|constrain|>json<|message|>{"city":"Oslo","days":3}<|call|>',
        "",
    ),
    (
        families.LLM_JP,
        "<|start|>assistant",
        ' to=functions.get_weather<|channel|> commentary json<|message|> {"city":"Oslo","days":3}',
        "<|end|><|start|>assistant",
    ),
    (
        families.MUSE,
        "<|start|>assistant",
        ' to=get_weather<|message|><atem:function_calls>\n<atem:invoke name="get_weather">\n'
        '<atem:parameter name="city">Oslo</atem:parameter>\n<atem:parameter name="days">3</atem:parameter>\n'
        "</atem:invoke>\n</atem:function_calls>",
        "<|eom|><|start|>assistant",
    ),
    (families.FUNCTIONARY, ">>>", 'get_weather\n{"city": "Oslo", "days": 3}', ">>>"),
    (
        families.KIMI_K2,
        "",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city": "Oslo", "days": 3}<|tool_call_end|><|tool_calls_section_end|>',
        "",
    ),
    (
        families.KIMI_K3,
        "<|open|>think<|sep|>",
        'Hm.<|close|>think<|sep|><|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>Oslo<|close|>argument<|sep|>'
        '<|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|>'
        "<|close|>tools<|sep|><|close|>message<|sep|>",
        "",
    ),
    (
        families.LING,
        "<think></think>",
        "<tool_call>get_weather<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>"
        "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>",
        "\n",
    ),
    (
        families.COHERE_MOE,
        "<|START_THINKING|>",
        'Hm.<|END_THINKING|><|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", '
        '"parameters": {"city": "Oslo", "days": 3}}\n]<|END_ACTION|>',
        "",
    ),
    (families.lfm2(""), "", '<|tool_call_start|>[get_weather(city="Oslo", days=3)]<|tool_call_end|>', ""),
    (
        families.GIGACHAT,
        "",
        "<|message_sep|>\n\nfunction call<|role_sep|>\n"
        '{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}',
        "",
    ),
    (
        families.MINIMAX_M3,
        "</mm:think>",
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">]<]minimax[>[<city>Oslo]<]minimax[>[</city>'
        "]<]minimax[>[<days>3]<]minimax[>[</days>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
        "",
    ),
    (
        families.deepseek("tool_calls"),
        "</think>",
        f'<{B}DSML{B}tool_calls>\n<{B}DSML{B}invoke name="get_weather">\n'
        f'<{B}DSML{B}parameter name="city" string="true">Oslo</{B}DSML{B}parameter>\n'
        f'<{B}DSML{B}parameter name="days" string="false">3</{B}DSML{B}parameter>\n</{B}DSML{B}invoke>\n'
        f"</{B}DSML{B}tool_calls>",
        "",
    ),
    (families.GEMMA, "", '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:3}<tool_call|>', "\n"),
    (
        families.MINICPM,
        "<think>\n\n</think>\n\n",
        '<function name="get_weather"><param name="city">Oslo</param><param name="days">3</param></function>',
        "\n",
    ),
    (
        families.qwen_coder(False),
        "",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
        "</function>\n</tool_call>",
        "\n",
    ),
]
IDS = [case[0].name for case in CASES]
CALLS = pytest.mark.parametrize(("format", "prompt", "text"), [case[:3] for case in CASES], ids=IDS)


def required(format: Format, prompt: str, wanted: Wanted, specials: dict[str, int] | None = None) -> str:
    g = Grammar(specials)
    return g.source(format.calls_rule(g, wanted, Start(Parser(format, ASK, prompt).thinking, may="</" not in prompt)))


@CALLS
@pytest.mark.parametrize("specials", [{}, SPECIALS], ids=["as text", "as tokens"])
def test_required_calls(format, prompt, text, specials):
    source = required(format, prompt, Wanted(TOOLS), specials)
    assert taken(source, text, specials) is None
    assert taken(source, "Hello", specials) is not None


@CALLS
def test_other_functions_are_refused(format, prompt, text):
    source = required(format, prompt, Wanted({"ping": TOOLS["ping"]}))
    assert taken(source, text) is not None


@CALLS
def test_values_of_other_types_are_refused(format, prompt, text):
    assert taken(required(format, prompt, Wanted(TOOLS)), re.sub(r"\b3\b", "x", text)) is not None


@CALLS
def test_required_parameters_are_required(format, prompt, text):
    less = re.sub(r'"city": ?"Oslo", ?|city="Oslo", |city:<\|"\|>Oslo<\|"\|>,', "", text)
    less = re.sub(r'<(atem:parameter|\uff5cDSML\uff5cparameter|param) name="city".*?Oslo</\1>', "", less)
    less = re.sub(r"<parameter=city>\nOslo\n</parameter>\n|<arg_key>city.*\n.*?Oslo</arg_value>", "", less)
    less = re.sub(r'<\|open\|>argument key="city".*?Oslo<\|close\|>argument<\|sep\|>', "", less)
    less = less.replace("]<]minimax[>[<city>Oslo]<]minimax[>[</city>", "")
    assert "Oslo" not in less
    assert taken(required(format, prompt, Wanted(TOOLS)), less) is not None


@pytest.mark.parametrize(
    ("format", "text", "separator"), [(case[0], case[2], case[3]) for case in CASES if case[3]], ids=IDS[:0] or None
)
def test_one_call_or_more(format, text, separator):
    two = text + separator + text
    assert taken(required(format, "</", Wanted(TOOLS)), two) is None
    assert taken(required(format, "</", Wanted(TOOLS, many=False)), two) is not None


@CALLS
def test_a_lazy_constraint_takes_what_follows_its_trigger(format, prompt, text):
    wanted = Wanted(TOOLS)
    found = min(
        (
            match.start()
            for wake in format.wakes(wanted)
            if (match := re.search(wake.text if wake.kind == "pattern" else re.escape(wake.text), text))
        ),
        default=None,
    )
    assert found is not None
    g = Grammar()
    assert taken(g.source(format.woken_rule(g, wanted)), text[found:]) is None


def test_a_bare_object_wakes_the_constraint_only_if_it_names_a_tool():
    (wake,) = BARE.wakes(Wanted(TOOLS))
    assert re.search(wake.text, '{"type": "function", "name": "ping"')
    assert not re.search(wake.text, '{"name": "Bob"')


ANSWERS = [
    (HERMES, "", '{"a": 1}'),
    (THINKER, "", '<think>Hm</think>\n\n{"a": 1}'),
    (THINKER, "<think>\n", 'Hm</think>{"a": 1}'),
    (families.MINISTRAL, "", '[THINK]Hm[/THINK]```json\n{"a": 1}\n```'),
    (families.COHERE_MOE, "<|START_THINKING|>", 'Hm<|END_THINKING|><|START_TEXT|>{"a": 1}<|END_TEXT|>'),
    (
        families.HARMONY,
        "<|start|>assistant",
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant"
        '<|channel|>final <|constrain|>json<|message|>{"a": 1}',
    ),
    (families.MUSE, "<|start|>assistant", ' to=self<|message|>Hm<|eom|><|start|>assistant to=user<|message|>{"a": 1}'),
    (families.FUNCTIONARY, ">>>", 'all\n{"a": 1}'),
    (families.GEMMA, "", '<|channel>thought\nHm<channel|>{"a": 1}'),
    (families.KIMI_K3, "<|open|>think<|sep|>", 'Hm<|close|>think<|sep|><|open|>response<|sep|>{"a": 1}'),
]


@pytest.mark.parametrize(("format", "prompt", "text"), ANSWERS, ids=[answer[0].name for answer in ANSWERS])
def test_answers_that_are_json_come_after_the_thinking(format, prompt, text):
    form = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    g = Grammar()
    source = g.source(format.answer_rule(g, form, Start(Parser(format, ASK, prompt).thinking)))
    assert taken(source, text) is None
    assert taken(source, text.replace("1", '"x"')) is not None
    assert taken(source, text.replace('{"a": 1}', "Hello")) is not None


NESTED_FORM = {
    "type": "object",
    "properties": {
        "tree": {"$ref": "#/$defs/node"},
        "kind": {"enum": ["a", "b c", 3]},
        "code": {"type": "string", "pattern": "^[A-Z]{2}\\d+$"},
        "short": {"type": "string", "maxLength": 3, "minLength": 1},
        "maybe": {"anyOf": [{"type": "string", "enum": ["yes"]}, {"type": "null"}]},
    },
    "required": ["kind"],
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"label": {"type": "string"}, "next": {"$ref": "#/$defs/node"}},
            "required": ["label"],
            "additionalProperties": False,
        }
    },
}
NS = "]<]minimax[>["


@pytest.mark.parametrize(
    ("format", "text", "bad"),
    [
        (
            families.qwen_coder(False),
            "<tool_call>\n<function=f>\n<parameter=tree>\n"
            '{"label": "x", "next": {"label": "y"}}\n</parameter>\n<parameter=kind>\nb c\n</parameter>\n'
            "<parameter=code>\nAB12\n</parameter>\n<parameter=short>\n<>\n</parameter>\n"
            "<parameter=maybe>\nnull\n</parameter>\n</function>\n</tool_call>",
            [("b c", "c"), ("AB12", "ab12"), ("<>", "long"), ('"y"', "5"), ("null", "no")],
        ),
        (
            families.GEMMA,
            '<|tool_call>call:f{tree:{label:<|"|>x<|"|>,next:{label:<|"|>y<|"|>}},kind:<|"|>b c<|"|>,'
            'code:<|"|>AB12<|"|>,short:<|"|><><|"|>,maybe:null}<tool_call|>',
            [("b c", "c"), ("AB12", "ab12"), ("<>", "long"), ('<|"|>y<|"|>', "5"), ("null", "no")],
        ),
        (
            families.MINIMAX_M3,
            f'{NS}<tool_call>{NS}<invoke name="f">{NS}<tree>{NS}<label>x{NS}</label>{NS}<next>{NS}<label>y{NS}</label>'
            f"{NS}</next>{NS}</tree>{NS}<kind>b c{NS}</kind>{NS}<code>AB12{NS}</code>{NS}<short><>{NS}</short>"
            f"{NS}<maybe>null{NS}</maybe>{NS}</invoke>{NS}</tool_call>",
            [("b c", "c"), ("AB12", "ab12"), ("<>", "long"), (f"{NS}<label>y{NS}</label>", "5"), ("null", "no")],
        ),
    ],
    ids=["Qwen3-Coder", "Gemma 4", "MiniMax M3"],
)
def test_schemas_are_enforced_in_notations_that_are_not_json(format, text, bad):
    source = required(format, "</", Wanted({"f": NESTED_FORM}))
    assert taken(source, text) is None
    for good, wrong in bad:
        assert good in text
        assert taken(source, text.replace(good, wrong)) is not None, wrong


def test_required_parameters_come_in_any_order():
    form = {"type": "object", "properties": {key: {"type": "string"} for key in "abc"}, "required": ["a", "b"]}
    source = required(families.MINICPM, "</", Wanted({"f": form}))
    for keys in ("ab", "ba", "cab", "acb", "bca"):
        parameters = "".join(f'<param name="{key}">x</param>' for key in keys)
        assert taken(source, f'<function name="f">{parameters}</function>') is None
    assert taken(source, '<function name="f"><param name="a">x</param><param name="c">x</param></function>') is not None


def test_marks_that_a_model_forgets_may_be_missing():
    text = "<|tool_call_begin|>functions.ping:0<|tool_call_argument_begin|>{}"
    g = Grammar()
    wanted = Wanted(TOOLS)
    assert taken(g.source(families.KIMI_K2.woken_rule(g, wanted)), text + "<|tool_call_end|>" + text) is None
    assert any(text.startswith(wake.text) for wake in families.KIMI_K2.wakes(wanted))


def test_white_space_is_bounded():
    source = required(HERMES, "", Wanted(TOOLS))
    assert taken(source, '<tool_call>{"name": "ping", "arguments": {\n\n  }}</tool_call>') is None
    assert taken(source, '<tool_call>{"name": "ping", "arguments": {' + "\n" * 9) is not None


def test_a_grammar_of_many_tools_is_usable():
    form = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(10)}}
    source = required(HERMES, "", Wanted({f"tool_{i}": form for i in range(200)}))
    arguments = json.dumps({"p3": "x"})
    assert taken(source, f'<tool_call>{{"name": "tool_77", "arguments": {arguments}}}</tool_call>') is None


@pytest.mark.parametrize("name", ["_", "é", "查询", "1x", "__a"])
def test_functions_may_have_names_without_latin_letters(name):
    source = required(HERMES, "", Wanted({name: {"type": "object", "properties": {}}}))
    call = json.dumps({"name": name, "arguments": {}}, ensure_ascii=False)
    assert taken(source, f"<tool_call>{call}</tool_call>") is None
