"""One generation: its task, the text it has produced and when it ends. Plain Python; knows no ctypes and no socket."""

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from engine.regime import PLAIN, Regime
from engine.text import IndentGuard, TextStream
from ipc.messages import Delta, Error, Task, Timings, TokenProbs

if TYPE_CHECKING:
    from engine.draft import Drafters
    from engine.sampler import Sampler
    from engine.slot import Slot


class Phase(Enum):
    """Where a sequence is on its way; `WAITING` holds a slot until another one has read the prefix they share."""

    QUEUED = "queued"
    WAITING = "waiting"
    PREFILL = "prefill"
    GENERATING = "generating"


@dataclass(slots=True)
class Clock:
    """Milliseconds on the engine's clock at which a sequence passed its milestones."""

    arrived: float
    started: float | None = None
    generating: float | None = None
    last_token: float = 0.0


@dataclass(slots=True, eq=False)
class Sequence:
    """A task's life in the engine. `tokens` are prompt and output so far while no slot holds them."""

    client: bytes
    task: Task
    prompt: np.ndarray
    sampler: "Sampler"
    clock: Clock
    text: TextStream
    indent: IndentGuard | None
    phase: Phase = Phase.QUEUED
    slot: "Slot | None" = None
    output: list[int] = field(default_factory=list)
    queue_position: int | None = None  # the one its client was told of
    shifts: list[tuple[int, int]] = field(default_factory=list)  # tokens kept at the front, dropped after them
    has_waited: bool = False  # for a neighbour to read a shared prefix
    pauses: list[int] = field(default_factory=list)  # positions at which a step must end
    read_at: int = 0  # the scheduler's step that last read some of its prompt, or first could have
    n_cached: int = 0
    n_evaluated: int = 0  # prompt tokens really computed, parked work included
    drafters: "Drafters | None" = None
    n_draft: int = 0  # guesses at the end of the slot's tokens
    n_drafted: int = 0
    n_accepted: int = 0
    finish: str | None = None
    error: Error | None = None
    stopping_word: str = ""
    truncated: bool = False
    has_new_line: bool = False
    generated: str = ""  # everything released so far
    adapters: Regime = PLAIN
    _tokens: list[int] = field(default_factory=list)  # not yet in a Delta
    _probs: list[TokenProbs] = field(default_factory=list)
    _held: list[str] = field(default_factory=list)  # text of a task that does not stream

    @classmethod
    def of(cls, client: bytes, task: Task, prompt: np.ndarray, sampler: "Sampler", now: float) -> "Sequence":
        indent = IndentGuard(task.n_indent) if task.n_indent else None
        return cls(client, task, prompt, sampler, Clock(now), TextStream(task.stop), indent)

    @property
    def key(self) -> tuple[bytes, int]:
        return self.client, self.task.id

    @property
    def tokens(self) -> np.ndarray:
        """What its context should hold: prompt and output, without what shifts have dropped."""
        tokens = np.concatenate([self.prompt, np.array(self.output, np.int32)]) if self.output else self.prompt
        for keep, discard in self.shifts:
            tokens = np.delete(tokens, slice(keep, keep + discard))
        return tokens

    @property
    def n_remaining(self) -> int | None:
        """Tokens the task may still produce, None without a limit."""
        return None if self.task.max_tokens is None else max(0, self.task.max_tokens - len(self.output))

    @property
    def evaluates(self) -> bool:
        """Whether its tokens go into decode steps now."""
        return self.phase in (Phase.PREFILL, Phase.GENERATING)

    def before_pause(self, n_past: int) -> int:
        """Tokens up to the next pause."""
        return min((p - n_past for p in self.pauses if p > n_past), default=1 << 30)

    @property
    def precedence(self) -> tuple[int, float]:
        """Orders running sequences; the largest gives way first."""
        return -self.task.priority, self.clock.started or self.clock.arrived

    @property
    def urgency(self) -> tuple[int, float]:
        """Orders queued sequences; the smallest comes first."""
        return -self.task.priority, self.clock.arrived

    def late(self, now: float) -> bool:
        """Whether the time allowed for queue and prompt has passed without a first token."""
        clock, task = self.clock, self.task
        if clock.generating is not None:
            return False
        if task.deadline_ms and now - clock.arrived > task.deadline_ms:
            return True
        return bool(task.max_prompt_ms and clock.started is not None and now - clock.started > task.max_prompt_ms)

    def slot_margin(self, part: int, n_ctx: int) -> int:
        """Tokens of output that should fit beside the prompt before it is worth starting."""
        wanted = n_ctx // part
        return wanted if self.n_remaining is None else min(self.n_remaining, wanted)

    def shift_extent(self, n_past: int, n_ctx: int, adds_bos: bool) -> tuple[int, int]:
        """How many tokens a context shift keeps at the front and drops after them (spec/engine.md §6 A)."""
        keep = len(self.prompt) if self.task.n_keep is None else self.task.n_keep
        keep = min(keep + adds_bos, n_ctx - 4, n_past - 1)
        left = n_past - keep
        discard = self.task.n_discard or left // 2
        return keep, max(1, min(discard, left - 1)) if left > 1 else left

    def unsent(self) -> Delta | None:
        """What was still held back when the sequence was ended from outside."""
        if not self._tokens and not self._held:
            return None
        text = "".join(self._held) + ("" if self.stopping_word else self.text.finish())
        delta = Delta(self.task.id, text, self._tokens, self._probs)
        self._tokens, self._probs, self._held = [], [], []
        self.generated += text
        return delta

    def append(
        self, token: int, piece: bytes, is_end: bool, context_full: bool, now: float, probs: TokenProbs | None
    ) -> Delta | None:
        """Take one generated token. Returns what may be sent now; sets `finish` when the sequence ends.

        The checks run in the order of spec/generation.md §6; a later one that fires wins.
        """
        self.output.append(token)
        self._tokens.append(token)
        if probs is not None:
            self._probs.append(probs)
        self.clock.last_token = now
        emission = self.text.feed(piece)
        text = emission.text
        if emission.stopped_by is not None:
            self.finish, self.stopping_word = "word", emission.stopped_by
        text = self._check_limits(text, piece, context_full, now)
        if is_end:
            self.finish = "eos"
        if self.finish is not None and not self.stopping_word:
            text += self.text.finish()
        self.has_new_line = self.has_new_line or "\n" in text
        self.generated += text
        return self._delta(text, emission.complete)

    def timings(self) -> Timings:
        clock = self.clock
        started = clock.started if clock.started is not None else clock.arrived
        generating = clock.generating if clock.generating is not None else clock.last_token or started
        return Timings(
            queue_ms=started - clock.arrived,
            cache_n=self.n_cached,
            prompt_n=self.n_evaluated,
            prompt_ms=max(0.0, generating - started),
            predicted_n=len(self.output),
            predicted_ms=max(0.0, clock.last_token - generating) if self.output else 0.0,
            draft_n=self.n_drafted,
            draft_n_accepted=self.n_accepted,
        )

    def _check_limits(self, text: str, piece: bytes, context_full: bool, now: float) -> str:
        if context_full:
            self.finish, self.truncated = "limit", True
        if self.n_remaining == 0 and self.finish is None:
            self.finish = "limit"
        if self.indent is not None and (cut := self.indent.cut(text)) is not None:
            self.finish, text = "limit", text[:cut]
            self.text.finish()
        limit, begun = self.task.max_ms, self.clock.generating
        if limit and begun is not None and b"\n" in piece and now - begun > limit:
            self.finish = "limit"
        return text

    def _delta(self, text: str, complete: bool) -> Delta | None:
        if not complete and self.finish is None:
            return None
        if not self.task.stream and not self._probs:
            self._held.append(text)
            if self.finish is None:
                return None
            text, self._held = "".join(self._held), []
        elif self._held:
            text, self._held = "".join([*self._held, text]), []
        delta = Delta(self.task.id, text, self._tokens, self._probs)
        if self.task.timings_per_token:
            delta.timings = self.timings()
        self._tokens, self._probs = [], []
        return delta
