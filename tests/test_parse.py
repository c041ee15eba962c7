"""The incremental parser: events, thinking, unreadable calls, JSON that needs mending."""

import json
import random
import time

import pytest

from api.parse.calls import JsonCalls
from api.parse.events import CallArguments, CallStart, Content, Message, Reasoning
from api.parse.format import Format
from api.parse.formats import CONTENT_ONLY, HERMES, shown_apart
from api.parse.jsontext import mended
from api.parse.layout import Ask, Pair, Thinking
from api.parse.params import JsonArgs
from api.parse.scan import Scanner, markers
from api.parse.stream import Parser, parse
from api.parse.tags import CallId, TagCalls
from tests.parse_cases import ASK, cut_randomly, plain, stream

THINKER = Format("thinker", thinking=Thinking("<think>", "</think>"), calls=HERMES.calls)
BARE = Format("bare", calls=JsonCalls(args="parameters"))
NEMO = Format("nemo", calls=JsonCalls(Pair("[TOOL_CALLS]"), array=True, id="id", order=("name", "arguments", "id")))
SMALL = Format(
    "small",
    calls=TagCalls(JsonArgs(Pair("[ARGS]")), call=Pair("[TOOL_CALLS]"), id=CallId("between", Pair("[CALL_ID]"))),
)
LATE = Format("late", calls=TagCalls(JsonArgs(), call=Pair("<c>", "</c>"), id=CallId("after", Pair("<id>", "</id>"))))
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def test_events_name_a_call_first_and_then_its_arguments():
    parser = Parser(HERMES, ASK)
    events = [event for piece in CALL for event in parser.feed(piece)] + parser.finish()
    start, *pieces = events
    assert isinstance(start, CallStart) and (start.index, start.name, len(start.id)) == (0, "get_weather", 32)
    assert all(isinstance(piece, CallArguments) and piece.index == 0 for piece in pieces)
    assert json.loads("".join(piece.text for piece in pieces)) == {"city": "Oslo"}


def test_a_call_is_told_as_soon_as_its_name_is_complete():
    parser = Parser(HERMES, ASK)
    assert parser.feed('<tool_call>\n{"name": "ping') == []
    assert [type(event) for event in parser.feed('"')] == [CallStart]


def test_two_calls_keep_their_own_arguments_and_ids():
    message = parse(HERMES, CALL + "\n" + CALL.replace("Oslo", "Rome"), ASK)
    assert [json.loads(call.arguments)["city"] for call in message.calls] == ["Oslo", "Rome"]
    assert message.calls[0].id != message.calls[1].id


def test_a_possible_mark_is_held_back():
    parser = Parser(HERMES, ASK)
    assert parser.feed("a <tool") == [Content("a")]
    assert parser.feed("box>") == [Content(" <toolbox>")]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\nnot json\n</tool_call>",
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        "<tool_call>",
        '<tool_call>{"name": 3}</tool_call> more',
        "x <tool_call> y <tool_call>",
        '<tool_call>{"arguments": {"a": 1}}</tool_call>',
    ],
)
def test_what_is_no_call_is_content(text):
    rng = random.Random(text)
    for _ in range(20):
        assert plain(stream(HERMES, cut_randomly(text, rng))) == ("", text, [])


def test_broken_arguments_keep_the_call_and_the_rest_is_content():
    message = parse(HERMES, '<tool_call>{"name": "ping", "arguments": {"a" 1}}</tool_call>', ASK)
    assert [call.name for call in message.calls] == ["ping"]
    assert message.content == "1}}</tool_call>"


def test_a_call_cut_by_the_limit_keeps_its_arguments_so_far():
    message = stream(HERMES, ['<tool_call>{"name": "get_weather", "arguments": {"city": "Os'], cut=True)
    assert plain(message) == ("", "", [("get_weather", '{"city": "Os')])


def test_a_call_cut_before_its_name_is_content():
    text = '<tool_call>\n{"name": "get_w'
    assert stream(HERMES, [text], cut=True).content == text


@pytest.mark.parametrize("order", [("name", "arguments"), ("arguments", "name")])
def test_members_come_in_any_order(order):
    members = {"name": "get_weather", "arguments": {"city": "Oslo", "list": ["a"]}}
    text = f"<tool_call>{json.dumps({key: members[key] for key in order})}</tool_call>"
    (call,) = parse(HERMES, text, ASK).calls
    assert (call.name, json.loads(call.arguments)) == ("get_weather", members["arguments"])


def test_arguments_as_json_text_are_unpacked():
    (call,) = parse(HERMES, '<tool_call>{"name": "ping", "arguments": "{\\"a\\": \\"x\\"}"}</tool_call>', ASK).calls
    assert json.loads(call.arguments) == {"a": "x"}


@pytest.mark.parametrize("arguments", ["null", '""', "{}", None])
def test_no_arguments_are_an_empty_object(arguments):
    more = "" if arguments is None else f', "arguments": {arguments}'
    (call,) = parse(HERMES, f'<tool_call>{{"name": "ping"{more}}}</tool_call>', ASK).calls
    assert call.arguments == "{}"


def test_bare_json_is_a_call_only_if_it_names_a_tool():
    for text in ('{"name": "Bob", "parameters": {}}', '{"a": {"name": "ping", "parameters": {}}}', 'if (x) { "y" }'):
        assert plain(parse(BARE, text, ASK)) == ("", text, [])
    for text in (
        '{"name": "ping", "parameters": {}}',
        '\n {"name": "ping", "parameters": {}}',
        '{"type": "function", "name": "ping", "parameters": {}}',
        '{"type": "function", "function": {"name": "ping", "parameters": {}}}',
    ):
        assert plain(parse(BARE, text, ASK)) == ("", "", [("ping", "{}")])


def test_an_id_after_the_arguments_is_used():
    text = '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "x"}, "id": "abc123def"}]'
    (call,) = parse(NEMO, text, ASK).calls
    assert (call.id, call.arguments) == ("abc123def", '{"city": "x"}')
    (call,) = parse(LATE, '<c>ping{"a": 1}<id>77</id></c>', ASK).calls
    assert (call.id, call.arguments) == ("77", '{"a": 1}')


def test_an_id_between_name_and_arguments_is_used_and_may_be_missing():
    text = '[TOOL_CALLS]ping[CALL_ID]abc123def[ARGS]{}[TOOL_CALLS]ping[ARGS]{"a": 1}'
    first, second = parse(SMALL, text, ASK).calls
    assert (first.id, first.arguments, second.arguments) == ("abc123def", "{}", '{"a": 1}')
    assert len(second.id) == 32


def test_an_id_that_is_used_twice_is_replaced():
    text = "[TOOL_CALLS]ping[CALL_ID]a1[ARGS]{}[TOOL_CALLS]ping[CALL_ID]a1[ARGS]{}"
    first, second = parse(SMALL, text, ASK).calls
    assert first.id == "a1" != second.id


def test_calls_are_not_looked_for_unless_asked():
    assert plain(parse(HERMES, CALL, Ask())) == ("", CALL, [])


@pytest.mark.parametrize("prompt", ["", "<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n"])
def test_thinking_goes_to_the_reasoning(prompt):
    text = ("" if "<think>" in prompt else "<think>\n") + "Hm, <b>.\n</think>\n\nHello.\n"
    rng = random.Random(prompt)
    for _ in range(20):
        assert plain(stream(THINKER, cut_randomly(text, rng), prompt)) == ("Hm, <b>.", "Hello.\n", [])


def test_thinking_closed_in_the_prompt_is_over():
    parser = Parser(THINKER, ASK, "<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not parser.thinking
    assert parser.feed("Hello") == [Content("Hello")]


def test_thinking_continues_in_a_prefilled_answer():
    parser = Parser(THINKER, ASK, "<|im_start|>assistant\n<think>\nSo far")
    assert parser.thinking
    assert parser.feed(" so good</think>Hi") == [Reasoning(" so good"), Content("Hi")]


def test_white_space_at_a_prefills_end_is_not_repeated():
    for prompt, kind in (("<think>\nSo far ", Reasoning), ("<think>x</think>\n\nHello, ", Content)):
        parser = Parser(THINKER, ASK, prompt)
        assert parser.feed("world") == [kind("world")]


def test_thinking_of_white_space_is_dropped():
    assert plain(parse(THINKER, "<think>\n\n</think>\n\nHello", ASK)) == ("", "Hello", [])


def test_thinking_that_never_ends_is_reasoning():
    assert plain(stream(THINKER, ["<think>Hm", " yes </thi"], cut=True)) == ("Hm yes", "", [])


@pytest.mark.parametrize("prompt", ["", "<|im_start|>assistant\n<think>\n"])
def test_thinking_stays_in_the_content_if_not_wanted_apart(prompt):
    text = ("" if prompt else "<think>\n") + "Hm\n</think>\n\nHello"
    message = stream(THINKER, [text], prompt, Ask(apart=False))
    assert plain(message) == ("", "<think>\nHm\n</think>\n\nHello", [])


@pytest.mark.parametrize(
    ("name", "streamed", "apart"),
    [
        ("none", True, False),
        ("none", False, False),
        ("auto", True, True),
        ("deepseek", False, True),
        ("deepseek-legacy", True, False),
        ("deepseek-legacy", False, True),
    ],
)
def test_reasoning_formats(name, streamed, apart):
    assert shown_apart(name, streamed) is apart


def test_text_without_an_opening_tag_is_content():
    assert plain(parse(THINKER, "  Hello </think> you", ASK)) == ("", "  Hello </think> you", [])


def test_a_fence_around_a_json_answer_is_removed():
    fenced = Ask(fenced=True)
    rng = random.Random(1)
    for text in ('```json\n{"a": "```"}\n```', '\n```\n{"a": "```"}\n```\n', '{"a": "```"}'):
        for _ in range(10):
            assert stream(THINKER, cut_randomly(text, rng), "", fenced).content == '{"a": "```"}'


def test_content_alone_is_passed_on_unchanged():
    text = "\n <think>x</think> <tool_call>{} \n\n"
    assert plain(parse(CONTENT_ONLY, text, ASK)) == ("", text, [])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a': True, \"b\": None, 'c': 'it\\'s'}", {"a": True, "b": None, "c": "it's"}),
        ("[1, -2.5e3, 'x']", [1, -2500.0, "x"]),
        ('{"a": "line\nbreak \\d"}', {"a": "line\nbreak \\d"}),
        ("(1, 2)", [1, 2]),
        (' "\\u00e9\\ud83d\\ude00" ', "é😀"),
    ],
)
def test_json_is_mended(text, value):
    assert json.loads(mended(text)) == value


@pytest.mark.parametrize("text", ["", "abc", "{", '{"a": }', "1 2", "NaN", "[" * 20_000])
def test_what_is_no_json_is_not_mended(text):
    assert mended(text) is None


def test_arguments_with_python_literals_stream_as_json():
    text = "<tool_call>{'name': 'get_weather', 'arguments': {'city': 'O\"s', 'list': [None, True]}}</tool_call>"
    rng = random.Random(2)
    for _ in range(30):
        (call,) = stream(HERMES, cut_randomly(text, rng)).calls
        assert json.loads(call.arguments) == {"city": 'O"s', "list": [None, True]}


def test_random_texts_lose_nothing_and_do_not_depend_on_the_cuts():
    rng = random.Random(3)
    words = ["<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "ping"', ', "arguments": {}}', " a", "\n"]
    for _ in range(400):
        text = "".join(rng.choice(words) for _ in range(rng.randint(1, 12)))
        whole = plain(stream(THINKER, [text]))
        assert plain(stream(THINKER, cut_randomly(text, rng))) == whole
        if "</tool_call>" not in text and "ping" not in text:
            assert text.count(" a") == (whole[0] + whole[1]).count(" a") + (whole[0] + whole[1]).startswith("a")


def test_marks_that_begin_alike_are_told_apart_whatever_the_cut():
    for pieces in (["a<x", ">b"], ["a<", "x>", "b"], ["a<x>b"], ["a<x>", "b"]):
        scanner, found, seen = Scanner(), [], []

        def read(scanner=scanner, found=found, seen=seen):
            found.append((yield from scanner.until(markers("<x>", "<x>b"), seen.append)))

        steps = read()
        next(steps)
        for piece in pieces:
            scanner.append(piece)
            next(steps, None)
        assert ("".join(seen), found) == ("a", ["<x>b"])


def test_the_cost_of_a_token_does_not_grow_with_the_answer():
    def seconds(parser: Parser, n: int) -> float:
        started = time.process_time()
        for _ in range(n):
            parser.feed(" wörd")
        return time.process_time() - started

    for opener in ("", "<think>", '<tool_call>{"name": "get_weather", "arguments": {"city": "'):
        parser = Parser(THINKER, ASK)
        parser.feed(opener)
        first = min(seconds(parser, 200) for _ in range(5))
        seconds(parser, 20_000)
        assert min(seconds(parser, 200) for _ in range(5)) < 20 * first  # what is read again costs a hundredfold


def test_an_answer_may_be_anything():
    rng = random.Random(4)
    for _ in range(50):
        text = "".join(chr(rng.choice((rng.randrange(32, 127), rng.randrange(0x2FFF), 10))) for _ in range(60))
        assert plain(stream(HERMES, cut_randomly(text, rng)))[1] == text
        assert Message().add(Parser(THINKER, ASK).feed(text)) is not None
