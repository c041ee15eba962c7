"""What goes wrong, as the client sees it: `{"error": {"code", "message", "type"}}` with the matching status."""

import logging
from collections.abc import Callable
from typing import Any

import falcon
import msgspec
from falcon.asgi import App, Request, Response

from ipc.errors import EngineError
from ipc.messages import Error
from ipc.slab import SlabError

log = logging.getLogger(__name__)
encode = msgspec.json.Encoder().encode

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "unavailable_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
JSON = "application/json; charset=utf-8"
RETRY_AFTER = "2"  # seconds; sent with 429 and 503


class ApiError(Exception):
    """A request that ends with `code`; `extra` adds members to the error object."""

    def __init__(self, code: int, message: str, type: str | None = None, **extra: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.type = type or TYPES.get(code, "server_error")
        self.extra = extra

    @classmethod
    def of(cls, error: Error) -> "ApiError":
        """The same error as the engine sent it."""
        extra = {name: getattr(error, name) for name in ("n_prompt_tokens", "n_ctx", "index")}
        given = {name: value for name, value in extra.items() if value is not None}
        return cls(error.code, error.message, error.type, **given)

    def body(self) -> dict[str, Any]:
        """The JSON object of the answer."""
        return {"error": {"code": self.code, "message": self.message, "type": self.type, **self.extra}}


def invalid(message: str) -> ApiError:
    """A fault of the client's request: 400."""
    return ApiError(400, message)


def unsupported(message: str) -> ApiError:
    """Something this server or model is not set up for: 501."""
    return ApiError(501, message)


def translate(error: Exception) -> ApiError:
    """Any exception as the error that the client is told."""
    match error:
        case ApiError():
            return error
        case EngineError():
            return ApiError.of(error.error)
        case SlabError():
            return ApiError(503, "The engine is not available")
        case falcon.HTTPNotFound():
            return ApiError(404, "File Not Found")
        case falcon.HTTPMethodNotAllowed():
            return ApiError(405, "Method Not Allowed")
        case falcon.HTTPError():
            return ApiError(error.status_code, error.description or error.title or "Bad Request")
        case msgspec.MsgspecError() | RecursionError() | UnicodeDecodeError():
            return invalid(f"Failed to parse the request body: {error}")
    log.error("Unexpected error", exc_info=error)
    return ApiError(500, f"Internal error: {type(error).__name__}")


def answer(resp: Response, error: ApiError, form: Callable[[ApiError], dict[str, Any]] = ApiError.body) -> None:
    """Turn `resp` into the JSON answer for `error`."""
    resp.status = error.code
    resp.content_type = JSON
    resp.stream = None
    resp.data = encode(form(error))
    if error.code in (429, 503):
        resp.set_header("Retry-After", RETRY_AFTER)


async def handle(req: Request, resp: Response, error: Exception, params: dict[str, Any]) -> None:
    """Falcon's hook: the one place where exceptions become answers."""
    if isinstance(error, falcon.HTTPMethodNotAllowed) and error.headers:
        resp.set_headers(error.headers)
    answer(resp, translate(error), getattr(req.context, "error_form", ApiError.body))


def install(app: App[Request, Response]) -> None:
    """Make every error of `app` a JSON answer."""
    app.add_error_handler(Exception, handle)
    app.add_error_handler(falcon.HTTPError, handle)
