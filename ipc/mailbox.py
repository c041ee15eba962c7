"""The place where a task's results wait for their reader."""

from collections import deque
from collections.abc import Sequence

from ipc.messages import Admitted, Delta, Final, Progress, PromptProbs, Queued, Reply, Result, RowRef, Vectors

Streamed = Delta | Queued | Progress | PromptProbs | Vectors | Final


class Mailbox:
    """Results not read yet. Deltas that meet here become one; the last Progress or Queued stays, so it holds few."""

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
        elif isinstance(result, (Progress, Queued)) and self.results and type(self.results[-1]) is type(result):
            self.results[-1] = result
        else:
            if isinstance(result, Final):
                self.final = result
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
        last = self.results[-1] if self.results else None
        if type(last) is not Delta:
            self.results.append(delta)
            return
        last.text += delta.text
        last.tokens += delta.tokens
        last.timings = delta.timings or last.timings
        self.unread += len(delta.text) + 8 * len(delta.tokens)
        if delta.probs:
            last.probs += delta.probs
            self.unread += sum(len(ref.inline) for ref in rows_of(delta))


def rows_of(result: Result) -> Sequence[RowRef]:
    """All vectors that a result names."""
    if type(result) is Delta:
        return [one.logits for one in result.probs if one.logits is not None] if result.probs else ()
    return result.rows if isinstance(result, (PromptProbs, Vectors)) else ()
