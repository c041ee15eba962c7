"""API keys: `spec/security.md` §1."""

import hmac
import logging
from collections.abc import Iterable

from falcon.asgi import Request, Response

from api.errors import ApiError

log = logging.getLogger(__name__)
PUBLIC_METHODS = ("GET", "HEAD")


class Auth:
    """Middleware that lets a request pass when it shows a valid key, or needs none."""

    def __init__(self, keys: Iterable[str], public: Iterable[str]) -> None:
        """`public`: full paths that need no key when they are only read. A key file may have CRLF line ends."""
        stripped = (key.rstrip("\r") for key in keys)
        self.keys = [key.encode() for key in stripped if key]
        self.public = frozenset(public)

    async def process_request(self, req: Request, resp: Response) -> None:
        """Raise 401 unless the request may go on."""
        if not self.keys or (req.path in self.public and req.method in PUBLIC_METHODS):
            return
        if not self.valid(shown_key(req)):
            log.warning("Request refused: invalid API key for %s %.200s", req.method, req.path)
            raise ApiError(401, "Invalid API Key")

    def valid(self, key: str) -> bool:
        """Compare with every key, in time that tells nothing about where they differ."""
        given = key.encode(errors="surrogateescape")
        matches = [hmac.compare_digest(given, known) for known in self.keys]
        return any(matches)


def shown_key(req: Request) -> str:
    """The key of the Authorization header, else of X-Api-Key; a `Bearer` scheme may precede either."""
    value = req.get_header("Authorization") or req.get_header("X-Api-Key") or ""
    return value[7:].strip() if value[:7].lower() == "bearer " else value
