"""POST /embedding, /embeddings and /v1/embeddings: `spec/endpoints.md` §7."""

import base64
from typing import Any

from falcon.asgi import Request, Response
from msgspec import UNSET, Raw, Struct, UnsetType

from api.body import read_object
from api.errors import ApiError, encode, invalid
from api.fields import flag, integer
from api.inputs import limit_of
from api.service import Service
from api.vectors import Embedded, Floats, embed_texts, normalized, off_floats, write_rows

FORMATS = "The format to return the embeddings in. Can be either float or base64"
NOT_POOLED = "Pooling type 'none' is not OAI compatible. Please use a different pooling type"
RANKS = "This server ranks documents. For embeddings, start it with `--embeddings` in place of `--reranking`"


class Options(Struct, frozen=True):
    """What a request asks for beside its inputs."""

    norm: int
    dimensions: int | None = None
    base64: bool = False
    truncate: bool = False


class NativeItem(Struct):
    """An input's vectors, one or one per token."""

    index: int
    embedding: list[Raw]


class OpenAIItem(Struct):
    """An input's vector, numbers or base64 of little-endian float32."""

    index: int
    embedding: Raw | str
    object: str = "embedding"
    encoding_format: str | UnsetType = UNSET


class OpenAIAnswer(Struct):
    """The answer of /v1/embeddings."""

    data: list[OpenAIItem]
    model: str
    usage: dict[str, int]
    object: str = "list"


class Embeddings:
    """Native embeddings."""

    openai = False

    def __init__(self, service: Service) -> None:
        self.service = service

    async def on_post(self, req: Request, resp: Response) -> None:
        """Vectors for all inputs at once."""
        limit_of(self.service.info)
        pooling = self.service.info.model.pooling
        if pooling == "rank":
            raise ApiError(501, RANKS)
        if self.openai and pooling == "none":
            raise invalid(NOT_POOLED)
        body = await read_object(req, self.service.config.http.max_body_mib)
        name = "input" if "input" in body else "content"
        if name not in body:
            raise invalid('"input" or "content" must be provided')
        options = self.options(body)
        embedded = await embed_texts(self.service, body[name], truncate=options.truncate, name=name)
        write = write_openai if self.openai and name == "input" else write_native
        model = self.service.alias(body.get("model"))
        resp.data = await off_floats(embedded.matrix, write, embedded, options, model)

    def options(self, body: dict[str, Any]) -> Options:
        """The checked options of a request."""
        form = body.get("encoding_format")
        if form not in (None, "float", "base64"):
            raise invalid(FORMATS)
        return Options(
            norm=number(body, "embd_normalize", self.service.config.engine.embd_normalize, low=-1),
            dimensions=number(body, "dimensions", None, low=1, high=self.service.info.model.n_embd_out),
            base64=form == "base64",
            truncate=flag(body, "truncate"),
        )


class OpenAIEmbeddings(Embeddings):
    """OpenAI's embeddings."""

    openai = True


def number(body: dict[str, Any], name: str, default: Any, low: int, high: int = 1 << 16) -> Any:
    """An optional integer within limits."""
    if body.get(name) is None:
        return default
    try:
        value = integer(body[name])
    except ValueError as error:
        raise invalid(f"Field '{name}': {error}") from None
    if not low <= value <= high:
        raise invalid(f"Field '{name}': Value must be between {low} <= value <= {high}, but got {value}")
    return value


def finished(matrix: Floats, embedded: Embedded, options: Options) -> Floats:
    """The vectors as they are sent: cut, then normalised unless they are those of single tokens."""
    cut = matrix[:, : options.dimensions]
    return cut if embedded.counts is not None else normalized(cut, options.norm)


def write_native(matrix: Floats, embedded: Embedded, options: Options, model: str) -> bytes:
    """llama-server's own form."""
    rows = write_rows(finished(matrix, embedded, options))
    counts = embedded.counts or [1] * len(rows)
    following = iter(rows)
    return encode([NativeItem(index, [next(following) for _ in range(n)]) for index, n in enumerate(counts)])


def write_openai(matrix: Floats, embedded: Embedded, options: Options, model: str) -> bytes:
    """OpenAI's form."""
    vectors = finished(matrix, embedded, options)
    usage = {"prompt_tokens": embedded.n_tokens, "total_tokens": embedded.n_tokens}
    if not options.base64:
        items = [OpenAIItem(index, row) for index, row in enumerate(write_rows(vectors))]
        return encode(OpenAIAnswer(items, model, usage))
    texts = [base64.b64encode(row).decode("ascii") for row in vectors.astype("<f4", order="C", copy=False)]
    return encode(
        OpenAIAnswer(
            [OpenAIItem(i, text, encoding_format="base64") for i, text in enumerate(texts)],
            model,
            usage,
        )
    )
