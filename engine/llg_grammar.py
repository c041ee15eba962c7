"""An llguidance matcher's state within one sequence: JSON schema, regex and Lark."""

import llguidance
import numpy as np

from engine.grammar import GrammarError
from engine.vocab import Vocab

_MAX_AHEAD = 128  # tokens forced at once: what one batch evaluates beside other streams


class LlgGrammar:
    """Forces tokens ahead where the text leaves no choice, and the end where nothing else may come."""

    lazy = False

    def __init__(self, matcher: llguidance.LLMatcher, tokenizer: llguidance.LLTokenizer, vocab: Vocab) -> None:
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._vocab = vocab
        self._bits = np.zeros((vocab.n_tokens + 31) // 32, np.int32)

    def clone(self) -> "LlgGrammar":
        return LlgGrammar(self._matcher.deep_copy(), self._tokenizer, self._vocab)

    def allows(self, token: int) -> bool:
        if token in self._vocab.eog and self._matcher.is_accepting():
            return True
        return not self._matcher.is_stopped() and self._matcher.validate_tokens([token]) == 1

    def mask(self, logits: np.ndarray) -> np.ndarray:
        masked = np.full_like(logits, -np.inf)
        if not self._matcher.is_stopped():
            self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
            allowed = np.unpackbits(self._bits.view(np.uint8), bitorder="little")[: len(logits)].view(bool)
            np.copyto(masked, logits, where=allowed)
        self._check()
        if self._matcher.is_accepting():
            ends = list(self._vocab.eog)
            masked[ends] = logits[ends]
        return masked

    def accept(self, token: int) -> None:
        if token in self._vocab.eog and self._matcher.is_accepting():
            return
        if not self._matcher.consume_token(token):
            self._check()

    def feed(self, text: bytes) -> None:
        """Follow text that is not cut into tokens. Raises GrammarError."""
        for token in self._tokenizer.greedy_tokenize(text.decode("utf-8", "replace")):
            self.accept(token)

    def forced(self) -> list[int]:
        if not self._matcher.is_stopped():
            return list(self._matcher.compute_ff_tokens()[:_MAX_AHEAD])
        return [main_end(self._vocab)] if self._matcher.is_accepting() else []

    def close(self) -> None:
        pass

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(self._matcher.get_error().partition("\n")[0] or "the constraint failed")


def main_end(vocab: Vocab) -> int:
    """The token that says the end; the vocabulary's other ones may stand in a Lark grammar as tokens."""
    return vocab.eos if vocab.eos is not None and vocab.eos in vocab.eog else min(vocab.eog)
