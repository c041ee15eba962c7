"""Every field of a request has a test that shows it act, and one that shows it refused; spec/generation.md §1."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api.errors import ApiError
from api.schema import Schema
from api.table import CONSTRAINTS, TABLE
from engine.vocab import Vocab
from ipc.config import Config
from tests import test_api_completions, test_chat_api, test_fields_act_engine, test_fields_act_sampling
from tests.acts import Asked, acts, shown
from tests.api_client import Api, run
from tests.real_engine import RealEngine
from tests.tiny_vocab import TinyVocab

SCHEMA = Schema(Config(), TinyVocab())
NAMES = {*(field.name for field in TABLE), *(name for name, *_ in CONSTRAINTS), "stream_options"}


def test_every_field_has_a_test_that_shows_it_act() -> None:
    elsewhere = [test_api_completions, test_chat_api, test_fields_act_engine, test_fields_act_sampling]
    assert shown(sys.modules[__name__], *elsewhere) == NAMES


BAD: dict[str, list[Any]] = {
    "verbose": ["yes"], "timings_per_token": [1], "stream": ["true"], "cache_prompt": [0], "return_tokens": [{}],
    "return_progress": [[]], "return_queue_position": [1],
    "sse_ping_interval": [-2, "x", 1.5], "n_predict": [-2, 2**31, "x", [1], True],
    "n_indent": [-1, 0.5], "n_keep": [-2], "n_discard": [-1], "n_cmpl": [0, 5, "2"], "n_cache_reuse": [-1],
    "t_max_predict_ms": [-2, 2**63], "t_max_prompt_ms": [-2], "deadline_ms": [-2], "response_fields": ["a", [1]],
    "id_slot": [-2, 4, "0"], "priority": [101, -101, "high", 1.0], "lora": [{}, [{"id": 1}], [{"id": "x", "scale": 1}]],
    "top_k": ["many", 1.5], "top_p": ["x"], "min_p": [True], "top_n_sigma": [[]], "xtc_probability": ["x"],
    "xtc_threshold": [{}], "typical_p": ["x"], "temperature": ["hot", 1e39], "dynatemp_range": ["x"],
    "dynatemp_exponent": ["x"], "repeat_last_n": [-1], "repeat_penalty": [0, -1, "x"], "frequency_penalty": ["x", 1e39],
    "presence_penalty": ["x", -1e39], "dry_multiplier": ["x"], "dry_base": ["x"], "dry_allowed_length": [-1],
    "dry_penalty_last_n": [-1], "mirostat": ["2"], "mirostat_tau": ["x"], "mirostat_eta": ["x"],
    "adaptive_target": ["x"], "adaptive_decay": [1.0, -0.1], "seed": ["x", 1.5, True], "n_probs": ["x", 0.5],
    "prompt_logprobs": [-1], "min_keep": [-1], "backend_sampling": [1], "post_sampling_probs": [1],
    "dry_sequence_breakers": [[], "x", [1]], "grammar_lazy": ["x"], "preserved_tokens": ["x", [1]],
    "grammar_triggers": ["x", [1], [{"type": 9, "value": "x"}], [{"type": 0, "value": "", "token": 999}]],
    "echo": [1], "chat_format": [1], "reasoning_format": [1], "generation_prompt": [1], "reasoning_control": [1],
    "reasoning_budget_tokens": [-2], "reasoning_budget_start_tag": [1], "reasoning_budget_end_tags": [1, [2]],
    "reasoning_budget_message": [1], "logit_bias": ["x", 3], "ignore_eos": ["x"], "stop": [1, [1], ["a" * 5000]],
    "samplers": [1, [2]], "grammar": [1], "json_schema": [3, False, "{"], "regex": [1, ""], "choice": [[], "x", [1]],
    "lark": [1], "response_format": ["x", {"type": "nope"}], "stream_options": [1, {"include_usage": "x"}],
}  # fmt: skip


def test_every_field_has_a_value_that_is_refused() -> None:
    assert set(BAD) == NAMES


@pytest.mark.parametrize("name", sorted(BAD))
def test_a_bad_value_is_refused_by_name(name: str) -> None:
    SCHEMA.n_slots = 4
    for value in BAD[name]:
        with pytest.raises(ApiError) as caught:
            SCHEMA.read({name: value})
        assert (caught.value.code, caught.value.type) == (400, "invalid_request_error")
        assert name in caught.value.message


class Real(Asked, RealEngine):
    """Requests for the demo model."""

    def text_of(self, body: dict[str, Any], prompt: str = "x") -> str:
        """What it answers."""
        task = self.answer({"n_predict": 40, **body}, self.model.vocab.encode(prompt).tolist())
        assert self.final(task).error is None, self.final(task)
        return self.text(task)

    def refusal(self, body: dict[str, Any]) -> str:
        """Why it does not answer."""
        error = self.error(self.answer(body, [5]))
        assert error.code == 400
        return error.message


@pytest.fixture(scope="module")
def real(model_path: Path, lib: Path, vocab: Vocab) -> Iterator[Real]:
    with Real(model_path, ctx_size=512, parallel=2, threads=2) as engine:
        engine.schema = Schema(Config(), vocab)
        yield engine


@acts("grammar")
def test_a_grammar_is_obeyed(real: Real) -> None:
    assert real.text_of({"grammar": 'root ::= "a" [0-9]{3} "z"'})[::4] == "az"
    assert "line 1" in real.refusal({"grammar": 'root ::= "a'})


@acts("json_schema", "response_format")
@pytest.mark.parametrize("form", ["json_schema", "response_format", "json_object"])
def test_a_schema_is_obeyed(real: Real, form: str) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [17, 23]}}, "required": ["n"]}
    forms = {
        "json_schema": {"json_schema": schema},
        "response_format": {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
        "json_object": {"response_format": {"type": "json_object", "schema": schema}},
    }
    assert json.loads(real.text_of(forms[form]))["n"] in (17, 23)
    assert "n" in real.refusal({"json_schema": {"properties": {"n": {"type": "nope"}}}})


@acts("regex", "choice", "lark")
def test_other_constraints_are_obeyed(real: Real) -> None:
    assert real.text_of({"regex": "[ab]{2}-[0-9]"})[2] == "-"
    assert real.text_of({"choice": ["é\n1", 'q"2']}) in ("é\n1", 'q"2')
    assert real.text_of({"lark": 'start: "x"~3 /[yz]/'}) in ("xxxy", "xxxz")
    assert real.refusal({"regex": "("})
    assert real.refusal({"lark": "start: missing"})


@acts("grammar_lazy", "grammar_triggers")
def test_a_lazy_grammar_sleeps_until_its_trigger(real: Real) -> None:
    question, plain = "The capital of France is", {"n_predict": 8, "cache_prompt": False}
    never, at_once = [{"type": 1, "value": " Paris?"}], [{"type": 2, "value": "( Par[a-z]*)"}]
    body = {**plain, "grammar": 'root ::= " Paris" "!!"', "grammar_lazy": True}
    assert real.text_of({**body, "grammar_triggers": never}, question) == real.text_of(plain, question)
    assert real.text_of({**body, "grammar_triggers": at_once}, question) == " Paris!!"


@acts("preserved_tokens")
def test_a_special_token_is_shown_when_it_is_preserved(real: Real) -> None:
    mark = "<|im_start|>"
    (token,) = real.model.vocab.encode(mark).tolist()
    body = {"logit_bias": [[token, 1000]], "n_predict": 2}
    assert real.text_of(body) == ""
    assert real.text_of({**body, "preserved_tokens": [mark, "more than one"]}) == 2 * mark


@acts("backend_sampling", "chat_format", "generation_prompt")
def test_fields_of_other_layers_are_shown_again_and_change_nothing(tmp_path: Path) -> None:
    body = {"backend_sampling": True, "chat_format": "mine", "generation_prompt": "<a>", "reasoning_format": "none"}

    async def test(api: Api) -> None:
        plain, given = [await api.json("/completion", {"prompt": "a", **more}) for more in ({}, body)]
        assert plain["content"] == given["content"]
        assert body.items() <= given["generation_settings"].items()

    run(test, tmp_path)
