"""Each family's own way to write thinking, content and calls, whole and cut at every place."""

import json
import random

import pytest

from api.parse import families
from api.parse.stream import parse
from tests.parse_cases import ASK, cut_randomly, plain, stream

DEEPSEEK = families.deepseek("function_calls")
QWEN, CODER = families.qwen_coder(True), families.qwen_coder(False)
LFM2 = families.lfm2("<think>")
B = "\uff5c"

# format, generation prompt, answer, reasoning, content, calls
CASES = [
    (
        families.MINISTRAL,
        "",
        '[THINK]hm[/THINK]Sure.[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]ping[ARGS]{}',
        "hm",
        "Sure.",
        [("get_weather", {"city": "Oslo"}), ("ping", {})],
    ),
    (
        families.HARMONY,
        "<|start|>assistant",
        "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>commentary<|message|>Wait.<|end|>"
        '<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{"city":"Oslo"}',
        "Think.",
        "Wait.",
        [("get_weather", {"city": "Oslo"})],
    ),
    (
        families.HARMONY,
        "<|start|>assistant",
        "<|channel|>analysis<|message|>One. <|end|><|start|>assistant<|channel|>analysis<|message|>Two.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{ }<|call|>",
        "One.Two.",
        "",
        [("ping", {})],
    ),
    (
        families.HARMONY,
        "<|start|>assistant",
        "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>Hi <b>you</b>",
        "Easy.",
        "Hi <b>you</b>",
        [],
    ),
    (
        families.LLM_JP,
        "<|start|> assistant",
        "<|channel|> analysis<|message|> Hm.<|end|><|start|>assistant to=functions.ping<|channel|> commentary"
        "<|message|> {}<|end|><|start|>assistant to=functions.get_weather<|channel|> commentary"
        '<|message|> {"city":"A"}',
        "Hm.",
        "",
        [("ping", {}), ("get_weather", {"city": "A"})],
    ),
    (
        families.MUSE,
        "<|start|>assistant",
        " to=self<|message|>Hm.<|eom|><|start|>assistant to=get_weather<|message|><atem:function_calls>\n"
        '<atem:invoke name="get_weather">\n<atem:parameter name="city">São "P" <x></atem:parameter>\n'
        '<atem:parameter name="days">3</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'
        '<|eom|><|start|>assistant to=ping<|message|><atem:function_calls><atem:invoke name="ping">'
        "</atem:invoke></atem:function_calls><|eom|><|start|>assistant to=user<|message|>Done.<|eot|>",
        "Hm.",
        "Done.",
        [("get_weather", {"city": 'São "P" <x>', "days": 3}), ("ping", {})],
    ),
    (
        families.FUNCTIONARY,
        "<|start_header_id|>assistant<|end_header_id|>\n\n>>>",
        'all\nLet me >> look.>>>get_weather\n{"city": "Oslo"}>>>ping\n{}',
        "",
        "Let me >> look.",
        [("get_weather", {"city": "Oslo"}), ("ping", {})],
    ),
    (
        families.KIMI_K2,
        "<|im_assistant|>assistant<|im_middle|>",
        "<think>I should<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city":"Oslo"}<|tool_call_end|><|tool_call_begin|>functions.ping:1'
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        "I should",
        "",
        [("get_weather", {"city": "Oslo"}), ("ping", {})],
    ),
    (
        families.KIMI_K3,
        '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>',
        "Hm.<|close|>think<|sep|><|open|>response<|sep|>Sure.<|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>Oslo\n'
        '<|close|>argument<|sep|><|open|>argument key="days" type="number"<|sep|>2<|close|>argument<|sep|>'
        '<|close|>call<|sep|><|open|>call tool="ping" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
        "<|close|>message<|sep|><|end_of_msg|>",
        "Hm.",
        "Sure.",
        [("get_weather", {"city": "Oslo\n", "days": 2}), ("ping", {})],
    ),
    (
        families.LING,
        "<role>ASSISTANT</role>\n<think>",
        "Hm.<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
        "<arg_key>either</arg_key><arg_value>12</arg_value></tool_call>\n<tool_call>ping</tool_call><|role_end|>",
        "Hm.",
        "",
        [("get_weather", {"city": "Oslo", "either": 12}), ("ping", {})],
    ),
    (
        families.COHERE_MOE,
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_THINKING|>",
        'Hm.<|END_THINKING|><|START_ACTION|>[\n{"tool_call_id": "0", "tool_name": "get_weather", '
        '"parameters": {"city": "Oslo"}},\n{"tool_call_id": "1", "tool_name": "ping", "parameters": {}}\n]'
        "<|END_ACTION|><|END_OF_TURN_TOKEN|>",
        "Hm.",
        "",
        [("get_weather", {"city": "Oslo"}), ("ping", {})],
    ),
    (
        families.COHERE_MOE,
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        "<|START_THINKING|>Hm.<|END_THINKING|><|START_TEXT|>Hello.<|END_TEXT|>",
        "Hm.",
        "Hello.",
        [],
    ),
    (
        LFM2,
        "<|im_start|>assistant\n",
        "<think>\nHm.\n</think>\nSure.\n<|tool_call_start|>[get_weather(city='It\\'s \"x\"', days=3, "
        "opts={\"unit\": None, 'tags': [True, 1.5]}), ping()]<|tool_call_end|>Bye",
        "Hm.",
        "Sure.Bye",
        [
            ("get_weather", {"city": 'It\'s "x"', "days": 3, "opts": {"unit": None, "tags": [True, 1.5]}}),
            ("ping", {}),
        ],
    ),
    (
        families.GIGACHAT,
        "assistant<|role_sep|>\n",
        'Sure.<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}',
        "",
        "Sure.",
        [("get_weather", {"city": "Oslo"})],
    ),
    (
        families.MINIMAX_M3,
        "]~b]ai\n",
        '<mm:think>Hm.</mm:think>Sure.\n]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">'
        "]<]minimax[>[<city>Oslo <b>\n]<]minimax[>[</city>]<]minimax[>[<days>3]<]minimax[>[</days>"
        "]<]minimax[>[<opts>]<]minimax[>[<unit>C]<]minimax[>[</unit>]<]minimax[>[<tags>]<]minimax[>[<item>1"
        "]<]minimax[>[</item>]<]minimax[>[<item>x]<]minimax[>[</item>]<]minimax[>[</tags>]<]minimax[>[</opts>"
        "]<]minimax[>[<list>]<]minimax[>[<item>a]<]minimax[>[</item>]<]minimax[>[<item>b]<]minimax[>[</item>"
        ']<]minimax[>[</list>]<]minimax[>[</invoke>\n]<]minimax[>[<invoke name="ping">]<]minimax[>[</invoke>'
        "]<]minimax[>[</tool_call>",
        "Hm.",
        "Sure.",
        [
            (
                "get_weather",
                {"city": "Oslo <b>\n", "days": 3, "opts": {"unit": "C", "tags": ["1", "x"]}, "list": ["a", "b"]},
            ),
            ("ping", {}),
        ],
    ),
    (
        families.MINIMAX_M3,
        "]~b]ai\n</mm:think>",
        "Hello.",
        "",
        "Hello.",
        [],
    ),
    (
        DEEPSEEK,
        f"<{B}Assistant{B}><think>",
        f'Hm.\n\n<{B}DSML{B}function_calls>\n<{B}DSML{B}invoke name="get_weather">\n'
        f'<{B}DSML{B}parameter name="city" string="true">Oslo</{B}DSML{B}parameter>\n'
        f'<{B}DSML{B}parameter name="days" string="false">3</{B}DSML{B}parameter>\n</{B}DSML{B}invoke>\n'
        f'<{B}DSML{B}invoke name="ping">\n</{B}DSML{B}invoke>\n</{B}DSML{B}function_calls>',
        "Hm.",
        "",
        [("get_weather", {"city": "Oslo", "days": 3}), ("ping", {})],
    ),
    (
        families.GEMMA,
        "<|turn>model\n",
        '<|channel>thought\nHm.\n<channel|>Sure.<|tool_call>call:get_weather{city:<|"|>O"s\nlo<|"|>,days:3,'
        'opts:{unit:<|"|>C<|"|>,tags:[1,true,null]}}<tool_call|><|tool_call>call:ping{}<tool_call|>',
        "Hm.",
        "Sure.",
        [("get_weather", {"city": 'O"s\nlo', "days": 3, "opts": {"unit": "C", "tags": [1, True, None]}}), ("ping", {})],
    ),
    (
        families.GEMMA,
        "<|turn>model\n",
        "<|channel>thought\n<channel|>Hello.<|channel>thought\n<channel|>",
        "",
        "Hello.",
        [],
    ),
    (
        families.MINICPM,
        "<|im_start|>assistant\n",
        '<think>\nHm.\n</think>\n\nSure.\n<function name="get_weather"><param name="city">'
        '<![CDATA[a</param>b]]></param><param name="days">3</param></function>\n<function name="ping"></function>',
        "Hm.",
        "Sure.",
        [("get_weather", {"city": "a</param>b", "days": 3}), ("ping", {})],
    ),
    (
        QWEN,
        "<|im_start|>assistant\n<think>\n",
        "Hm.\n</think>\n\nSure.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n\n</parameter>\n"
        '<parameter=opts>\n{"unit": \'C\', "tags": [None]}\n</parameter>\n<parameter=either>\n12\n</parameter>\n'
        "</function>\n</tool_call>\n<tool_call>\n<function=ping>\n</function>\n</tool_call>",
        "Hm.",
        "Sure.",
        [
            ("get_weather", {"city": "Oslo\n", "opts": {"unit": "C", "tags": [None]}, "either": 12}),
            ("ping", {}),
        ],
    ),
    (
        CODER,
        "<|im_start|>assistant\n",
        "#include <function>\n<function=get_weather>\n<parameter=city>\n</parameter> is a tag\n</parameter>\n"
        "</function>\n</tool_call>",
        "",
        "#include <function>",
        [("get_weather", {"city": "</parameter> is a tag"})],
    ),
]
IDS = [f"{case[0].name} {number}" for number, case in enumerate(CASES)]


def shared(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.mark.parametrize(("format", "prompt", "text", "reasoning", "content", "calls"), CASES, ids=IDS)
def test_whole_answer(format, prompt, text, reasoning, content, calls):
    message = parse(format, text, ASK, prompt)
    assert (message.reasoning, message.content) == (reasoning, content)
    assert [(call.name, json.loads(call.arguments)) for call in message.calls] == calls


@pytest.mark.parametrize(("format", "prompt", "text"), [case[:3] for case in CASES], ids=IDS)
def test_any_cut_gives_the_same(format, prompt, text):
    rng = random.Random(text)
    whole = plain(parse(format, text, ASK, prompt))
    for _ in range(60):
        assert plain(stream(format, cut_randomly(text, rng), prompt, ASK)) == whole


@pytest.mark.parametrize(("format", "prompt", "text"), [case[:3] for case in CASES], ids=IDS)
def test_cut_short_anywhere(format, prompt, text):
    openers = tuple(map(str.strip, format.calls.openers(ASK))) if format.calls else ()
    whole = plain(parse(format, text, ASK, prompt))
    rng = random.Random(text)
    for end in rng.sample(range(len(text)), min(80, len(text))):
        message = stream(format, cut_randomly(text[:end], rng), prompt, ASK, cut=True)
        assert plain(message) == plain(stream(format, [text[:end]], prompt, ASK, cut=True))
        assert whole[0].startswith(message.reasoning[:-2])
        more = message.content[shared(whole[1], message.content) :].strip()
        assert not more or more in text[:end]
        assert len(more) < 3 or (not message.calls and more.startswith(openers))
        for call, (name, arguments) in zip(message.calls, whole[2], strict=False):
            assert call.name == name
            assert arguments.startswith(call.arguments) or len(json.loads(arguments)) > 0
