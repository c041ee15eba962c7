"""The forms in which a prompt may come, as token ids: `spec/generation.md` §5."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from api.errors import invalid

Tokens = npt.NDArray[np.int32]
T = TypeVar("T")

INLINE_CHARACTERS = 2048  # longer text is tokenised in a thread: about 1 ms
ELEMENTS = (
    '"prompt" elements must be a string, a list of tokens, a JSON object containing a prompt string, '
    "or a list of mixed strings & tokens."
)


async def tokenize_prompts(vocab: Any, prompt: Any) -> list[Tokens]:
    """The token ids of each prompt in `prompt`; raises `ApiError` 400."""
    if prompt is None:
        raise invalid('"prompt" is required')
    return await off_loop(size_of(prompt), read_prompts, vocab, prompt)


async def off_loop(size: int, function: Callable[..., T], *arguments: Any) -> T:
    """Call `function`, in a thread when `size` characters would hold up the other requests."""
    if size <= INLINE_CHARACTERS:
        return function(*arguments)
    return await asyncio.to_thread(function, *arguments)


def size_of(prompt: Any) -> int:
    """About how many characters (or ids) there are to read; stops early."""
    if isinstance(prompt, str):
        return len(prompt)
    if isinstance(prompt, dict):
        return size_of(prompt.get("prompt_string"))
    if not isinstance(prompt, list):
        return 0
    total = 0
    for item in prompt:
        total += 1 if isinstance(item, int) else size_of(item)
        if total > INLINE_CHARACTERS:
            break
    return total


def read_prompts(vocab: Any, prompt: Any) -> list[Tokens]:
    """As `tokenize_prompts`, in the calling thread."""
    several = isinstance(prompt, list) and not any(is_id(item) for item in prompt)
    prompts = [read_prompt(vocab, item) for item in prompt] if several else [read_prompt(vocab, prompt)]
    if not prompts:
        raise invalid('"prompt" must not be empty')
    return prompts


def read_prompt(vocab: Any, prompt: Any) -> Tokens:
    """The ids of one prompt."""
    if isinstance(prompt, str):
        return encode(vocab, prompt, add_special=True)
    if isinstance(prompt, dict):
        return read_object(vocab, prompt)
    if isinstance(prompt, list) and all(is_id(item) for item in prompt):
        return checked(vocab, prompt)
    if isinstance(prompt, list) and all(is_id(item) or isinstance(item, str) for item in prompt):
        return read_mixed(vocab, prompt, add_special=True, parse_special=True)
    raise invalid(ELEMENTS)


def read_object(vocab: Any, prompt: dict[str, Any]) -> Tokens:
    """`{"prompt_string": …}`; media need a model that takes them."""
    if prompt.get("multimodal_data"):
        raise invalid("Multimodal data provided, but model does not support multimodal requests.")
    text = prompt.get("prompt_string")
    if not isinstance(text, str):
        raise invalid(ELEMENTS)
    return encode(vocab, text, add_special=True)


def read_mixed(vocab: Any, items: list[Any], *, add_special: bool, parse_special: bool) -> Tokens:
    """Strings and ids in turn; only a string at the front gets the vocabulary's BOS."""
    parts = [
        encode(vocab, item, add_special=add_special and index == 0, parse_special=parse_special)
        if isinstance(item, str)
        else checked(vocab, [item])
        for index, item in enumerate(items)
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.int32)


def encode(vocab: Any, text: str, *, add_special: bool, parse_special: bool = True) -> Tokens:
    """The ids of `text`."""
    tokens: Tokens = vocab.encode(text, add_special=add_special, parse_special=parse_special)
    return tokens


def checked(vocab: Any, ids: list[Any]) -> Tokens:
    """Ids as an array; raises `ApiError` when one is not in the vocabulary."""
    if not all(is_id(token) and 0 <= token < vocab.n_tokens for token in ids):
        raise invalid("Prompt contains invalid tokens")
    return np.array(ids, np.int32)


def is_id(value: Any) -> bool:
    """Whether a JSON value is an integer."""
    return isinstance(value, int) and not isinstance(value, bool)
