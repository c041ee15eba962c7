"""What a slot held, copied out of the KV memory."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.regime import Regime, common_validity
from engine.slot import common_prefix

Tokens = npt.NDArray[np.int32]
Blob = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """The part of a slot's memory that cannot be cut, as it was after the first `n` tokens."""

    n: int
    data: Blob


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """`state` holds exactly `tokens`, computed under `adapters`.

    A `divisible` one can be continued after any of its tokens, another only at its end and at its checkpoints.
    """

    tokens: Tokens
    adapters: Regime
    state: Blob
    checkpoints: tuple[Checkpoint, ...] = ()
    divisible: bool = True

    @property
    def n_bytes(self) -> int:
        return self.tokens.nbytes + len(self.state) + sum(len(checkpoint.data) for checkpoint in self.checkpoints)

    def usable(self, tokens: Tokens, adapters: Regime) -> int:
        """How many leading `tokens` of a prompt under `adapters` need no evaluation with this snapshot."""
        n = common_validity(self.adapters, adapters, common_prefix(self.tokens, tokens))
        return reachable(n, len(self.tokens), self.divisible, self.checkpoints)


def reachable(n: int, length: int, divisible: bool, checkpoints: Iterable[Checkpoint]) -> int:
    """The last position up to `n` at which `length` stored tokens can be continued."""
    return reachable_positions(n, length, divisible, [checkpoint.n for checkpoint in checkpoints])


def reachable_positions(n: int, length: int, divisible: bool, positions: Iterable[int]) -> int:
    """The same by the checkpoints' positions."""
    if divisible or n >= length:
        return min(n, length)
    return max((position for position in positions if position <= n), default=0)
