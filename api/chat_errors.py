"""Faults of a chat request that the client can mend; every one is answered with 400."""

from api.errors import ApiError


class ChatError(ApiError):
    """The request cannot be served as it is; the message says why."""

    def __init__(self, message: str) -> None:
        super().__init__(400, message)


class TemplateError(ChatError):
    """The chat template refused the messages, failed, or took too much time or text."""
