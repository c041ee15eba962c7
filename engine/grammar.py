"""Constraints on what may be generated: GBNF by libllama's grammar sampler, everything else by llguidance.

A constraint is used draw-first: the chain draws freely, `allows` verifies, and only a rejected draw pays for `mask`.
"""

from typing import Protocol

import llguidance
import numpy as np

from engine import llama
from engine.candidates import Candidates
from engine.vocab import Vocab


class GrammarError(ValueError):
    """A constraint cannot be compiled, or cannot follow a token it is given."""


class Grammar(Protocol):
    """A constraint with its state within one sequence."""

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


class GbnfGrammar:
    """libllama's grammar sampler. Never lazy itself; see `engine.lazy.LazyGrammar`."""

    lazy = False

    def __init__(self, sampler: llama.Sampler, candidates: Candidates) -> None:
        self._sampler = sampler
        self._candidates = candidates
        self._one = Candidates(1)  # own: `accept` also runs on the compiling thread

    def clone(self) -> "GbnfGrammar":
        return GbnfGrammar(llama.llama_sampler_clone(self._sampler), self._candidates)

    def allows(self, token: int) -> bool:
        self._one.fill_one(token)
        self._one.apply(self._sampler)
        return bool(np.isfinite(self._one.view()["logit"][0]))

    def mask(self, logits: np.ndarray) -> np.ndarray:
        self._candidates.fill(logits)
        self._candidates.apply(self._sampler)
        view = self._candidates.view()
        masked = np.full_like(logits, -np.inf)
        masked[view["id"]] = view["logit"]
        return masked

    def accept(self, token: int) -> None:
        # libllama throws through C when a token does not fit, which would end the process
        if not self.allows(token):
            raise GrammarError(f"the grammar does not allow token {token} here")
        llama.llama_sampler_accept(self._sampler, token)

    def forced(self) -> list[int]:
        return []

    def close(self) -> None:
        if self._sampler:
            llama.llama_sampler_free(self._sampler)
            self._sampler = llama.Sampler()


class LlgGrammar:
    """An llguidance matcher: JSON schema, regex and Lark."""

    lazy = False

    def __init__(self, matcher: llguidance.LLMatcher, vocab: Vocab) -> None:
        self._matcher = matcher
        self._vocab = vocab
        self._bits = np.zeros((vocab.n_tokens + 31) // 32, np.int32)

    def clone(self) -> "LlgGrammar":
        return LlgGrammar(self._matcher.deep_copy(), self._vocab)

    def allows(self, token: int) -> bool:
        if token in self._vocab.eog:
            return self._matcher.is_accepting()
        return not self._matcher.is_stopped() and self._matcher.validate_tokens([token]) == 1

    def mask(self, logits: np.ndarray) -> np.ndarray:
        masked = np.full_like(logits, -np.inf)
        if not self._matcher.is_stopped():
            self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
            allowed = np.unpackbits(self._bits.view(np.uint8), bitorder="little")[: len(logits)].view(bool)
            np.copyto(masked, logits, where=allowed)
        if self._matcher.is_accepting():
            ends = list(self._vocab.eog)
            masked[ends] = logits[ends]
        return masked

    def accept(self, token: int) -> None:
        if token in self._vocab.eog and self._matcher.is_accepting():
            return
        if not self._matcher.consume_token(token):
            raise GrammarError(self._matcher.get_error() or f"token {token} is not allowed here")

    def forced(self) -> list[int]:
        return [] if self._matcher.is_stopped() else list(self._matcher.compute_ff_tokens())

    def close(self) -> None:
        pass
