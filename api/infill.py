"""POST /infill: completion of code between a prefix and a suffix; `spec/endpoints.md` §4."""

from typing import Any

import numpy as np
from falcon.asgi import Request, Response
from msgspec import Struct

from api.body import read_object
from api.completions import answer
from api.errors import invalid, unsupported
from api.native import Native
from api.prompts import Tokens, encode, off_loop
from api.service import Service

SNIPPET = "\n\n--- snippet ---\n\n"
PROJECT = "myproject\n"
FILE = "filename\n"
EXTRA = '"input_extra" must be an array of {"filename": string, "text": string}'


class Extra(Struct):
    """A piece of another file."""

    text: str
    filename: str


class Parts(Struct):
    """The pieces of text that a prompt is made of."""

    prefix: str
    suffix: str
    prompt: str
    extra: list[Extra]

    def size(self) -> int:
        """Characters to tokenise."""
        return len(self.prefix) + len(self.suffix) + len(self.prompt) + sum(len(one.text) for one in self.extra)


class Budget(Struct):
    """Most tokens of each part; engine sizes decide."""

    prefix: int
    suffix: int
    extra: int


class Infill:
    """Fill in the middle."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def on_post(self, req: Request, resp: Response) -> None:
        """Read the request and generate."""
        service = self.service
        body = await read_object(req, service.config.http.max_body_mib)
        check_tokens(service.vocab)
        parts = read_parts(body)
        params = service.fields.read(body)
        tokens = await off_loop(parts.size(), self.assemble, parts)
        tasks = params.tasks(tokens)
        await answer(service, resp, params, tasks, Native(service, params, tasks, service.alias(body.get("model"))))

    def assemble(self, parts: Parts) -> Tokens:
        """The prompt's tokens: extra files, then prefix and suffix between their marks."""
        vocab = self.service.vocab
        prompt = encode(vocab, parts.prompt, add_special=False)
        prefix, suffix = (plain(vocab, text) for text in (parts.prefix, parts.suffix))
        extra, budget = self.extra_tokens(parts.extra), self.budget(len(prompt))
        before = joined([vocab.fim_pre], prefix[len(prefix) - min(len(prefix), budget.prefix) :], prompt)
        behind = joined([vocab.fim_suf], suffix[: budget.suffix])
        pair = (behind, before) if self.service.config.engine.spm_infill else (before, behind)
        bos = [vocab.bos] if vocab.add_bos and vocab.bos is not None else []
        kept = extra[len(extra) - min(len(extra), budget.extra) :]
        return joined(kept, bos, *pair, [vocab.fim_mid])

    def budget(self, n_prompt: int) -> Budget:
        """How much fits: three quarters of a batch for the prefix, the rest for the suffix."""
        info = self.service.info
        quarter = info.n_batch // 4
        predict = self.service.config.engine.predict
        room = info.n_ctx_slot - info.n_batch - 2 * (-1 if predict is None else predict)
        return Budget(3 * quarter, max(quarter - (2 + n_prompt), 0), max(room, 0))

    def extra_tokens(self, extra: list[Extra]) -> Tokens:
        """The other files, each behind its name."""
        vocab = self.service.vocab
        parts: list[Any] = []
        if vocab.fim_rep is not None:
            parts += [[vocab.fim_rep], plain(vocab, PROJECT)]
        for one in extra:
            parts += [*self.heading(one.filename + "\n", SNIPPET), plain(vocab, one.text)]
        if vocab.fim_sep is not None:
            parts += self.heading(FILE, "")
        return joined(*parts)

    def heading(self, filename: str, otherwise: str) -> list[Any]:
        """The mark before a file: its name when the model has a separator token, else a line of text."""
        vocab = self.service.vocab
        if vocab.fim_sep is None:
            return [plain(vocab, otherwise)]
        return [[vocab.fim_sep], plain(vocab, filename)]


def plain(vocab: Any, text: str) -> Tokens:
    """The tokens of text in which nothing is special."""
    return encode(vocab, text, add_special=False, parse_special=False)


def joined(*parts: Any) -> Tokens:
    """Token sequences one after the other."""
    return np.concatenate([np.empty(0, np.int32), *(np.asarray(part, np.int32) for part in parts)])


def check_tokens(vocab: Any) -> None:
    """Raise 501 that lists the marks which the model lacks."""
    marks = {"prefix": vocab.fim_pre, "suffix": vocab.fim_suf, "middle": vocab.fim_mid}
    missing = "".join(f"{name} token is missing. " for name, token in marks.items() if token is None)
    if missing:
        raise unsupported(f"Infill is not supported by this model: {missing}")


def read_parts(body: dict[str, Any]) -> Parts:
    """The texts of the request."""
    for name in ("input_prefix", "input_suffix"):
        if body.get(name) is None:
            raise invalid(f'"{name}" is required')
        if not isinstance(body[name], str):
            raise invalid(f'"{name}" must be a string')
    prompt = body.get("prompt")
    if not isinstance(prompt, str | None):
        raise invalid('"prompt" must be a string')
    return Parts(body["input_prefix"], body["input_suffix"], prompt or "", read_extra(body.get("input_extra")))


def read_extra(value: Any) -> list[Extra]:
    """`input_extra`."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise invalid(EXTRA)
    for item in value:
        if not isinstance(item.get("text"), str):
            raise invalid('extra_context chunk must contain a "text" field with a string value')
        if not isinstance(item.get("filename"), str | None):
            raise invalid('extra_context chunk\'s "filename" field must be a string')
    return [Extra(item["text"], item.get("filename") or "tmp") for item in value]
