"""From a task on the wire to a sequence in the queue, or to the error that says why not."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from engine.adapters import AdapterError, Adapters
from engine.candidates import Candidates
from engine.compiler import Compiler
from engine.dry import DrySamplers
from engine.grammar import GrammarError
from engine.preparation import Preparation
from engine.reasoning import Reasoning
from engine.regime import Regime
from engine.sampler import Sampler
from engine.sequence import Sequence
from engine.vocab import Vocab
from ipc.messages import Error, Sampling, Task

_RETRY = "the queue is full, try again later"


class Refusal(Exception):
    """A task cannot be taken; carries the error for its Final."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.message)
        self.error = error


def invalid(message: str) -> Refusal:
    """A client's fault: HTTP 400."""
    return Refusal(Error(400, "invalid_request_error", message))


@dataclass(frozen=True, slots=True)
class Limits:
    """What a task may ask of this engine."""

    n_slots: int
    n_ctx_slot: int
    max_queue: int | None = None
    text: bool = True  # False: the model only makes embeddings
    n_endless: int | None = None  # tokens after which a task without a limit ends, if the context's end does not end it


class Admission:
    """Checks tasks and builds their samplers; constraints compile on another thread, so building has two halves."""

    def __init__(
        self,
        vocab: Vocab,
        candidates: Candidates,
        compiler: Compiler,
        adapters: Adapters,
        limits: Limits,
        clock: Callable[[], float],
    ) -> None:
        self._vocab = vocab
        self._candidates = candidates
        self._limits = limits
        self._clock = clock
        self.compiler = compiler
        self._dry = DrySamplers(vocab)
        self._adapters = adapters

    def check(self, task: Task, n_waiting: int) -> np.ndarray:
        """The prompt's tokens. Raises Refusal."""
        if not self._limits.text:
            raise Refusal(Error(501, "not_supported_error", "this model makes embeddings, not text"))
        if len(task.tokens) % 4:
            raise invalid("tokens: not a whole number of int32")
        prompt = np.frombuffer(task.tokens, "<i4").astype(np.int32)
        n = len(prompt)
        if n and (int(prompt.min()) < 0 or int(prompt.max()) >= self._vocab.n_tokens):
            raise invalid("Prompt contains invalid tokens")
        if n >= self._limits.n_ctx_slot:
            raise Refusal(self._too_long(n))
        if task.slot is not None and not 0 <= task.slot < self._limits.n_slots:
            raise invalid(f"Field 'id_slot': there is no slot {task.slot}, only 0 to {self._limits.n_slots - 1}")
        if self._limits.max_queue is not None and n_waiting >= self._limits.max_queue:
            raise Refusal(Error(429, "rate_limit_error", _RETRY))
        return prompt

    def prepare(self, task: Task) -> Preparation:
        """Start making what takes a while: the grammar of a constraint, a DRY sampler."""
        compiling = self.compiler.submit(task.constraint) if task.constraint is not None else None
        return Preparation(compiling, self._dry.submit(self._bounded(task.sampling)))

    def sequence(self, client: bytes, task: Task, prompt: np.ndarray, prepared: Preparation) -> Sequence:
        """The sequence for a checked task. Raises Refusal when its sampler cannot be made."""
        adapters = self._resolve(task, prompt)
        reasoning = Reasoning(task.reasoning, self._vocab) if task.reasoning is not None else None
        try:
            sampling, parts = self._bounded(task.sampling), (prepared.grammar(), reasoning, prepared.dry())
            sampler = Sampler(self._vocab, sampling, self._candidates, *parts)
        except GrammarError as problem:
            raise invalid(str(problem)) from problem
        except ValueError as problem:
            raise invalid(f"Failed to initialize samplers: {problem}") from problem
        if task.max_tokens is None:
            task = replace(task, max_tokens=self._limits.n_endless)
        sequence = Sequence.of(client, task, prompt, sampler, self._clock())
        sequence.adapters = adapters
        return sequence

    def _bounded(self, sampling: Sampling) -> Sampling:
        """`sampling` with windows no longer than a context: libllama reserves all that they could hold."""
        n, n_dry = (min(n, self._limits.n_ctx_slot) for n in (sampling.repeat_last_n, sampling.dry_penalty_last_n))
        return replace(sampling, repeat_last_n=n, dry_penalty_last_n=n_dry)

    def _resolve(self, task: Task, prompt: np.ndarray) -> Regime:
        try:
            return self._adapters.resolve(task.lora, prompt)
        except AdapterError as problem:
            raise invalid(f"Field 'lora': {problem}") from problem

    def close(self) -> None:
        self.compiler.close()
        self._dry.close()

    def _too_long(self, n: int) -> Error:
        n_ctx = self._limits.n_ctx_slot
        text = f"request ({n} tokens) exceeds the available context size ({n_ctx} tokens), try increasing it"
        return Error(400, "exceed_context_size_error", text, n_prompt_tokens=n, n_ctx=n_ctx)
