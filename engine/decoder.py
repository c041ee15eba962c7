"""One decode step: evaluate the planned chunks, then sample and append. The hot path."""

import logging
from collections.abc import Callable

from engine.adapters import Adapters
from engine.archive import Archive
from engine.batch import Batch, Output
from engine.context import Context
from engine.emitter import Emitter
from engine.grammar import GrammarError
from engine.memory import Memory
from engine.metrics import Metrics
from engine.scheduler import Chunk, Cost
from engine.sequence import Phase, Sequence
from engine.sequences import Sequences
from engine.slot import Slot
from engine.speculation import Speculation
from ipc.messages import Error, TokenProbs

log = logging.getLogger(__name__)

_DONE, _NO_ROOM = 0, 1  # libllama's answers to a decode


class Decoder:
    """Moves slots forward. Room in the KV memory is made here, because only a decode tells that it is missing."""

    def __init__(
        self,
        *,
        context: Context,
        batch: Batch,
        slots: list[Slot],
        memory: Memory,
        archive: Archive,
        speculation: Speculation,
        adapters: Adapters,
        sequences: Sequences,
        emitter: Emitter,
        metrics: Metrics,
        cost: Cost,
        clock: Callable[[], float],
        context_shift: bool,
    ) -> None:
        self._context = context
        self._batch = batch
        self._slots = slots
        self._memory = memory
        self._archive = archive
        self._speculation = speculation
        self._adapters = adapters
        self._sequences = sequences
        self._emitter = emitter
        self._metrics = metrics
        self._cost = cost
        self._clock = clock
        self._context_shift = context_shift

    def step(self, chunks: list[Chunk]) -> None:
        """Evaluate `chunks`, and sample for each that ends in an output."""
        row = 0
        for chunk in self._decode(chunks):
            slot, sequence = chunk.slot, chunk.slot.sequence
            self._memory.evaluated(slot, chunk.n)
            row += chunk.n
            assert sequence is not None
            if sequence.phase is Phase.PREFILL:
                self._read(sequence, chunk, row - chunk.n)
            if chunk.output:
                self._sample(sequence, slot, chunk, row - 1)

    def shift_full(self) -> None:
        """Drop old tokens of generating sequences that have reached their context (spec/engine.md §6 A)."""
        if not self._context_shift:
            return
        for slot in self._slots:
            sequence = slot.sequence
            if sequence is None or sequence.phase is not Phase.GENERATING or len(slot.tokens) < slot.n_ctx:
                continue
            keep, discard = sequence.shift_extent(slot.n_past, slot.n_ctx, self._emitter.adds_bos)
            sequence.truncated = True
            if self._memory.shift(slot, keep, discard):
                sequence.shifts.append((keep, discard))
            else:
                self._sequences.finish(sequence, "limit")

    def _decode(self, chunks: list[Chunk]) -> list[Chunk]:
        """The chunks that were evaluated; where the memory is full, idle slots and then the youngest give way."""
        while chunks:
            self._fill(chunks)
            self._adapters.use(chunks[0].slot.acting)
            begun = self._clock()
            code = self._context.decode(self._batch)
            if code == _DONE:
                self._account(chunks, self._clock() - begun)
                return chunks
            if code != _NO_ROOM:
                self._compute_error(chunks, code)
                return []
            if not self._archive.evict_idle():
                victim = self._give_way()
                chunks = [chunk for chunk in chunks if chunk.slot is not victim]
        return []

    def _fill(self, chunks: list[Chunk]) -> None:
        self._batch.clear()
        for chunk in chunks:
            slot, sequence = chunk.slot, chunk.slot.sequence
            every = sequence is not None and sequence.task.prompt_probs and sequence.phase is Phase.PREFILL
            output: Output = "all" if every else "last" if chunk.output else False
            n = chunk.n - chunk.n_draft
            self._batch.add(slot.todo[:n], slot.n_past, slot.id, output)
            if chunk.n_draft:
                self._batch.add(slot.todo[n:], slot.n_past + n, slot.id, "all")

    def _account(self, chunks: list[Chunk], ms: float) -> None:
        self._metrics.decoded(len(chunks))
        total = sum(chunk.n for chunk in chunks)
        prompt = sum(c.n for c in chunks if c.slot.sequence is not None and c.slot.sequence.phase is Phase.PREFILL)
        self._cost.observe(total - prompt, prompt, ms)

    def _give_way(self) -> Slot:
        """Running sequences fill the memory: the youngest is parked. The last one left ends with the text it has."""
        running = [slot.sequence for slot in self._slots if slot.sequence is not None]
        victim = max(running, key=lambda sequence: sequence.precedence)
        slot = victim.slot
        assert slot is not None
        if len(running) == 1:
            victim.truncated = True
            self._sequences.finish(victim, "limit")
        else:
            log.info("KV memory is full: task %d is parked with %d tokens", victim.task.id, slot.n_past)
            self._sequences.park(victim)
        self._archive.clear(slot)
        return slot

    def _compute_error(self, chunks: list[Chunk], code: int) -> None:
        log.error("decode failed with code %d", code)
        text = "Invalid input batch." if code == -1 else "Compute error."
        for chunk in chunks:
            if chunk.slot.sequence is not None:
                self._sequences.fail(chunk.slot.sequence, Error(500, "server_error", text))
            self._memory.clear(chunk.slot)

    def _read(self, sequence: Sequence, chunk: Chunk, first_row: int) -> None:
        """Prompt tokens of `sequence` have been evaluated."""
        sequence.n_evaluated += chunk.n
        if sequence.task.prompt_probs:
            rows = [self._context.logits(first_row + i) for i in range(chunk.n)]
            self._emitter.prompt_rows(sequence, chunk.slot.n_past - chunk.n, rows)
        moment = self._clock()
        self._emitter.progress(sequence, chunk.slot.n_past, moment)
        if chunk.output:
            sequence.phase = Phase.GENERATING
            if sequence.clock.generating is None:
                sequence.clock.generating = moment
                ms = moment - (sequence.clock.started or moment)
                self._metrics.prompt_done(sequence.n_evaluated, sequence.n_cached, ms)

    def _sample(self, sequence: Sequence, slot: Slot, chunk: Chunk, last_row: int) -> None:
        if sequence.task.max_tokens == 0:
            self._sequences.finish(sequence, "limit")
            return
        try:
            self._follow_draft(sequence, slot, chunk.n_draft, last_row)
            if sequence.finish is None and sequence.sampler.grammar is not None and not sequence.task.n_probs:
                self._jump_ahead(sequence, slot)
        except GrammarError as problem:
            self._sequences.fail(sequence, Error(400, "invalid_request_error", f"the constraint failed: {problem}"))
            return
        if sequence.finish is not None:
            self._sequences.finish(sequence)

    def _follow_draft(self, sequence: Sequence, slot: Slot, n_draft: int, last_row: int) -> None:
        """Sample after the known tokens, and on along the draft for as long as it says the same."""
        n_known = len(slot.tokens) - n_draft
        draft = slot.tokens.view[n_known:].tolist()
        n_right = 0
        while True:
            token = self._draw(sequence, slot, n_known + n_right, last_row - n_draft + n_right)
            if sequence.finish is not None or n_right == n_draft or token != draft[n_right]:
                break
            n_right += 1
        if n_draft:
            cut = self._memory.cut(slot, n_known + n_right)
            self._speculation.judge(sequence, n_draft, n_right)
            if cut < n_known + n_right:  # a sliding window has passed what was cut off: read again from there
                slot.tokens.set(sequence.tokens[:-1])
                slot.adapters = sequence.adapters
                sequence.phase = Phase.PREFILL
        slot.tokens.append(token)

    def _draw(self, sequence: Sequence, slot: Slot, n_known: int, row: int) -> int:
        """The next token after `n_known` tokens, from the logits of `row`; its text is on its way."""
        logits = self._context.logits(row)
        token = sequence.sampler.sample(logits, sequence.task.post_sampling_probs)
        self._emit(sequence, slot, n_known, token, self._emitter.probs(sequence, token, logits))
        return token

    def _jump_ahead(self, sequence: Sequence, slot: Slot) -> None:
        """Append tokens that the constraint leaves no choice about: one batch evaluates them all."""
        for token in sequence.sampler.forced():
            if sequence.finish is None:
                self._emit(sequence, slot, len(slot.tokens), token, None)
                slot.tokens.append(token)

    def _emit(self, sequence: Sequence, slot: Slot, n_known: int, token: int, probs: TokenProbs | None) -> None:
        sequence.sampler.accept(token)
        full = not self._context_shift and n_known + 1 >= slot.n_ctx
        self._emitter.append(sequence, token, probs, full, self._clock())
