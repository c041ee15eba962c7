"""Builds libllama's sampler chain from a request's `Sampling`, and says which candidates it can do without."""

import ctypes
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine import llama
from engine.llama import Sampler
from engine.vocab import Vocab
from ipc.messages import Sampling

if TYPE_CHECKING:
    from engine.dry import Dry

MIROSTAT_M = 100  # candidates that mirostat 1 estimates the distribution's shape from
MOST_INFILL = 256  # candidates that infill compares with each other, which takes quadratic time


def build(vocab: Vocab, sampling: Sampling, seed: int, dry: "Dry | None" = None) -> Sampler:
    """The chain for `sampling`, ending in a sampler that selects; `dry` if it is there already.

    Raises ValueError on bad values.
    """
    check(sampling)
    chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
    for sampler in _samplers(vocab, sampling, seed, dry):
        if not sampler:
            llama.llama_sampler_free(chain)
            raise ValueError("a sampler could not be made from these parameters")
        llama.llama_sampler_chain_add(chain, sampler)
    return chain


def check(s: Sampling) -> None:
    """Refuse what libllama would abort on."""
    if not (math.isfinite(s.repeat_penalty) and s.repeat_penalty > 0 and math.isfinite(1 / s.repeat_penalty)):
        raise ValueError("repeat_penalty must be finite and greater than 0")
    for name in ("frequency_penalty", "presence_penalty"):
        if not math.isfinite(getattr(s, name)):
            raise ValueError(f"{name} must be finite")


def _samplers(vocab: Vocab, s: Sampling, seed: int, dry: "Dry | None") -> list[Sampler]:
    if s.mirostat == 1:
        mirostat = llama.llama_sampler_init_mirostat(vocab.n_tokens, seed, s.mirostat_tau, s.mirostat_eta, MIROSTAT_M)
        return [llama.llama_sampler_init_temp(s.temperature), mirostat]
    if s.mirostat == 2:
        mirostat = llama.llama_sampler_init_mirostat_v2(seed, s.mirostat_tau, s.mirostat_eta)
        return [llama.llama_sampler_init_temp(s.temperature), mirostat]
    makers = _makers(vocab, s, seed, dry)
    listed = [makers[name]() for name in bounded(active(s)) if name in makers]
    if "adaptive_p" in s.samplers:
        last = llama.llama_sampler_init_adaptive_p(s.adaptive_target, s.adaptive_decay, seed)
    else:
        last = llama.llama_sampler_init_dist(seed)
    return [*listed, last]


def _makers(vocab: Vocab, s: Sampling, seed: int, dry: "Dry | None" = None) -> dict[str, Callable[[], Sampler]]:
    return {
        "penalties": lambda: llama.llama_sampler_init_penalties(
            vocab.n_tokens, s.repeat_last_n, s.repeat_penalty, s.frequency_penalty, s.presence_penalty
        ),
        "dry": lambda: make_dry(vocab, s) if dry is None else dry.copy(),
        "top_n_sigma": lambda: llama.llama_sampler_init_top_n_sigma(s.top_n_sigma),
        "top_k": lambda: llama.llama_sampler_init_top_k(s.top_k),
        "typ_p": lambda: llama.llama_sampler_init_typical(s.typical_p, s.min_keep),
        "top_p": lambda: llama.llama_sampler_init_top_p(s.top_p, s.min_keep),
        "min_p": lambda: llama.llama_sampler_init_min_p(s.min_p, s.min_keep),
        "xtc": lambda: llama.llama_sampler_init_xtc(s.xtc_probability, s.xtc_threshold, s.min_keep, seed),
        "temperature": lambda: llama.llama_sampler_init_temp_ext(s.temperature, s.dynatemp_range, s.dynatemp_exponent),
        "most_infill": lambda: llama.llama_sampler_init_top_k(MOST_INFILL),
        "infill": lambda: llama.llama_sampler_init_infill(vocab.ptr),
    }


def make_dry(vocab: Vocab, s: Sampling) -> Sampler:
    """A DRY sampler. Looks for every sequence breaker in every token, which takes a while."""
    breakers = [text.encode() for text in s.dry_sequence_breakers]
    array = (ctypes.c_char_p * len(breakers))(*breakers)
    return llama.llama_sampler_init_dry(
        vocab.ptr, s.dry_multiplier, s.dry_base, s.dry_allowed_length, s.dry_penalty_last_n, array, len(breakers)
    )


def penalised_window(s: Sampling) -> int:
    """How many of the last tokens the chain may punish; 0 when it looks at none."""
    window = 0
    if s.mirostat:
        return 0
    if "penalties" in s.samplers and (s.repeat_penalty != 1 or s.frequency_penalty or s.presence_penalty):
        window = max(window, s.repeat_last_n)
    if "dry" in s.samplers and s.dry_multiplier and s.dry_base >= 1:
        window = max(window, s.dry_penalty_last_n)
    return window


def active(s: Sampling) -> list[str]:
    """Names of the listed samplers that can change anything, in order (spec/generation.md §1.2, §2)."""
    idle = {
        "penalties": s.repeat_last_n == 0
        or (s.repeat_penalty == 1 and not s.frequency_penalty and not s.presence_penalty),
        "dry": not s.dry_multiplier or s.dry_base < 1 or s.dry_penalty_last_n == 0,
        "top_n_sigma": s.top_n_sigma <= 0,
        "top_k": s.top_k <= 0,
        "typ_p": s.typical_p >= 1,
        "top_p": s.top_p >= 1,
        "min_p": s.min_p <= 0,
        "xtc": s.xtc_probability <= 0 or s.xtc_threshold > 0.5,
        "temperature": s.temperature == 1 and s.dynatemp_range <= 0,
    }
    return [name for name in s.samplers if not idle.get(name, False)]


def bounded(names: list[str]) -> list[str]:
    """`names` with a limit before each infill sampler, which would hold up the engine on a whole vocabulary."""
    return [each for name in names for each in (("most_infill", name) if name == "infill" else (name,))]


def is_greedy(s: Sampling) -> bool:
    """Whether the chain always selects the largest logit, so that an argmax does."""
    harmless = {"temperature", "top_k", "top_p", "min_p", "top_n_sigma"}
    is_cold = s.temperature <= 0 and s.dynatemp_range <= 0 and "temperature" in s.samplers
    return is_cold and not s.mirostat and set(active(s)) <= harmless


def needs_only_top(s: Sampling) -> int | None:
    """k when the k best candidates (after penalties) decide everything, else None."""
    if s.mirostat:
        return None
    rest = [name for name in active(s) if name not in ("penalties", "dry")]
    punished_first = active(s)[: len(active(s)) - len(rest)]
    if rest and rest[0] == "top_k" and set(punished_first) <= {"penalties", "dry"}:
        return s.top_k
    return None
