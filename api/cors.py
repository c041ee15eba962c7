"""Headers of every answer, and the answers to OPTIONS: `spec/security.md` §2 with `spec/decisions.md`."""

import logging
import re
import secrets
from urllib.parse import urlsplit

from falcon.asgi import Request, Response

from ipc.config import HttpSection

log = logging.getLogger(__name__)
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Cors:
    """Middleware that names the server and the request and lets browsers of the allowed origins in."""

    def __init__(self, http: HttpSection) -> None:
        self.origins = http.cors_origins
        self.preflight = {
            "Access-Control-Allow-Credentials": "true" if http.cors_credentials else "false",
            "Access-Control-Allow-Methods": http.cors_methods,
            "Access-Control-Allow-Headers": http.cors_headers,
        }

    async def process_request(self, req: Request, resp: Response) -> None:
        """Set the headers first, so that errors carry them too; OPTIONS ends here."""
        resp.set_header("Server", "llama.cpp")
        resp.set_header("X-Request-Id", request_id(req))
        self.allow_origin(req, resp)
        if req.method == "OPTIONS":
            resp.set_headers(self.preflight)
            resp.content_type = "text/html"
            resp.data = b""
            resp.complete = True

    def allow_origin(self, req: Request, resp: Response) -> None:
        """Name the origin that may read the answer, or none."""
        origin = req.get_header("Origin") or ""
        if self.origins == "*":
            resp.set_header("Access-Control-Allow-Origin", origin or "*")
            resp.append_header("Vary", "Origin")
        elif self.origins == "localhost":
            if is_local(origin):
                resp.set_header("Access-Control-Allow-Origin", origin)
            elif origin:
                log.warning("Origin %.100r is not on this machine: no CORS header sent", origin)
        else:
            resp.set_header("Access-Control-Allow-Origin", self.origins)


def is_local(origin: str) -> bool:
    """Whether `origin` is a page served by this machine; compares the parsed host, never a prefix."""
    try:
        return urlsplit(origin).hostname in LOCAL_HOSTS
    except ValueError:
        return False


def request_id(req: Request) -> str:
    """The caller's X-Request-Id if it is a decent one, else a new one."""
    given = req.get_header("X-Request-Id") or ""
    return given if REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
