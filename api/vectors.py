"""From inputs to vectors, for every API that offers embeddings: tokenise, ask the engine, gather, normalise."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Raw, Struct
from msgspec.json import Encoder

from api.errors import ApiError
from api.inputs import Inputs, fit, limit_of, read_inputs
from api.prompts import off_loop, size_of
from api.service import Service
from ipc.messages import Final, Vectors

Floats = npt.NDArray[np.float32]
T = TypeVar("T")

INT16_RANGE = 32760.0  # of norm 0
INLINE_FLOATS = 4096  # more are normalised and written in a thread: about 1 ms

encode = Encoder().encode


class Embedded(Struct, frozen=True):
    """One vector per input (`matrix`), or with pooling "none" one per token (then `counts` says how many each has)."""

    matrix: Floats
    n_tokens: int
    counts: list[int] | None = None

    def groups(self) -> list[Floats]:
        """The vectors of each input: [n, size]."""
        ends = np.arange(1, len(self.matrix)) if self.counts is None else np.cumsum(self.counts)[:-1]
        return np.split(self.matrix, ends)


async def embed_texts(service: Service, value: Any, *, truncate: bool, name: str = "input") -> Embedded:
    """Raw vectors for the JSON `value` of field `name`: a text, token ids, or a list of such. Raises `ApiError`."""
    limit, vocab = limit_of(service.info), service.vocab

    def tokenize() -> Inputs:
        return Inputs.of(fit(read_inputs(vocab, value, name), limit, truncate=truncate, vocab=vocab))

    return await embed(service, await off_loop(size_of(value), tokenize))


async def embed(service: Service, inputs: Inputs) -> Embedded:
    """Raw vectors of `inputs`, in order. A caller that is cancelled takes the engine's work with it."""
    gathered = Gathered(len(inputs))
    stream = await service.client.submit(inputs.task())
    try:
        async for result in stream:
            if isinstance(result, Vectors):
                rows = [service.client.row(ref) for ref in result.rows]
                gathered.put(result, rows[0] if len(rows) == 1 else np.concatenate(rows))
            elif isinstance(result, Final) and result.error is not None:
                raise ApiError.of(result.error)
    finally:
        await stream.close()
    matrix, counts = gathered.joined()
    if not np.isfinite(matrix).all():
        raise ApiError(500, f"The model {service.name} computed vectors with NaN or infinite values")
    return Embedded(matrix, len(inputs.tokens), counts)


class Gathered:
    """Vectors as they come in, each input's in its place."""

    def __init__(self, n_inputs: int) -> None:
        self.n_inputs = n_inputs
        self.n_got = 0
        self.matrix: Floats | None = None  # pooled
        self.tokens: list[Floats] = []  # not pooled: a block per input

    def put(self, result: Vectors, floats: Floats) -> None:
        """Keep the vectors of `result`, laid one after the other in `floats`."""
        self.n_got += len(result.indices)
        if result.n_rows:
            self.put_tokens(result, floats)
            return
        rows = floats.reshape(len(result.indices), -1)
        if self.matrix is None:
            self.matrix = np.zeros((self.n_inputs, rows.shape[1]), np.float32)
        self.matrix[result.indices] = rows

    def put_tokens(self, result: Vectors, floats: Floats) -> None:
        """As `put`, several rows for each input."""
        self.tokens = self.tokens or [np.empty((0, 0), np.float32)] * self.n_inputs
        rows = floats.reshape(sum(result.n_rows), -1)
        for index, block in zip(result.indices, np.split(rows, np.cumsum(result.n_rows)[:-1]), strict=True):
            self.tokens[index] = block

    def joined(self) -> tuple[Floats, list[int] | None]:
        """All vectors, and how many each input has when that is not one."""
        if self.n_got != self.n_inputs:
            raise ApiError(500, f"the engine sent {self.n_got} vectors for {self.n_inputs} inputs")
        if self.tokens:
            return np.concatenate(self.tokens), [len(block) for block in self.tokens]
        assert self.matrix is not None
        return self.matrix, None


def normalized(matrix: Floats, norm: int) -> Floats:
    """Each row divided by its norm: -1 none, 0 largest to the int16 range, 1 taxicab, 2 euclidean, p the p-norm.

    A row of zeros stays one.
    """
    if norm == -1:
        return matrix
    wide = np.abs(matrix.astype(np.float64))
    size = wide.max(axis=1) / INT16_RANGE if norm == 0 else p_norm(wide, norm)
    scale = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0)
    return (matrix * scale[:, None]).astype(np.float32)


def p_norm(wide: npt.NDArray[np.float64], p: int) -> npt.NDArray[np.float64]:
    """Of each row of absolute values; scaled, or a large power would overflow."""
    top = wide.max(axis=1)
    share = np.divide(wide, top[:, None], out=np.zeros_like(wide), where=top[:, None] > 0)
    norms: npt.NDArray[np.float64] = top * np.power(share, p).sum(axis=1) ** (1.0 / p)
    return norms


def write_rows(matrix: Floats) -> list[Raw]:
    """Each row as a JSON array."""
    return [Raw(encode(row.tolist())) for row in matrix]  # row by row, so that other threads get their turns


async def off_floats(matrix: Floats, function: Callable[..., T], *arguments: Any) -> T:
    """`function(matrix, …)`, in a thread when that would hold up other requests."""
    if matrix.size <= INLINE_FLOATS:
        return function(matrix, *arguments)
    return await asyncio.to_thread(function, matrix, *arguments)
