"""Whether a grammar takes a text, by llguidance itself on a vocabulary of bytes and a few control tokens."""

import re
from functools import cache

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

CONTROLS = (
    "<|channel|>",
    "<|message|>",
    "<|start|>",
    "<|end|>",
    "<|constrain|>",
    "<|call|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "[THINK]",
    "[/THINK]",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    "<think>",
    "</think>",
    "<|open|>",
    "<|close|>",
    "<|sep|>",
)
SPECIALS = {text: 257 + i for i, text in enumerate(CONTROLS)}
EOS = 256


class ByteVocab:
    eos_token_id = EOS
    bos_token_id = None
    tokens = (*(bytes([i]) for i in range(256)), b"<eos>", *(text.encode() for text in CONTROLS))
    special_token_ids = (EOS, *SPECIALS.values())

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@cache
def tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(ByteVocab()))


def tokens_of(text: str, specials: dict[str, int]) -> list[int]:
    tokens: list[int] = []
    pos = 0
    for found in re.finditer("|".join(map(re.escape, specials)) or r"(?!)", text):
        tokens += [*text[pos : found.start()].encode(), specials[found.group()]]
        pos = found.end()
    return tokens + list(text[pos:].encode())


def taken(source: str, text: str, specials: dict[str, int] | None = None) -> int | None:
    """How many tokens of `text` the grammar takes; None if it takes all and may end there."""
    matcher = LLMatcher(tokenizer(), source, log_level=0)
    assert not matcher.is_error(), f"{matcher.get_error()}\n{source}"
    tokens = tokens_of(text, specials or {})
    n = matcher.try_consume_tokens(tokens)
    assert not matcher.is_error(), matcher.get_error()
    return None if n == len(tokens) and matcher.is_accepting() else n
