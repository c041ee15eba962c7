"""Sampling defaults that a model file brings along: the GGUF keys `general.sampling.*`."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from api.readers import samplers

log = logging.getLogger(__name__)


def chain(text: str) -> list[str]:
    """Sampler names separated by semicolons."""
    return samplers(text.split(";"), None)


# Metadata key below "general.sampling.": the field and how its text is read.
KEYS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "sequence": ("samplers", chain),
    "top_k": ("top_k", int),
    "top_p": ("top_p", float),
    "min_p": ("min_p", float),
    "xtc_probability": ("xtc_probability", float),
    "xtc_threshold": ("xtc_threshold", float),
    "temp": ("temperature", float),
    "penalty_last_n": ("repeat_last_n", int),
    "penalty_repeat": ("repeat_penalty", float),
    "mirostat": ("mirostat", int),
    "mirostat_tau": ("mirostat_tau", float),
    "mirostat_eta": ("mirostat_eta", float),
}


def sampling_defaults(meta: Mapping[str, str]) -> dict[str, Any]:
    """Field names and values that the model's author recommends; unreadable ones are skipped with a warning."""
    found: dict[str, Any] = {}
    for key, (name, read) in KEYS.items():
        text = meta.get(f"general.sampling.{key}")
        if text is None:
            continue
        try:
            found[name] = read(text)
        except ValueError:
            log.warning("Model metadata general.sampling.%s is not usable: %.60r", key, text)
    return found
