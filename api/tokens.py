"""POST /tokenize and /detokenize: `spec/endpoints.md` §6."""

from typing import Any

from falcon.asgi import Request, Response

from api.body import read_object
from api.errors import encode, invalid
from api.fields import flag
from api.prompts import Tokens, checked, is_id, off_loop, read_mixed, size_of
from api.service import Service

NUMBERS_INLINE = 10_000  # more ids are turned into text in a thread


class Tokenize:
    """Text to token ids."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def on_post(self, req: Request, resp: Response) -> None:
        """`{"tokens": [id, …]}`, or objects with the pieces."""
        body = await read_object(req, self.service.config.http.max_body_mib)
        content = body.get("content")
        special, parse = flag(body, "add_special"), flag(body, "parse_special", True)
        tokens = await off_loop(size_of(content), self.tokenize, content, special, parse)
        shown: list[Any] = tokens.tolist()
        if flag(body, "with_pieces"):
            shown = [{"id": token, "piece": self.piece(token)} for token in shown]
        resp.data = encode({"tokens": shown})

    def tokenize(self, content: Any, special: bool, parse: bool) -> Tokens:
        """The ids of a string or of a mixed list."""
        items = [content] if isinstance(content, str) else [] if content is None else content
        if not isinstance(items, list) or not all(isinstance(item, str) or is_id(item) for item in items):
            raise invalid('"content" must be a string or an array of strings and tokens')
        return read_mixed(self.service.vocab, items, add_special=special, parse_special=parse)

    def piece(self, token: int) -> str | list[int]:
        """A token's text, or its bytes when they are no text of their own."""
        piece: bytes = self.service.vocab.piece(token, special=True)
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return list(piece)


class Detokenize:
    """Token ids to text."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def on_post(self, req: Request, resp: Response) -> None:
        """`{"content": text}`; bytes that are no text turn into U+FFFD."""
        body = await read_object(req, self.service.config.http.max_body_mib)
        given = body.get("tokens")
        ids = [] if given is None else given
        if not isinstance(ids, list):
            raise invalid('"tokens" must be an array of token ids')
        size = 0 if len(ids) < NUMBERS_INLINE else len(ids)
        text = await off_loop(size, self.detokenize, ids)
        resp.data = encode({"content": text})

    def detokenize(self, ids: list[Any]) -> str:
        """The text of `ids`."""
        raw: bytes = self.service.vocab.decode(checked(self.service.vocab, ids).tolist(), special=True)
        return raw.decode("utf-8", "replace")
