"""POST /rerank, /reranking, /v1/rerank and /v1/reranking, in Jina's and TEI's form: `spec/endpoints.md` §7."""

import re
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from falcon.asgi import Request, Response
from msgspec import Struct

from api.body import read_object
from api.embeddings import number
from api.errors import ApiError, encode, invalid
from api.fields import flag
from api.inputs import Inputs, too_long
from api.prompts import Tokens, off_loop
from api.safe_text import Protection, TextGuard
from api.service import Service
from api.vectors import embed

NOT_RANKING = "This server does not support reranking. Start it with `--reranking`"
SLOTS = re.compile(r"\{(query|document)\}")


class Ask(Struct, frozen=True):
    """A checked request. `tei`: the documents came as `texts`, and the answer is in that form."""

    query: str
    documents: list[str]
    top_n: int
    tei: bool
    with_text: bool
    sigmoid: bool
    truncate: bool


class Rerank:
    """Scores documents by how well they answer a query."""

    def __init__(self, service: Service) -> None:
        self.service = service

    @cached_property
    def prompt(self) -> "Prompt":
        """How this model wants query and document to be put; made on first use."""
        return Prompt(self.service.vocab)

    async def on_post(self, req: Request, resp: Response) -> None:
        """The best documents first."""
        info = self.service.info
        if info.n_embed_tokens is None or info.model.pooling != "rank":
            raise ApiError(501, NOT_RANKING)
        body = await read_object(req, self.service.config.http.max_body_mib)
        ask = read(body)
        size = len(ask.documents) * len(ask.query) + sum(map(len, ask.documents))
        inputs = await off_loop(size, self.tokenize, ask, info.n_embed_tokens)
        scored = await embed(self.service, inputs)
        scores = scored.matrix[:, 0].astype(np.float64)
        if ask.sigmoid and scored.matrix.shape[1] == 1:
            scores = 1 / (1 + np.exp(-scores))
        resp.data = encode(answer(ask, scores, scored.n_tokens, self.service.alias(body.get("model"))))

    def tokenize(self, ask: Ask, limit: int) -> Inputs:
        """One input per document; raises 400 for one that is too long unless it may be cut."""
        parts = []
        for index, document in enumerate(ask.documents):
            tokens = self.prompt.tokens(ask.query, document)
            if len(tokens) > limit and ask.truncate:
                tokens = self.prompt.cut(ask.query, document, limit)
            if len(tokens) > limit:
                raise too_long(index, len(tokens), limit)
            parts.append(tokens)
        return Inputs.of(parts)


class Prompt:
    """The model's `rerank` template, or `[BOS] query [EOS] [SEP] document [EOS]` with the tokens its vocabulary adds.

    Nothing in a query or a document becomes a special token.
    """

    def __init__(self, vocab: Any) -> None:
        self.vocab = vocab
        self.template: str | None = vocab.chat_template("rerank")
        self.guard = TextGuard(vocab)
        end = vocab.sep if vocab.eos is None else vocab.eos
        self.begin = some(vocab.bos if vocab.add_bos else None)
        self.end = some(end if vocab.add_eos else None)
        self.between = np.concatenate([self.end, some(vocab.sep if vocab.add_sep else None)])

    def tokens(self, query: str, document: str) -> Tokens:
        """The input for one document."""
        if self.template is not None:
            return self.rendered(self.template, query, document)
        return np.concatenate([self.begin, self.plain(query), self.between, self.plain(document), self.end])

    def cut(self, query: str, document: str, limit: int) -> Tokens:
        """As `tokens`, with the end of the document left out so that it fits, if that is enough."""
        kept, tokens = self.plain(document), self.tokens(query, document)
        while len(tokens) > limit and len(kept):
            kept = kept[: max(0, len(kept) - (len(tokens) - limit))]
            if self.template is None:
                return np.concatenate([self.begin, self.plain(query), self.between, kept, self.end])
            text = self.vocab.decode(kept.tolist(), special=True).decode("utf-8", "ignore")
            tokens = self.rendered(self.template, query, text)
        return tokens

    def rendered(self, template: str, query: str, document: str) -> Tokens:
        """The template's text with both put in."""
        protection = Protection(self.guard.texts, (template, query, document))
        safe = {"query": protection.fence(query), "document": protection.fence(document)}
        text = SLOTS.sub(lambda slot: safe[slot[1]], template)
        return self.guard.tokenize(protection.restore(text), add_special=False)

    def plain(self, text: str) -> Tokens:
        """The tokens of a text in which nothing is special."""
        tokens: Tokens = self.vocab.encode(text, add_special=False, parse_special=False)
        return tokens


def some(token: int | None) -> Tokens:
    """The token, if there is one."""
    return np.array([] if token is None else [token], np.int32)


def read(body: dict[str, Any]) -> Ask:
    """The request; raises 400 that names what is wrong."""
    if "query" not in body:
        raise invalid('"query" must be provided')
    if not isinstance(body["query"], str):
        raise invalid('"query" must be a string')
    tei = "texts" in body
    given = body.get("documents") or body.get("texts")
    documents = [text_of(document) for document in given] if isinstance(given, list) else []
    if not documents:
        raise invalid('"documents" must be a non-empty string array')
    return Ask(
        query=body["query"],
        documents=documents,
        top_n=number(body, "top_n", len(documents), low=0, high=1 << 31),
        tei=tei,
        with_text=flag(body, "return_text" if tei else "return_documents"),
        sigmoid=not flag(body, "raw_scores", True),
        truncate=flag(body, "truncate"),
    )


def text_of(document: Any) -> str:
    """A document's text: itself, or the `text` of an object (Jina's long form)."""
    text = document.get("text") if isinstance(document, dict) else document
    if not isinstance(text, str):
        raise invalid('"documents" must be a non-empty string array')
    return text


def answer(ask: Ask, scores: npt.NDArray[np.float64], n_tokens: int, model: str) -> Any:
    """The best `top_n`, best first; of equal ones the earlier first."""
    order = np.argsort(-scores, kind="stable")[: ask.top_n].tolist()
    if ask.tei:
        return [
            {"index": i, "score": float(scores[i]), **({"text": ask.documents[i]} if ask.with_text else {})}
            for i in order
        ]
    results: list[dict[str, Any]] = [{"index": i, "relevance_score": float(scores[i])} for i in order]
    if ask.with_text:
        results = [{**result, "document": {"text": ask.documents[result["index"]]}} for result in results]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return {"model": model, "object": "list", "usage": usage, "results": results}
