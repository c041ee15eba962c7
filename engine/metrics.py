"""The engine's counters under llama-server's names (spec/engine.md §11)."""

from collections import defaultdict
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Window:
    """Tokens and seconds since the last scrape."""

    prompt_n: int = 0
    prompt_s: float = 0.0
    predicted_n: int = 0
    predicted_s: float = 0.0


@dataclass(slots=True)
class Metrics:
    """Totals since start, and one window for the two rates."""

    counters: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    accepted_per_position: list[int] = field(default_factory=list)
    _window: _Window = field(default_factory=_Window)
    _busy_slots: int = 0

    def decoded(self, n_busy: int) -> None:
        """One decode call with `n_busy` slots in it."""
        self.counters["n_decode_total"] += 1
        self._busy_slots += n_busy

    def prompt_done(self, n_evaluated: int, n_cached: int, ms: float) -> None:
        self.counters["prompt_tokens_total"] += n_evaluated
        self.counters["prompt_tokens_cached_total"] += n_cached
        self.counters["prompt_seconds_total"] += ms / 1e3
        self._window.prompt_n += n_evaluated
        self._window.prompt_s += ms / 1e3

    def released(self, n_predicted: int, ms: float, n_tokens: int) -> None:
        """A sequence ended with `n_tokens` in its slot."""
        self.counters["tokens_predicted_total"] += n_predicted
        self.counters["tokens_predicted_seconds_total"] += ms / 1e3
        self.counters["n_tokens_max"] = max(self.counters["n_tokens_max"], n_tokens)
        self._window.predicted_n += max(0, n_predicted - 1)
        self._window.predicted_s += ms / 1e3

    def drafted(self, n_draft: int, n_right: int) -> None:
        """One draft of `n_draft` tokens was verified; its first `n_right` were accepted."""
        self.counters["spec_decode_num_drafts_total"] += 1
        self.counters["spec_decode_num_draft_tokens_total"] += n_draft
        self.counters["spec_decode_num_accepted_tokens_total"] += n_right
        missing = n_right - len(self.accepted_per_position)
        self.accepted_per_position.extend([0] * max(0, missing))
        for position in range(n_right):
            self.accepted_per_position[position] += 1

    def aborted(self) -> None:
        self.counters["requests_aborted_total"] += 1

    def values(self, n_processing: int, n_deferred: int, *, reset: bool) -> dict[str, float]:
        """Everything by name; `reset` starts a new rate window."""
        window, n_decode = self._window, self.counters["n_decode_total"]
        values: dict[str, float] = {name: self.counters[name] for name in _COUNTERS}
        values["prompt_tokens_seconds"] = window.prompt_n / window.prompt_s if window.prompt_s else 0.0
        values["predicted_tokens_seconds"] = window.predicted_n / window.predicted_s if window.predicted_s else 0.0
        values["requests_processing"] = n_processing
        values["requests_deferred"] = n_deferred
        values["n_busy_slots_per_decode"] = self._busy_slots / n_decode if n_decode else 0.0
        if reset:
            self._window = _Window()
        return values


_COUNTERS = (
    "prompt_tokens_total",
    "prompt_tokens_cached_total",
    "prompt_seconds_total",
    "tokens_predicted_total",
    "tokens_predicted_seconds_total",
    "n_decode_total",
    "n_tokens_max",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "spec_decode_num_drafts_total",
    "requests_aborted_total",
)
