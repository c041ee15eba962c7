"""What a client of the engine can meet. Each carries the `Error` that an HTTP answer is made of."""

from ipc.messages import Error


class EngineError(Exception):
    """Base of the three below; `error` has the HTTP status, type and message."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.message)
        self.error = error


class Refused(EngineError):
    """The engine did not take the task or the control request; `error` says why."""


class EngineGone(EngineError):
    """The engine is not there, hangs, or did not answer in time (503)."""


class Overloaded(EngineError):
    """This client has too many open tasks (503); worth trying again after `retry_after` seconds."""

    retry_after = 1


def unavailable(message: str) -> Error:
    """A 503 with the reason."""
    return Error(503, "unavailable_error", message)
