"""The forms in which the APIs show errors. A request's path tells its API, before anything can go wrong."""

from collections.abc import Callable
from typing import Any

from falcon.asgi import Request, Response

from api.errors import ApiError

Form = Callable[[ApiError], dict[str, Any]]

ANTHROPIC_TYPES = {
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    501: "invalid_request_error",
    503: "overloaded_error",
}


def openai_error(error: ApiError) -> dict[str, Any]:
    """`{"error": {"code", "message", "type"}}`."""
    return error.body()


def anthropic_error(error: ApiError) -> dict[str, Any]:
    """`{"type": "error", "error": {"type", "message"}}`; too long a prompt is told in Anthropic's words, too."""
    message = error.message
    if "n_prompt_tokens" in error.extra:
        n, limit = error.extra["n_prompt_tokens"], error.extra.get("n_ctx")
        message = f"prompt is too long: {n} tokens > {limit} maximum. {message}"
    kind = ANTHROPIC_TYPES.get(error.code, error.type)
    return {"type": "error", "error": {"type": kind, "message": message, **error.extra}}


def ollama_error(error: ApiError) -> dict[str, Any]:
    """`{"error": message}`."""
    return {"error": error.message}


def form_of(path: str) -> Form:
    """The form of the API that `path` belongs to, the API prefix left out."""
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return anthropic_error
    if path == "/api" or path.startswith("/api/"):
        return ollama_error
    return openai_error


class ErrorForms:
    """Middleware, the first one: every error of a request takes the form of its API."""

    def __init__(self, prefix: str) -> None:
        """`prefix`: the API prefix."""
        self.prefix = prefix

    async def process_request(self, req: Request, resp: Response) -> None:
        """Note the form where `errors.handle` looks for it."""
        req.context.error_form = form_of(req.path.removeprefix(self.prefix))
