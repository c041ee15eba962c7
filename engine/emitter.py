"""Turns what happens to a sequence into results for its client."""

import numpy as np

from engine.outbox import Outbox
from engine.sequence import Sequence
from engine.vocab import Vocab
from ipc.messages import Final, Progress, PromptProbs, Queued, TokenProbs
from ipc.slab import Slab


class Emitter:
    """Pieces come from the vocabulary, logits rows go into the slab, results into the outbox."""

    def __init__(self, vocab: Vocab, slab: Slab, outbox: Outbox, *, show_special: bool = False) -> None:
        self._vocab = vocab
        self._slab = slab
        self._outbox = outbox
        self._pieces = vocab.pieces(special=show_special)
        self.adds_bos = vocab.add_bos

    def append(self, sequence: Sequence, token: int, probs: TokenProbs | None, context_full: bool, now: float) -> None:
        """`token` was generated: release its text, or hold it back."""
        delta = sequence.append(token, self._piece(sequence, token), token in self._vocab.eog, context_full, now, probs)
        if delta is not None:
            self._outbox.add(sequence.client, delta)

    def probs(self, sequence: Sequence, token: int, logits: np.ndarray) -> TokenProbs | None:
        """What the worker needs for this token's log-probabilities: the raw row, or the chain's candidates."""
        task = sequence.task
        if not task.n_probs:
            return None
        if task.post_sampling_probs:
            return TokenProbs(token, candidates=sequence.sampler.last_candidates(task.n_probs))
        return TokenProbs(token, logits=self._slab.put(logits, sequence.client))

    def prompt_rows(self, sequence: Sequence, start: int, rows: list[np.ndarray]) -> None:
        """Logits at prompt positions `start`, … predict the tokens after them; the last one predicts the output."""
        wanted = rows[: len(sequence.prompt) - 1 - start]
        if wanted:
            refs = [self._slab.put(row, sequence.client) for row in wanted]
            self._outbox.add(sequence.client, PromptProbs(sequence.task.id, start + 1, refs))

    def queued(self, sequence: Sequence, position: int) -> None:
        """How many are before a waiting sequence, for a task that asked, when that has changed."""
        if sequence.task.queue_position and position != sequence.queue_position:
            sequence.queue_position = position
            self._outbox.add(sequence.client, Queued(sequence.task.id, position))

    def progress(self, sequence: Sequence, processed: int, now: float) -> None:
        """How much of the prompt is read, for a task that asked."""
        if sequence.task.progress and not sequence.output:
            since = now - (sequence.clock.started or now)
            total = len(sequence.prompt)
            message = Progress(sequence.task.id, total, sequence.n_cached, min(processed, total), since)
            self._outbox.add(sequence.client, message)

    def final(self, sequence: Sequence) -> None:
        """The one last result."""
        slot = sequence.slot
        rest = sequence.unsent()
        if rest is not None:
            self._outbox.add(sequence.client, rest)
        final = Final(
            sequence.task.id,
            sequence.finish or "error",
            error=sequence.error,
            stopping_word=sequence.stopping_word,
            truncated=sequence.truncated,
            has_new_line=sequence.has_new_line,
            slot=slot.id if slot is not None else 0,
            n_prompt=len(sequence.prompt),
            n_past=slot.n_past if slot is not None else 0,
            timings=sequence.timings(),
            seed=sequence.sampler.seed,
        )
        self._outbox.add(sequence.client, final)

    def _piece(self, sequence: Sequence, token: int) -> bytes:
        if token in sequence.task.preserved_tokens:
            return self._vocab.piece(token, special=True)
        return self._pieces[token]
