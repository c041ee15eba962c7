"""POST /api/embed and the older /api/embeddings, in Ollama's shapes."""

import time
from typing import Any

from falcon.asgi import Request, Response

from api.body import read_object
from api.embeddings import NOT_POOLED, RANKS, number
from api.errors import ApiError, encode, invalid
from api.inputs import limit_of
from api.members import boolean_or
from api.service import Service
from api.vectors import Embedded, Floats, embed_texts, normalized, off_floats, write_rows

EUCLIDEAN = 2


class OllamaEmbed:
    """Vectors of length one for one or several texts. Without any there are none: the model is only asked for."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def on_post(self, req: Request, resp: Response) -> None:
        """Vectors for all inputs at once."""
        started = time.perf_counter_ns()
        body = await read_object(req, self.service.config.http.max_body_mib)
        rows, n_tokens = [], 0
        if body.get("input"):
            embedded = await self.embed(body["input"], "input", boolean_or(body, "truncate", True))
            size = self.service.info.model.n_embd_out
            dimensions = number(body, "dimensions", None, low=1, high=size)
            rows, n_tokens = await off_floats(embedded.matrix, shortened, dimensions), embedded.n_tokens
        shown: dict[str, Any] = {"model": self.service.alias(body.get("model")), "embeddings": rows}
        shown |= {"total_duration": time.perf_counter_ns() - started, "load_duration": 0}
        resp.data = encode({**shown, "prompt_eval_count": n_tokens})

    async def embed(self, value: Any, name: str, truncate: bool) -> Embedded:
        """One vector for each input; raises if the model makes none such."""
        limit_of(self.service.info)
        if self.service.info.model.pooling == "rank":
            raise ApiError(501, RANKS)
        if self.service.info.model.pooling == "none":
            raise invalid(NOT_POOLED.replace("OAI", "Ollama"))
        return await embed_texts(self.service, value, truncate=truncate, name=name)


class OllamaEmbeddings(OllamaEmbed):
    """One text, and its vector as the model gives it."""

    async def on_post(self, req: Request, resp: Response) -> None:
        """The vector."""
        body = await read_object(req, self.service.config.http.max_body_mib)
        rows = []
        if body.get("prompt"):
            embedded = await self.embed(body["prompt"], "prompt", truncate=True)
            rows = write_rows(embedded.matrix[:1])
        resp.data = encode({"embedding": rows[0] if rows else []})


def shortened(matrix: Floats, dimensions: int | None) -> Any:
    """The rows as JSON, cut to `dimensions` and made one long."""
    return write_rows(normalized(matrix[:, :dimensions], EUCLIDEAN))
