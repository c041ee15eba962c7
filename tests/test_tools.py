"""Tool choices, the constraints made of them, and schemas that cannot be enforced."""

import re

import pytest

from api.chat_errors import ChatError
from api.parse import families
from api.parse.formats import CONTENT_ONLY, HERMES
from api.parse.layout import Start
from api.parse.stream import parse
from api.tools import Constrainer, control_tokens, preserved_tokens, read_tool_choice
from engine.compiler import Compiler, make_tokenizer
from tests.grammar_texts import SPECIALS, taken

STRING = {"type": "string"}


def tools(**properties):
    return [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": form}}}
        for name, form in properties.items()
    ]


TOOLS = tools(get_a={"x": STRING}, get_b={})
NAMED = {"type": "function", "function": {"name": "get_b"}}
CALL_A = '<tool_call>\n{"name": "get_a", "arguments": {"x": "1"}}\n</tool_call>'
CALL_B = '<tool_call>\n{"name": "get_b", "arguments": {}}\n</tool_call>'


def constrain(choice, format=HERMES, given=TOOLS, parallel=True, schema=None, specials=None):
    return Constrainer(format, specials or {}, Start()).constraint(read_tool_choice(choice, given, parallel), schema)


@pytest.mark.parametrize("value", [None, "auto", {"type": "auto"}])
def test_auto_may_call(value):
    choice = read_tool_choice(value, TOOLS)
    assert (choice.mode, list(choice.schemas), choice.active) == ("auto", ["get_a", "get_b"], True)


@pytest.mark.parametrize(
    "value",
    [
        NAMED,
        {"type": "function", "name": "get_b"},
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_b"}]},
    ],
)
def test_a_named_function_is_the_only_one(value):
    choice = read_tool_choice(value, TOOLS)
    assert (choice.mode, list(choice.schemas)) == ("required", ["get_b"])
    source = constrain(value).text
    assert taken(source, CALL_B) is None
    assert taken(source, CALL_A) is not None


@pytest.mark.parametrize(
    ("value", "given", "message"),
    [
        ("sometimes", TOOLS, "Invalid tool_choice: sometimes"),
        ({"type": "function", "function": {"name": "nope"}}, TOOLS, "'nope', which is not among the tools"),
        ({"type": "function"}, TOOLS, "the function's name is missing"),
        ({"type": "allowed_tools", "mode": "never", "tools": []}, TOOLS, "mode 'never'"),
        ({"type": "allowed_tools"}, TOOLS, "needs a list of tools"),
        ({"type": "web_search"}, TOOLS, "Invalid tool_choice"),
        (5, TOOLS, "expected a string or an object"),
        ("required", [], "there are no tools"),
        (NAMED, [], "not among the tools"),
    ],
)
def test_choices_that_cannot_be_honoured_are_refused(value, given, message):
    with pytest.raises(ChatError, match=re.escape(message)):
        read_tool_choice(value, given)


@pytest.mark.parametrize("given", [[], TOOLS])
def test_none_constrains_nothing_and_finds_no_calls(given):
    choice = read_tool_choice("none", given)
    assert Constrainer(HERMES, {}, Start()).constraint(choice) is None
    assert parse(HERMES, CALL_A, choice.ask()).content == CALL_A


def test_auto_without_tools_constrains_nothing():
    assert constrain("auto", given=[]) is None


def test_auto_is_lazy_and_woken_by_the_opener():
    constraint = constrain("auto")
    assert constraint.lazy
    assert [(trigger.kind, trigger.value) for trigger in constraint.triggers] == [("word", "<tool_call>")]
    assert taken(constraint.text, CALL_A + "\n" + CALL_B) is None


def test_an_opener_that_is_one_token_wakes_by_its_id():
    constraint = constrain("auto", families.MINISTRAL, specials=SPECIALS)
    (trigger,) = constraint.triggers
    assert (trigger.kind, trigger.token) == ("token", SPECIALS["[TOOL_CALLS]"])
    assert taken(constraint.text, '[TOOL_CALLS]get_a[ARGS]{"x": "1"}', SPECIALS) is None


def test_required_begins_with_a_call():
    constraint = constrain("required")
    assert not constraint.lazy
    assert taken(constraint.text, CALL_A + "\n" + CALL_B) is None
    assert taken(constraint.text, "Hello") is not None
    assert taken(constraint.text, "") is not None


def test_calls_one_at_a_time():
    constraint = constrain("required", parallel=False)
    assert taken(constraint.text, CALL_A) is None
    assert taken(constraint.text, CALL_A + "\n" + CALL_B) is not None


def test_a_schema_for_the_answer_leaves_calls_possible():
    constraint = constrain("auto", schema={"type": "object", "properties": {"n": {"type": "integer"}}})
    assert not constraint.lazy
    assert taken(constraint.text, CALL_A) is None
    assert taken(constraint.text, '{"n": 1}') is None
    assert taken(constraint.text, "Hello") is not None


def test_a_schema_for_the_answer_alone():
    constraint = constrain("none", schema={"type": "object", "properties": {"n": {"type": "integer"}}})
    assert taken(constraint.text, '{"n": 1}') is None
    assert taken(constraint.text, '{"n": "x"}') is not None


def test_a_template_without_calls_cannot_be_made_to_call():
    with pytest.raises(ChatError, match="no way to write tool calls"):
        constrain("required", CONTENT_ONLY)


FORMATS = pytest.mark.parametrize(
    "format",
    [HERMES, families.qwen_coder(False), families.GEMMA, families.MINIMAX_M3, families.lfm2("")],
    ids=lambda format: format.name,
)


@FORMATS
def test_schemas_of_unusual_size_do_no_harm(format):
    given = tools(
        nothing={},
        long={"l": {"type": "array", "maxItems": 50, "items": {"type": "string", "maxLength": 2000}}},
        longer={"s": {"type": "string", "maxLength": 1_000_000}},
        pattern={"p": {"type": "string", "pattern": "\\S"}},
        odd={"n": {"type": "string", "format": "iban"}},
        either={"e": {"oneOf": [STRING, {"type": "string", "enum": ["a"]}]}},
    )
    constrainer = Constrainer(format, {}, Start())
    assert constrainer.constraint(read_tool_choice("required", given)) is not None
    assert len(constrainer.warnings) == 2
    assert "tool 'odd': n: format 'iban' is not enforced" in constrainer.warnings


@FORMATS
@pytest.mark.parametrize(
    ("form", "path", "keyword"),
    [
        ({"type": "array", "uniqueItems": True}, "x", "uniqueItems"),
        ({"type": "object", "properties": {"y": {"type": "string", "pattern": "(?=a)b"}}}, "x.y", "pattern"),
        ({"type": "array", "items": {"not": {}}}, "x[]", "not"),
        ({"$ref": "#/$defs/nope"}, "x", "$ref"),
        ({"type": "any"}, "x", "type"),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_named(format, form, path, keyword):
    with pytest.raises(ChatError) as error:
        constrain("auto", format, TOOLS + tools(odd={"ok": STRING, "x": form}))
    assert error.value.code == 400
    assert f"tool 'odd', at '{path}': keyword '{keyword}'" in str(error.value)


def test_a_pattern_that_only_raw_text_cannot_have_is_named():
    form = {"type": "string", "pattern": "^a|b$"}
    assert constrain("auto", given=tools(f={"x": form})) is not None
    with pytest.raises(ChatError, match="tool 'f', at 'x': keyword 'pattern'"):
        constrain("auto", families.qwen_coder(False), given=tools(f={"x": form}))


def test_a_contradiction_in_a_parameter_of_its_own_is_named():
    form = {"type": "integer", "minimum": 5, "maximum": 1}
    with pytest.raises(ChatError, match="tool 'f', at 'x': keyword 'minimum'"):
        constrain("auto", families.qwen_coder(False), given=tools(f={"x": form}))


def test_an_answer_schema_that_cannot_be_enforced_is_named():
    with pytest.raises(ChatError, match="response_format, at 'a': keyword 'uniqueItems'"):
        constrain("none", schema={"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}})


def test_the_marks_of_a_format_are_preserved():
    preserved = preserved_tokens(families.KIMI_K3, SPECIALS)
    assert preserved == sorted(SPECIALS[text] for text in ("<|open|>", "<|close|>", "<|sep|>"))


def test_control_tokens_are_those_that_the_engine_takes_for_such(vocab):
    tokenizer = make_tokenizer(vocab)
    specials = control_tokens(vocab)
    assert specials["<|im_end|>"] in vocab.eog
    marked = {token for token in range(vocab.n_tokens) if tokenizer.is_special_token(token)}
    assert marked - set(specials.values()) <= vocab.eog
    assert set(specials.values()) - marked == set()


def test_the_engine_follows_a_constraint_through_a_call(vocab):
    compiler = Compiler(vocab)
    grammar = compiler.compile(constrain("required", specials=control_tokens(vocab)))
    for token in vocab.encode(CALL_A, add_special=False):
        assert grammar.allows(int(token))
        grammar.accept(int(token))
    assert grammar.allows(vocab.eos)
    compiler.close()
