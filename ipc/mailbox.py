"""The place where a task's results wait for their reader."""

from collections import deque
from collections.abc import Iterator

from ipc.messages import Admitted, Delta, Final, Progress, PromptProbs, Reply, Result, RowRef, Vectors

Streamed = Delta | Progress | PromptProbs | Vectors | Final


class Mailbox:
    """Results not read yet. Deltas that meet here become one and the newest Progress stays, so it holds few."""

    __slots__ = ("admitted", "final", "id", "lost", "refs", "reply", "results", "unread")

    def __init__(self) -> None:
        self.id = 0
        self.admitted: Admitted | None = None
        self.final: Final | None = None  # seen, though perhaps not read
        self.reply: Reply | None = None  # of a control request
        self.lost = False  # the final or reply was made here, because the engine is gone
        self.results: deque[Streamed] = deque()
        self.refs: list[RowRef] = []  # slab rows that came with the results
        self.unread = 0  # size of the Delta that grows, about bytes

    def put(self, result: Result) -> None:
        """Add a result in the order of arrival."""
        if type(result) is Delta:
            self._put_delta(result)
        elif isinstance(result, Admitted):
            self.admitted = result
        elif isinstance(result, Progress) and self.results and isinstance(self.results[-1], Progress):
            self.results[-1] = result
        else:
            if isinstance(result, Final):
                self.final = result
            else:
                self.refs.extend(slab_rows(result))
            self.results.append(result)
        self.wake()

    def answer(self, reply: Reply) -> None:
        """Take the reply of a control request."""
        self.reply = reply
        self.wake()

    def take(self) -> Streamed:
        """The oldest result; there must be one."""
        self.unread = 0
        return self.results.popleft()

    def wake(self) -> None:
        """Called when something arrived; a reader that waits in another way than polling overrides it."""

    def _put_delta(self, delta: Delta) -> None:
        if delta.probs:
            self.refs.extend(slab_rows(delta))
        last = self.results[-1] if self.results else None
        if type(last) is not Delta:
            self.results.append(delta)
            return
        last.text += delta.text
        last.tokens += delta.tokens
        last.probs += delta.probs
        last.timings = delta.timings or last.timings
        self.unread += len(delta.text) + 8 * len(delta.tokens) + sum(map(_inline_bytes, rows_of(delta)))


def rows_of(result: Result) -> Iterator[RowRef]:
    """All vectors that a result names."""
    if isinstance(result, Delta):
        for probs in result.probs:
            if probs.logits is not None:
                yield probs.logits
    elif isinstance(result, PromptProbs | Vectors):
        yield from result.rows


def slab_rows(result: Result) -> Iterator[RowRef]:
    """Those of `rows_of` that occupy a row of the slab."""
    return (ref for ref in rows_of(result) if ref.generation)


def _inline_bytes(ref: RowRef) -> int:
    return len(ref.inline)
