"""Collects a step's results and sends each client one message."""

from collections import defaultdict
from typing import Protocol

from ipc.messages import Result, Step, ToClient


class Sender(Protocol):
    """The engine's socket; `send` returns False when the client is gone or frozen."""

    def send(self, client: bytes, message: ToClient) -> bool: ...


class Outbox:
    """Results wait here until `flush`; order per client is kept."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._waiting: dict[bytes, list[Result]] = defaultdict(list)

    def add(self, client: bytes, result: Result) -> None:
        self._waiting[client].append(result)

    def flush(self) -> list[bytes]:
        """Send everything; returns the clients that could not be reached, whose work must be aborted."""
        if not self._waiting:
            return []
        waiting, self._waiting = self._waiting, defaultdict(list)
        return [client for client, results in waiting.items() if not self._sender.send(client, Step(results))]

    def forget(self, client: bytes) -> None:
        """Drop what waits for a client that is gone."""
        self._waiting.pop(client, None)
