"""What a task waits for before it can be queued, because another thread makes it."""

import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from engine.compiler import Compiling
from engine.dry import Dry
from engine.grammar import Grammar, GrammarError

_SECONDS = 10.0


def _deadline() -> float:
    return time.monotonic() + _SECONDS


@dataclass(frozen=True, slots=True)
class Preparation:
    """A constraint that is being compiled and a DRY sampler that is being made, or were."""

    compiling: Compiling | None
    making_dry: "Future[Dry] | None"
    _deadline: float = field(default_factory=_deadline)

    def done(self) -> bool:
        """Whether `grammar` and `dry` answer at once."""
        is_compiled = self.compiling is None or self.compiling.done()
        has_dry = self.making_dry is None or self.making_dry.done() or time.monotonic() > self._deadline
        return is_compiled and has_dry

    def grammar(self) -> Grammar | None:
        """The constraint's grammar at its beginning, None without one. Raises GrammarError."""
        return self.compiling.result() if self.compiling is not None else None

    def dry(self) -> Dry | None:
        """What the task's DRY sampler is copied from, None without one. Raises GrammarError."""
        if self.making_dry is None:
            return None
        try:
            return self.making_dry.result(max(0.0, self._deadline - time.monotonic()))
        except TimeoutError:
            raise GrammarError(f"Field 'dry_sequence_breakers': they take more than {_SECONDS:.0f} s") from None
