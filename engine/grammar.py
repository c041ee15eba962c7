"""What a constraint on the output is to the sampler, whichever kind it is."""

from typing import Protocol

import numpy as np


class GrammarError(ValueError):
    """A constraint cannot be compiled, or cannot follow what it is given."""


class Grammar(Protocol):
    """A constraint with its state within one sequence.

    It is used draw-first: the chain draws freely, `allows` verifies, and only a rejected draw pays for `mask`.
    """

    lazy: bool

    def allows(self, token: int) -> bool:
        """Whether `token` may come next."""

    def mask(self, logits: np.ndarray) -> np.ndarray:
        """A copy of `logits` with -inf for every token that may not come next."""

    def accept(self, token: int) -> None:
        """Follow `token`. Raises GrammarError when it is not allowed."""

    def forced(self) -> list[int]:
        """Tokens that must come next because nothing else may; often empty."""

    def close(self) -> None:
        """Free what C holds."""


class Eager(Grammar, Protocol):
    """A constraint that is in force from the first token on."""

    def feed(self, text: bytes) -> None:
        """Follow text that is not cut into tokens. Raises GrammarError when it is not allowed."""
