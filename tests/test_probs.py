"""Probabilities: the arithmetic, and the shapes that the APIs show."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.probs import LOWEST, Probs, Scored, after, before, largest, log_normalizer

PROBS = Probs([b"a", b"bc", b"\xc3", b"\xc3\xa9", b"", b"\xff"])


def softmax_log(row: np.ndarray) -> np.ndarray:
    wide = row.astype(np.float64)
    shifted = wide - wide.max()
    return shifted - np.log(np.exp(shifted).sum())


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 5, 63, 64, 1000, 49152]), st.integers(0, 50))
def test_largest_equals_a_full_sort(seed: int, size: int, n: int) -> None:
    row = np.random.default_rng(seed).normal(0, 4, size).astype(np.float32)
    assert row[largest(row, n)].tolist() == np.sort(row)[::-1][:n].tolist()


@pytest.mark.parametrize("value", [0.0, -1e30])
def test_largest_of_equal_values(value: float) -> None:
    assert largest(np.full(49152, value, np.float32), 3).tolist() == [0, 1, 2]


def test_log_probabilities_equal_a_direct_softmax() -> None:
    row = np.random.default_rng(1).normal(0, 5, 49152).astype(np.float32)
    expected = softmax_log(row)
    scored = before(row, 7, 20)
    assert scored.value == pytest.approx(expected[7], abs=1e-4)
    assert scored.values == pytest.approx(expected[scored.best].tolist(), abs=1e-4)


def test_large_logits_do_not_overflow() -> None:
    assert log_normalizer(np.full(1000, 3e4, np.float32)) == pytest.approx(3e4 + math.log(1000))


def test_impossible_tokens_show_the_lowest_number() -> None:
    row = np.array([0, -np.inf, -np.inf], np.float32)
    scored = before(row, 1, 2)
    assert scored.value == LOWEST
    assert scored.values == [0.0, LOWEST]


def test_candidates_after_sampling_leave_out_the_impossible() -> None:
    scored = after([(3, 0.75), (1, 0.25), (2, 0.0)], 1, 3)
    assert (scored.value, scored.best, scored.values) == (0.25, [3, 1], [0.75, 0.25])
    assert after([(3, 1.0)], 9, 3).value == 0.0


def test_the_native_item() -> None:
    item = json.loads(bytes(PROBS.item(Scored(1, -0.5, [1, 2], [-0.5, -1e-07]))))
    top = [
        {"id": 1, "token": "bc", "bytes": [98, 99], "logprob": -0.5},
        {"id": 2, "token": "", "bytes": [195], "logprob": -1e-07},
    ]
    assert item == {"id": 1, "token": "bc", "bytes": [98, 99], "logprob": -0.5, "top_logprobs": top}


def test_the_native_item_after_sampling() -> None:
    item = json.loads(bytes(PROBS.item(Scored(0, 0.75, [0], [0.75], after=True))))
    top = [{"id": 0, "token": "a", "bytes": [97], "prob": 0.75}]
    assert item == {"id": 0, "token": "a", "bytes": [97], "prob": 0.75, "top_probs": top}


def test_the_legacy_shape() -> None:
    scored = [None, Scored(1, -0.5, [1, 0], [-0.5, -2.0]), Scored(0, 0.5, [0], [0.5], after=True)]
    shown = PROBS.legacy(scored, [3, 1, 0], 10)
    assert shown.tokens == ["é", "bc", "a"]
    assert shown.text_offset == [10, 11, 13]
    assert shown.token_logprobs == [None, -0.5, math.log(0.5)]
    assert shown.top_logprobs == [None, {"bc": -0.5, "a": -2.0}, {"a": math.log(0.5)}]
    assert [None if one is None else json.loads(bytes(one))["id"] for one in shown.content] == [None, 1, 0]


def test_of_alternatives_with_equal_text_the_likeliest_is_shown() -> None:
    assert PROBS.tops(Scored(2, -1.0, [2, 4, 5], [-1.0, -2.0, -3.0])) == {"": -1.0}
