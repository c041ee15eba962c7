"""Chooses a sequence's next token from its logits."""

import secrets
from collections import deque

import numpy as np

from engine import chain, llama
from engine.candidates import Candidates, top
from engine.dry import Dry
from engine.grammar import Grammar, GrammarError
from engine.reasoning import Reasoning
from engine.vocab import Vocab
from ipc.messages import Sampling

_RANDOM = 0xFFFFFFFF


def draw_seed(seed: int | None) -> int:
    """The seed to use: the caller's, or a random one when it gave none."""
    if seed is None or seed == _RANDOM:
        return secrets.randbelow(_RANDOM)
    return seed


class Sampler:
    """A request's chain with its state. `close` frees the C side.

    The result equals libllama's full chain on all candidates for the same seed; `tests/test_sampler.py` proves it.
    """

    def __init__(
        self,
        vocab: Vocab,
        sampling: Sampling,
        candidates: Candidates,
        grammar: Grammar | None = None,
        reasoning: Reasoning | None = None,
        dry: Dry | None = None,
    ) -> None:
        self.seed = draw_seed(sampling.seed)
        self._eog = vocab.eog
        self._chain = chain.build(vocab, sampling, self.seed, dry)
        self._candidates = candidates
        self.grammar = grammar
        self.reasoning = reasoning
        self._bias_ids, self._biases = _merged_bias(vocab, sampling)
        self._greedy = chain.is_greedy(sampling)
        self._top = chain.needs_only_top(sampling)
        window = chain.penalised_window(sampling)
        self._recent: deque[int] = deque(maxlen=window)

    def prime(self, prompt: np.ndarray) -> None:
        """Show the chain the prompt's end, for the samplers that punish repetition."""
        window = self._recent.maxlen or 0
        if window:
            for token in prompt[-window:].tolist():
                llama.llama_sampler_accept(self._chain, token)
                self._recent.append(token)

    def sample(self, logits: np.ndarray, keep_candidates: bool = False) -> int:
        """The next token for `logits` [n_vocab] float32, which are afterwards what they were."""
        forced = self.reasoning.forced() if self.reasoning else None
        if forced is not None:
            self._candidates.fill_one(forced)
            self._candidates.apply(self._chain)  # keeps the chain's random numbers in step with an unforced run
            return forced
        if not len(self._bias_ids):
            return self._choose(logits, keep_candidates)
        unbiased = logits[self._bias_ids]
        logits[self._bias_ids] = unbiased + self._biases
        try:
            return self._choose(logits, keep_candidates)
        finally:
            logits[self._bias_ids] = unbiased

    def _choose(self, logits: np.ndarray, keep_candidates: bool) -> int:
        token = self._draw(logits, keep_candidates)
        grammar = self._grammar_in_force()
        if grammar is not None and not grammar.allows(token):
            token = self._draw_allowed(grammar, logits, keep_candidates)
        return token

    def accept(self, token: int) -> None:
        """Record that `token` was really appended. Raises GrammarError when the constraint cannot follow."""
        grammar = self._grammar_in_force()
        if self.reasoning:
            ended_by = self.reasoning.accept(token)
            if grammar is None and self.grammar is not None:
                for end in ended_by:
                    self.grammar.accept(end)
        if grammar is not None:
            grammar.accept(token)
        if not self._greedy:
            llama.llama_sampler_accept(self._chain, token)
        if self._recent.maxlen:
            self._recent.append(token)

    def forced(self) -> list[int]:
        """Tokens the constraint leaves no choice about, to be appended without sampling."""
        grammar = self._grammar_in_force()
        return grammar.forced() if grammar is not None else []

    def last_candidates(self, n: int) -> list[tuple[int, float]]:
        """The best `n` (token, probability) left by the last `sample(…, keep_candidates=True)`."""
        view = self._candidates.view()
        view = view[view["p"] > 0]
        order = np.argsort(-view["p"], kind="stable")[:n]
        return [(int(view["id"][i]), float(view["p"][i])) for i in order]

    def close(self) -> None:
        if self._chain:
            llama.llama_sampler_free(self._chain)
            self._chain = llama.Sampler()
        if self.grammar:
            self.grammar.close()
            self.grammar = None

    def _grammar_in_force(self) -> Grammar | None:
        if self.grammar is None or (self.grammar.lazy and self.reasoning and self.reasoning.thinking):
            return None
        return self.grammar

    def _draw_allowed(self, grammar: Grammar, logits: np.ndarray, keep_candidates: bool) -> int:
        """A draw among what `grammar` allows; the end when a bias forbids all else. Raises GrammarError."""
        masked = grammar.mask(logits)
        if masked.max() > -np.inf:
            return self._draw(masked, keep_candidates)
        for token in sorted(self._eog):
            if grammar.allows(token):
                return token
        raise GrammarError("a bias forbids every token that could come next")

    def _draw(self, logits: np.ndarray, keep_candidates: bool) -> int:
        if self._greedy and not keep_candidates:
            return int(logits.argmax())
        self._candidates.fill(logits, self._subset(logits))
        self._candidates.apply(self._chain)
        token = self._candidates.selected
        return token if logits[token] > -np.inf else int(logits.argmax())  # the chain's numbers overflowed

    def _subset(self, logits: np.ndarray) -> np.ndarray | None:
        """Ids that suffice. Punishing m known tokens can push at most m others up into the best k."""
        if self._top is None:
            return None
        if not self._recent:
            return top(logits, self._top)
        punished = np.unique(np.fromiter(self._recent, np.int32, len(self._recent)))
        return np.union1d(top(logits, self._top + len(punished)), punished).astype(np.int32)


def _merged_bias(vocab: Vocab, sampling: Sampling) -> tuple[np.ndarray, np.ndarray]:
    """Ids and summed biases: the request's, `ignore_eos` and the model's own suppressed tokens."""
    total: dict[int, float] = {}
    for token, bias in sampling.logit_bias:
        if 0 <= token < vocab.n_tokens:
            total[token] = total.get(token, 0.0) + bias
    banned = [*vocab.suppress, *(vocab.eog if sampling.ignore_eos else ())]
    for token in banned:
        total[token] = -np.inf
    return np.array(list(total), np.int64), np.array(list(total.values()), np.float32)
