"""Probabilities of tokens: from logits rows to what the APIs show; `spec/generation.md` §7.

A row has one logit per token of the vocabulary. The arithmetic is float32 numpy; for 49k tokens and the best 20
it takes about 0.15 ms, most of it exp().
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw, Struct

Row = npt.NDArray[np.float32]

LOWEST = -3.4028234663852886e38  # shown for probability 0; JSON has no infinity
BLOCK = 64
encode = msgspec.json.Encoder().encode


class Scored(Struct, gc=False):
    """A token with its value and those of the best alternatives; log-probabilities, or probabilities when `after`."""

    token: int
    value: float
    best: list[int]
    values: list[float]
    after: bool = False  # sampling


class Legacy(Struct):
    """`logprobs` of /v1/completions; `content` is llama-server's list."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]
    content: list[Raw | None]


def before(row: Row, token: int, n: int) -> Scored:
    """`token` and the `n` likeliest, from raw logits."""
    normalizer = log_normalizer(row)
    best = largest(row, n)
    values = [finite(value) for value in (row[best] - normalizer).tolist()]
    return Scored(token, finite(float(row[token]) - normalizer), best.tolist(), values)


def after(candidates: Sequence[tuple[int, float]], token: int, n: int) -> Scored:
    """`token` and the `n` likeliest of the candidates that sampling left, best first."""
    kept = [(candidate, probability) for candidate, probability in candidates if probability > 0]
    best, values = [t for t, _ in kept[:n]], [p for _, p in kept[:n]]
    return Scored(token, dict(kept).get(token, 0.0), best, values, after=True)


def largest(row: Row, n: int) -> npt.NDArray[np.intp]:
    """Indices of the `n` largest values, largest first.

    The n-th largest of the maxima of small blocks is a lower bound for the n-th largest value, so that one
    comparison leaves a few candidates to sort.
    """
    n = min(n, row.size)
    blocks = row.size // BLOCK
    if blocks < 4 * n or n == 0:
        return np.argsort(-row, kind="stable")[:n]
    maxima = row[: blocks * BLOCK].reshape(BLOCK, blocks).max(axis=0)  # strided blocks: vectorised
    bound = np.partition(maxima, blocks - n)[blocks - n]
    found = np.flatnonzero(row >= bound)
    return found[np.argsort(-row[found], kind="stable")[:n]]


def log_normalizer(row: Row) -> float:
    """log(sum(exp(row)))."""
    top = row.max()
    shifted = row - top
    return float(top) + math.log(float(np.exp(shifted, out=shifted).sum()))


def finite(logprob: float) -> float:
    """`logprob`, or the smallest float32 for -inf and nan."""
    return logprob if logprob > LOWEST else LOWEST


class Probs:
    """Renders scored tokens; knows the vocabulary's pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        """`pieces`: text of each token, special ones as they show in the output."""
        self.pieces = pieces
        self.heads: dict[int, bytes] = {}  # JSON of a token's id, text and bytes, without the closing brace

    def item(self, scored: Scored) -> Raw:
        """llama-server's JSON object for one token."""
        name, tops = (b"prob", b"top_probs") if scored.after else (b"logprob", b"top_logprobs")
        pairs = zip(scored.best, scored.values, strict=True)
        rest = b",".join([b'%b,"%b":%a}' % (self.head(token), name, value) for token, value in pairs])
        head = self.head(scored.token)
        return Raw(b'%b,"%b":%a,"%b":[%b]}' % (head, name, scored.value, tops, rest))

    def items(self, scored: Sequence[Scored]) -> list[Raw]:
        """llama-server's list."""
        return [self.item(one) for one in scored]

    def head(self, token: int) -> bytes:
        """The beginning of a token's object."""
        head = self.heads.get(token)
        if head is None:
            piece = self.pieces[token]
            text = {"id": token, "token": valid_prefix(piece), "bytes": list(piece)}
            head = self.heads[token] = encode(text)[:-1]
        return head

    def text(self, token: int) -> str:
        """The piece's valid UTF-8 beginning."""
        return valid_prefix(self.pieces[token])

    def legacy(self, scored: Sequence[Scored | None], tokens: Sequence[int], offset: int) -> Legacy:
        """OpenAI's old shape for `tokens`, whose text begins at character `offset`. None: a token without a list."""
        texts = [self.text(token) for token in tokens]
        starts = list(accumulate((len(text) for text in texts), initial=offset))[: len(texts)]
        return Legacy(
            tokens=texts,
            token_logprobs=[None if one is None else logprob(one.value, one.after) for one in scored],
            top_logprobs=[None if one is None else self.tops(one) for one in scored],
            text_offset=starts,
            content=[None if one is None else self.item(one) for one in scored],
        )

    def tops(self, scored: Scored) -> dict[str, float]:
        """Text to log-probability of the alternatives; of those with equal text the likeliest."""
        found: dict[str, float] = {}
        for token, value in zip(scored.best, scored.values, strict=True):
            found.setdefault(self.text(token), logprob(value, scored.after))
        return found


def logprob(value: float, after: bool) -> float:
    """The log-probability of a value of either kind."""
    if not after:
        return value
    return math.log(value) if value > 0 else LOWEST


def valid_prefix(piece: bytes) -> str:
    """The text of `piece` up to the first byte that is no UTF-8."""
    try:
        return piece.decode()
    except UnicodeDecodeError as error:
        return piece[: error.start].decode()


def scores(rows: Sequence[Row], tokens: Sequence[Any], n: int) -> list[Scored]:
    """`before` for several rows; a few milliseconds for a long prompt, so call it in a thread."""
    return [before(row, int(token), n) for row, token in zip(rows, tokens, strict=True)]
