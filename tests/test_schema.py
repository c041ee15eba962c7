"""The request schema: every field, its names, limits, defaults and errors."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from api.constraints import FORMS
from api.errors import ApiError
from api.params import Params
from api.schema import Schema, reference
from api.table import CONSTRAINTS, SETTINGS, TABLE
from ipc.config import Config, EngineSection, SamplingSection
from ipc.messages import Constraint, LoraScale, Trigger
from tests.tiny_vocab import TinyVocab


def schema(meta: dict[str, str] | None = None, **sections: Any) -> Schema:
    made = Schema(replace(Config(), **sections), TinyVocab(meta=meta))
    made.n_slots = 4
    return made


SCHEMA = schema()


def read(body: dict[str, Any]) -> Params:
    return SCHEMA.read(body)


def refused(body: dict[str, Any]) -> str:
    with pytest.raises(ApiError) as caught:
        read(body)
    assert caught.value.code == 400
    return caught.value.message


SAMPLING_VALUES = {
    "top_k": 7, "top_p": 0.5, "min_p": 0.2, "top_n_sigma": 1.5, "xtc_probability": 0.3, "xtc_threshold": 0.2,
    "typical_p": 0.9, "temperature": 1.5, "dynatemp_range": 0.4, "dynatemp_exponent": 2.0, "repeat_last_n": 10,
    "repeat_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": -0.4, "dry_multiplier": 0.8, "dry_base": 2.0,
    "dry_allowed_length": 3, "dry_penalty_last_n": 12, "mirostat": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.2,
    "adaptive_target": 0.5, "adaptive_decay": 0.8, "min_keep": 2, "ignore_eos": True, "seed": 42,
    "dry_sequence_breakers": ["x"],
}  # fmt: skip


@pytest.mark.parametrize("name", SAMPLING_VALUES)
def test_a_sampling_field_reaches_the_task(name: str) -> None:
    assert getattr(read({name: SAMPLING_VALUES[name]}).task.sampling, name) == SAMPLING_VALUES[name]


TASK_VALUES = [
    ("n_predict", 5, "max_tokens", 5),
    ("max_tokens", 5, "max_tokens", 5),
    ("max_completion_tokens", 5, "max_tokens", 5),
    ("n_predict", 0, "max_tokens", 0),
    ("n_indent", 4, "n_indent", 4),
    ("n_keep", -1, "n_keep", None),
    ("n_keep", 3, "n_keep", 3),
    ("n_discard", 8, "n_discard", 8),
    ("n_cache_reuse", 16, "n_cache_reuse", 16),
    ("cache_prompt", False, "cache_prompt", False),
    ("t_max_predict_ms", 500, "max_ms", 500),
    ("t_max_predict_ms", -1, "max_ms", None),
    ("t_max_prompt_ms", 500, "max_prompt_ms", 500),
    ("deadline_ms", 700, "deadline_ms", 700),
    ("deadline_ms", -1, "deadline_ms", None),
    ("id_slot", 3, "slot", 3),
    ("id_slot", -1, "slot", None),
    ("timings_per_token", True, "timings_per_token", True),
    ("stream", True, "stream", True),
    ("n_probs", 3, "n_probs", 3),
    ("logprobs", 3, "n_probs", 3),
    ("post_sampling_probs", True, "post_sampling_probs", True),
    ("priority", -2, "priority", -2),
    ("stop", "x", "stop", ["x"]),
    ("stop", ["x", "", "y"], "stop", ["x", "y"]),
    ("lora", [{"id": 1, "scale": 2}], "lora", [LoraScale(1, 2.0)]),
    ("preserved_tokens", ["<s>", "ab"], "preserved_tokens", [256]),
]


@pytest.mark.parametrize(("name", "value", "attribute", "expected"), TASK_VALUES)
def test_a_request_field_reaches_the_task(name: str, value: Any, attribute: str, expected: Any) -> None:
    assert getattr(read({name: value}).task, attribute) == expected


ANSWER_VALUES = [
    ({"n": 3}, "n", 3),
    ({"n_cmpl": 2, "n": 3}, "n", 2),
    ({"verbose": True}, "verbose", True),
    ({"return_tokens": True}, "return_tokens", True),
    ({"response_fields": ["a/b"]}, "response_fields", ["a/b"]),
    ({"sse_ping_interval": 5}, "ping", 5),
    ({"sse_ping_interval": -1}, "ping", None),
    ({"stream_options": {"include_usage": True}}, "include_usage", True),
    ({"echo": True}, "echo", True),
    ({"prompt_logprobs": 0}, "prompt_logprobs", 0),
]


@pytest.mark.parametrize(("body", "attribute", "expected"), ANSWER_VALUES)
def test_a_field_that_shapes_the_answer(body: dict[str, Any], attribute: str, expected: Any) -> None:
    assert getattr(read(body), attribute) == expected


def test_every_field_of_the_table_is_covered_here() -> None:
    tested = {*SAMPLING_VALUES, *(name for name, *_ in TASK_VALUES)}
    tested |= {name for body, *_ in ANSWER_VALUES for name in body}
    elsewhere = {"grammar_lazy", "grammar_triggers", "logit_bias", "samplers", "return_progress",
                 "return_queue_position", "backend_sampling",
                 "chat_format", "reasoning_format", "generation_prompt", "reasoning_control", "reasoning_budget_tokens",
                 "reasoning_budget_start_tag", "reasoning_budget_end_tags", "reasoning_budget_message"}  # fmt: skip
    assert {field.name for field in TABLE} - tested == elsewhere


def test_null_is_the_same_as_absent() -> None:
    names = [name for field in TABLE for name in (field.name, *field.aliases)]
    names += [name for name, *_ in CONSTRAINTS] + ["stream_options"]
    assert read(dict.fromkeys(names)) == read({})


def test_an_unknown_field_is_ignored() -> None:
    assert read({"nonsense": object()}) == read({})


@pytest.mark.parametrize("name", [field.name for field in TABLE if field.kind in ("int", "float")])
def test_a_number_field_refuses_other_types(name: str) -> None:
    for value in ("hot", [1], {"a": 1}, True):
        if not (name == "priority" and value is True):
            assert refused({name: value}).startswith(f"Field '{name}': ")


@pytest.mark.parametrize("name", [field.name for field in TABLE if field.kind == "bool"])
def test_a_flag_refuses_other_types(name: str) -> None:
    for value in (1, "true", []):
        assert refused({name: value}).startswith(f"Field '{name}': type must be a boolean")


@pytest.mark.parametrize("field", [field for field in TABLE if field.hard], ids=lambda field: field.name)
def test_a_value_outside_hard_limits_is_refused(field: Any) -> None:
    value = field.hard[0] - 1
    text = refused({field.name: value})
    assert text.startswith(f"Field '{field.name}': Value must be between {field.hard[0]:g} <= value <= ")
    assert text.endswith(f"but got {value:g}")


@pytest.mark.parametrize("field", [field for field in TABLE if field.clamp], ids=lambda field: field.name)
def test_a_value_outside_soft_limits_is_limited(field: Any) -> None:
    low, high = field.clamp
    assert field.get(read({field.name: low - 1})) == low
    if high < 1e9:
        assert field.get(read({field.name: high + 1})) == high


def test_an_integer_may_be_written_with_a_fraction_of_zero() -> None:
    assert read({"n_predict": 5.0}).task.max_tokens == 5
    assert "integer" in refused({"n_predict": 5.5})


def test_n_predict_wins_over_its_aliases_and_of_those_the_smaller() -> None:
    assert read({"n_predict": 9, "max_tokens": 3}).task.max_tokens == 9
    assert read({"max_tokens": 9, "max_completion_tokens": 3}).task.max_tokens == 3
    assert read({"max_tokens": 3, "max_completion_tokens": 9}).task.max_tokens == 3
    assert read({"max_tokens": -1, "max_completion_tokens": 9}).task.max_tokens == 9


def test_the_server_limit_caps_every_request() -> None:
    limited = schema(engine=EngineSection(predict=50))
    assert [limited.read(body).task.max_tokens for body in ({}, {"max_tokens": 1000}, {"n_predict": -1})] == [50] * 3
    assert limited.read({"max_tokens": 7}).task.max_tokens == 7


def test_the_field_is_named_as_the_client_wrote_it() -> None:
    assert refused({"max_tokens": "x"}).startswith("Field 'max_tokens': ")


def test_more_completions_than_slots_are_refused() -> None:
    assert "1 <= value <= 4, but got 5" in refused({"n": 5})
    assert "0 <= value < 4, but got 4" in refused({"id_slot": 4})


def test_children_count_the_seed_up_and_leave_the_slot_free() -> None:
    tasks = read({"n": 3, "seed": 7, "id_slot": 1}).tasks(TinyVocab().encode("a"))
    assert [task.sampling.seed for task in tasks] == [7, 8, 9]
    assert [task.slot for task in tasks] == [1, None, None]


@pytest.mark.parametrize("value", [-1, 4294967295, None])
def test_a_random_seed_stays_random_for_children(value: Any) -> None:
    assert [task.sampling.seed for task in read({"n": 2, "seed": value}).tasks(TinyVocab().encode("a"))] == [None, None]


def test_samplers_by_name_alias_and_letter() -> None:
    assert read({"samplers": ["Top-K", "topp", "nucleus", "temp", "nope"]}).task.sampling.samplers == [
        "top_k", "top_p", "top_p", "temperature",
    ]  # fmt: skip
    assert read({"samplers": "ktz"}).task.sampling.samplers == ["top_k", "temperature"]
    assert read({"samplers": []}).task.sampling.samplers == []
    assert refused({"samplers": 3}) == "Field 'samplers': type must be an array of strings"


def test_logit_bias_in_all_forms() -> None:
    given = [[97, 1.5], ["bc", -2], [98, False], [9999, 1], [1], "x", [97, True]]
    assert read({"logit_bias": given}).task.sampling.logit_bias == [(97, 1.5), (98, -2), (99, -2), (98, -math.inf)]
    assert read({"logit_bias": {"97": 1, "b": False}}).task.sampling.logit_bias == [(97, 1.0), (98, -math.inf)]
    assert refused({"logit_bias": "x"}).startswith("Field 'logit_bias': ")


def test_stop_falls_back_to_the_servers() -> None:
    made = schema(sampling=SamplingSection(reverse_prompt=("User:",)))
    assert [made.read(body).task.stop for body in ({}, {"stop": [""]}, {"stop": "x"})] == [["User:"], ["User:"], ["x"]]


def test_dry_base_below_one_means_the_servers() -> None:
    assert read({"dry_base": 0.5}).task.sampling.dry_base == 1.75


def test_breakers_must_be_there() -> None:
    text = "Error: dry_sequence_breakers must be a non-empty array of strings"
    assert refused({"dry_sequence_breakers": []}) == f"Field 'dry_sequence_breakers': {text}"


def test_a_penalty_that_divides_by_nothing_is_refused() -> None:
    assert "repeat_penalty" in refused({"repeat_penalty": 0})


@pytest.mark.parametrize("value", [{}, [1], [{"id": "x", "scale": 1}], [{"id": 1}], [{"id": True, "scale": 1}]])
def test_lora_must_be_a_list_of_id_and_scale(value: Any) -> None:
    assert "'lora' must be an array of objects with 'id' and 'scale' fields" in refused({"lora": value})


@pytest.mark.parametrize(
    "body",
    [
        {"stop": ["a"] * 257},
        {"stop": "a" * 4097},
        {"samplers": ["top_k"] * 65},
        {"samplers": "k" * 65},
        {"dry_sequence_breakers": ["a"] * 129},
        {"preserved_tokens": ["a"] * 1025},
        {"lora": [{"id": 1, "scale": 1}] * 65},
        {"grammar_triggers": [{"type": 1, "value": "a"}] * 257},
        {"logit_bias": [["a" * 600, 1]]},
    ],
    ids=lambda body: next(iter(body)),
)
def test_a_list_that_would_hold_up_the_engine_is_refused(body: dict[str, Any]) -> None:
    assert refused(body).startswith(f"Field '{next(iter(body))}': ")


def test_progress_needs_a_stream() -> None:
    assert read({"return_progress": True, "stream": True}).task.progress
    assert not read({"return_progress": True}).task.progress
    assert read({"return_queue_position": True, "stream": True}).task.queue_position
    assert not read({"return_queue_position": True}).task.queue_position


# ---------------------------------------------------------------- structured output


OBJECT = {"type": "object"}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": OBJECT}}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"grammar": "root ::= x"}, Constraint("gbnf", "root ::= x")),
        ({"json_schema": OBJECT}, Constraint("json_schema", '{"type":"object"}')),
        ({"json_schema": {}}, Constraint("json_schema", '{"type":"object"}')),
        ({"json_schema": '{"type":"array"}'}, Constraint("json_schema", '{"type":"array"}')),
        ({"grammar": "root ::= x", "json_schema": {}}, Constraint("gbnf", "root ::= x")),
        ({"grammar": None, "json_schema": {}}, None),
        ({"regex": "a+"}, Constraint("regex", "a+")),
        ({"choice": ["yes", 'n"o']}, Constraint("lark", r'start: "yes" | "n\"o"')),
        ({"lark": "start: /a/"}, Constraint("lark", "start: /a/")),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Constraint("json_schema", '{"type":"object"}')),
        ({"response_format": {"type": "json_object", "schema": {"a": 1}}}, Constraint("json_schema", '{"a":1}')),
        ({"response_format": FORMAT}, Constraint("json_schema", '{"type":"object"}')),
        ({"grammar": ""}, None),
        ({}, None),
    ],
)
def test_constraint_forms(body: dict[str, Any], expected: Constraint | None) -> None:
    assert read(body).task.constraint == expected


@pytest.mark.parametrize(
    "body",
    [
        {"grammar": 3},
        {"json_schema": 3},
        {"json_schema": False},
        {"json_schema": "{"},
        {"regex": ""},
        {"choice": []},
        {"choice": [1]},
        {"lark": []},
        {"response_format": {"type": "nope"}},
        {"response_format": {"type": "json_object", "schema": []}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": False}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": ""}}},
        {"response_format": "x"},
        {"regex": "a", "choice": ["b"]},
    ],
)
def test_a_bad_constraint_is_refused(body: dict[str, Any]) -> None:
    assert any(name in refused(body) for name in FORMS)


def test_a_server_wide_grammar_applies_unless_the_request_has_its_own() -> None:
    made = schema(sampling=SamplingSection(grammar="root ::= x"))
    assert made.read({}).task.constraint == Constraint("gbnf", "root ::= x")
    assert made.read({"grammar": None}).task.constraint is None
    assert made.read({"regex": "a"}).task.constraint == Constraint("regex", "a")


def test_triggers_of_a_lazy_grammar() -> None:
    body = {
        "grammar": "root ::= x",
        "grammar_lazy": True,
        "preserved_tokens": ["<s>"],
        "grammar_triggers": [
            {"type": 0, "value": "a", "token": 97},
            {"type": 1, "value": "<s>"},
            {"type": 1, "value": "word"},
            {"type": 2, "value": "a+"},
            {"type": 3, "value": "b+"},
        ],
    }
    constraint = read(body).task.constraint
    assert constraint is not None
    assert constraint.lazy
    assert constraint.triggers == [
        Trigger("token", "a", 97),
        Trigger("token", "<s>", 256),
        Trigger("word", "word"),
        Trigger("pattern", "a+"),
        Trigger("pattern_full", "b+"),
    ]


def test_lazy_grammars_are_checked() -> None:
    lazy = {"grammar": "root ::= x", "grammar_lazy": True}
    assert refused(lazy) == "Error: no triggers set for lazy grammar!"
    word = {**lazy, "grammar_triggers": [{"type": 1, "value": "<s>"}]}
    assert refused(word) == "Grammar trigger word should be marked as preserved token: <s>"
    assert "grammar_triggers" in refused({**lazy, "grammar_triggers": [{"type": 9, "value": "x"}]})
    assert "grammar_triggers" in refused({**lazy, "grammar_triggers": "x"})


def test_a_reasoning_budget_needs_tags() -> None:
    assert read({"reasoning_budget_tokens": 5}).task.reasoning is None
    tags = {"reasoning_budget_start_tag": "<", "reasoning_budget_end_tags": [">", ")"]}
    assert read(tags).task.reasoning is None
    budget = read({**tags, "reasoning_budget_tokens": 5, "reasoning_budget_message": "!"}).task.reasoning
    assert budget is not None
    assert (budget.start, budget.ends, budget.forced, budget.tokens) == ([60], [[62], [41]], [33, 62], 5)
    control = read({**tags, "reasoning_control": True}).task.reasoning
    assert control is not None
    assert control.control


# ---------------------------------------------------------------- defaults and settings


def test_defaults_come_from_the_configuration() -> None:
    made = schema(sampling=SamplingSection(top_k=11, samplers=("top_k",)), engine=EngineSection(keep=None))
    params = made.read({})
    assert params.task.sampling.top_k == 11
    assert params.task.sampling.samplers == ["top_k"]
    assert params.task.n_keep is None
    assert params.ping == 30
    assert not params.stream


META = {
    "general.sampling.temp": "0.2",
    "general.sampling.top_k": "5",
    "general.sampling.sequence": "top_k;temperature",
    "general.sampling.penalty_last_n": "8",
    "general.sampling.min_p": "broken",
}


def test_the_models_own_sampling_defaults_give_way_to_the_users() -> None:
    given = frozenset({"sampling.temperature"})
    sampling = schema(META, sampling=SamplingSection(temperature=0.5), given=given).read({}).task.sampling
    assert (sampling.temperature, sampling.top_k, sampling.repeat_last_n, sampling.min_p) == (0.5, 5, 8, 0.05)
    assert sampling.samplers == ["top_k", "temperature"]


def test_requests_do_not_change_the_defaults() -> None:
    before = SCHEMA.settings(SCHEMA.defaults)
    body = {"temperature": 0, "stop": "x", "logit_bias": {"97": 1}, "reasoning_control": True, "samplers": "k"}
    read({**body, "grammar_lazy": True, "grammar_triggers": [{"type": 1, "value": "word"}]})
    assert SCHEMA.settings(SCHEMA.defaults) == before
    assert read({}).thinking == SCHEMA.defaults.thinking


def test_settings_show_all_members_in_order() -> None:
    assert list(SCHEMA.settings(read({}))) == list(SETTINGS)


def test_settings_show_values_as_clients_write_them() -> None:
    body = {"n_predict": 5, "n_keep": -1, "logit_bias": [[97, False], [98, 1]], "grammar": "root ::= x", "seed": 3}
    shown = SCHEMA.settings(read(body))
    assert (shown["n_predict"], shown["max_tokens"], shown["n_keep"], shown["seed"]) == (5, 5, -1, 3)
    assert shown["logit_bias"] == [{"bias": None, "token": 97}, {"bias": 1.0, "token": 98}]
    assert shown["grammar"] == "root ::= x"
    empty = SCHEMA.settings(read({}))
    assert (empty["n_predict"], empty["max_tokens"], empty["seed"], empty["grammar"]) == (-1, -1, 2**32 - 1, "")
    assert empty["samplers"] == list(SamplingSection().samplers)


def test_reduced_settings_leave_out_what_may_be_long_or_private() -> None:
    starred = {"dry_sequence_breakers", "stop", "logit_bias", "grammar", "grammar_lazy", "grammar_triggers",
               "preserved_tokens"}  # fmt: skip
    assert set(SETTINGS) - set(SCHEMA.settings(read({}), full=False)) == starred


def test_the_reference_page_is_up_to_date() -> None:
    with open("docs/parameters.md", encoding="utf-8") as page:
        assert page.read() == reference()


# ---------------------------------------------------------------- anything at all


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
NAMES = [name for field in TABLE for name in (field.name, *field.aliases)] + [*FORMS, "stream_options"]


@given(st.dictionaries(st.sampled_from(NAMES), JSON, max_size=6))
def test_any_value_is_taken_or_refused_with_400(body: dict[str, Any]) -> None:
    try:
        SCHEMA.settings(read(body))
    except ApiError as error:
        assert error.code == 400
