"""Generation under a constraint with the real vocabulary and sampler, and made-up logits in the model's place."""

import json
from contextlib import closing
from typing import Any

import numpy as np

from engine.candidates import Candidates
from engine.compiler import Compiler
from engine.sampler import Sampler
from engine.vocab import Vocab
from ipc.messages import Constraint, Sampling

MAX_TOKENS = 400


def schema_of(schema: Any) -> Constraint:
    """The constraint to a JSON schema."""
    return Constraint("json_schema", json.dumps(schema))


class Harness:
    """Logits are noise in which short texts and the ends of strings, arrays and objects stand out."""

    def __init__(self, vocab: Vocab) -> None:
        self.vocab = vocab
        self.compiler = Compiler(vocab)
        self._candidates = Candidates(vocab.n_tokens)
        self._base = np.array([_likeliness(piece) for piece in vocab.pieces(special=True)], np.float32)
        self._base[list(vocab.eog)] = 12

    def generate(self, constraint: Constraint, seed: int, **sampling: float) -> tuple[str, bool]:
        """The text, and whether it ended by itself within MAX_TOKENS."""
        rng = np.random.default_rng(seed)
        settings = Sampling(seed=seed, **{"top_k": 40, "temperature": 1.0, **sampling})  # type: ignore[arg-type]
        tokens: list[int] = []
        with closing(Sampler(self.vocab, settings, self._candidates, self.compiler.compile(constraint))) as sampler:
            while len(tokens) < MAX_TOKENS:
                row = self._base + rng.normal(0, 2.5, self.vocab.n_tokens).astype(np.float32)
                self._take(sampler, tokens, [sampler.sample(row)])
                if tokens[-1] not in self.vocab.eog:
                    self._take(sampler, tokens, sampler.forced())
                if tokens[-1] in self.vocab.eog:
                    return self.vocab.decode(tokens[:-1]).decode(), True
        return self.vocab.decode(tokens).decode("utf-8", "replace"), False

    def _take(self, sampler: Sampler, tokens: list[int], new: list[int]) -> None:
        for token in new:
            sampler.accept(token)
            tokens.append(token)

    def close(self) -> None:
        self.compiler.close()


def _likeliness(piece: bytes) -> float:
    closing_sign = any(sign in piece for sign in (b'"', b"}", b"]"))
    return (6.0 if closing_sign else 0.0) + (4.0 if len(piece) <= 2 else 0.0)
