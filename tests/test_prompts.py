"""The forms in which a prompt may come."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.errors import ApiError
from api.prompts import ELEMENTS, INLINE_CHARACTERS, read_prompts, size_of, tokenize_prompts
from tests.tiny_vocab import TinyVocab

VOCAB = TinyVocab(add_bos=True)


def tokens(prompt: Any) -> list[list[int]]:
    return [one.tolist() for one in asyncio.run(tokenize_prompts(VOCAB, prompt))]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [[256, 97, 98]]),
        ("a</s>", [[256, 97, 257]]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([1, "ab", 2, "c"], [[1, 97, 98, 2, 99]]),
        (["ab", 1], [[256, 97, 98, 1]]),
        ({"prompt_string": "a"}, [[256, 97]]),
        (["a", "b"], [[256, 97], [256, 98]]),
        (["a", [1, 2], ["b", 3], {"prompt_string": "c"}], [[256, 97], [1, 2], [256, 98, 3], [256, 99]]),
        ([[1, 2]], [[1, 2]]),
        ([[]], [[]]),
        ("", [[256]]),
    ],
)
def test_prompt_forms(prompt: Any, expected: list[list[int]]) -> None:
    assert tokens(prompt) == expected


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (None, '"prompt" is required'),
        ([], '"prompt" must not be empty'),
        (3, ELEMENTS),
        (True, ELEMENTS),
        (1.5, ELEMENTS),
        ({}, ELEMENTS),
        ([1, None], ELEMENTS),
        ([True], ELEMENTS),
        ([["a", 1.5]], ELEMENTS),
        ([-1], "Prompt contains invalid tokens"),
        ([261], "Prompt contains invalid tokens"),
        (["a", 10**30], "Prompt contains invalid tokens"),
        (
            {"prompt_string": "a", "multimodal_data": ["x"]},
            "Multimodal data provided, but model does not support multimodal requests.",
        ),
    ],
)
def test_bad_prompts_are_refused(prompt: Any, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        tokens(prompt)
    assert (caught.value.code, caught.value.message) == (400, message)


def test_a_long_prompt_is_tokenised_whole() -> None:
    text = "x" * (INLINE_CHARACTERS + 1)
    assert tokens(text) == [[256] + [120] * len(text)]
    assert tokens([text, "a"])[1] == [256, 97]


def test_the_size_of_a_prompt() -> None:
    assert [size_of(one) for one in ("abc", [1, 2], ["ab", [1]], {"prompt_string": "ab"}, None)] == [3, 2, 3, 2, 0]


ITEMS = st.none() | st.booleans() | st.integers(-5, 300) | st.floats() | st.text(max_size=5)
PROMPTS = st.recursive(
    ITEMS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["prompt_string", "x"]), inner)
)


@given(PROMPTS)
def test_any_prompt_is_tokens_or_a_400(prompt: Any) -> None:
    try:
        found = read_prompts(VOCAB, prompt)
    except ApiError as error:
        assert error.code == 400
    else:
        assert all(0 <= token < VOCAB.n_tokens for one in found for token in one)
