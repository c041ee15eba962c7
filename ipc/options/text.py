"""Readers of the texts that flags and variables carry. Each raises ValueError with what it expected."""

import csv as csv_reader
import json
import math
import re
from typing import Any

from ipc.messages import SAMPLERS
from ipc.sections import Adapter

ON = ("on", "enabled", "true", "1")
OFF = ("off", "disabled", "false", "0")
SWITCH = {**dict.fromkeys(ON, "on"), **dict.fromkeys(OFF, "off"), "auto": "auto", "-1": "auto"}
SAMPLER_LETTERS = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "i": "infill",
    "a": "adaptive_p",
}
SAMPLER_ALIASES = {"nucleus": "top_p", "temp": "temperature", "typ": "typ_p"}
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}


def boolean(text: str) -> bool:
    """on, enabled, true, 1 or off, disabled, false, 0."""
    if text.lower() in ON:
        return True
    if text.lower() in OFF:
        return False
    raise ValueError(f"expected on or off, got {text!r}")


def number(text: str, kind: type[int] | type[float]) -> float:
    """An int or a float, nothing after it."""
    try:
        value = kind(text.strip())
    except ValueError:
        raise ValueError(f"expected {kind.__name__}, got {text!r}") from None
    if math.isnan(value):
        raise ValueError(f"expected {kind.__name__}, got {text!r}")
    return value


def csv(text: str) -> list[str]:
    """Comma-separated words, blanks around them cut; double quotes protect commas. Empty words are left out."""
    row = next(csv_reader.reader([text], skipinitialspace=True), [])
    return [word.strip() for word in row if word.strip()]


def names(text: str) -> tuple[str, ...]:
    """A sorted set of words, as aliases and tags are kept."""
    return tuple(sorted(set(csv(text))))


def floats(text: str) -> tuple[float, ...]:
    """Numbers between commas or slashes."""
    return tuple(float(number(word, float)) for word in re.split(r"[,/]+", text))


def one(text: str) -> tuple[str, ...]:
    """The text itself, as the single element of a list option whose values may contain commas."""
    return (text,)


def breaker(text: str) -> tuple[str, ...]:
    """One DRY sequence breaker, or "none" for no breakers at all."""
    return () if text == "none" else (text,)


def json_object(text: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"expected a JSON object, got {text!r}: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {text!r}")
    return value


def json_text(text: str) -> str:
    """JSON, kept as the text it is."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"expected JSON, got {text!r}: {error}") from None
    return text


def logit_bias(text: str) -> tuple[tuple[int, float], ...]:
    """`ID+BIAS` or `ID-BIAS`, as `15043-1.5` or `2-inf`."""
    match = re.fullmatch(r"\s*(\d+)([+-])(.+)", text)
    if match is None:
        raise ValueError(f"expected TOKEN(+/-)BIAS, got {text!r}")
    bias = float(number(match[3], float))
    return ((int(match[1]), bias if match[2] == "+" else -bias),)


def adapters(text: str) -> tuple[Adapter, ...]:
    """Files at full scale."""
    return tuple(Adapter(path=path) for path in csv(text))


def scaled_adapters(text: str) -> tuple[Adapter, ...]:
    """`FILE:SCALE` words."""
    found = []
    for word in csv(text):
        path, colon, scale = word.rpartition(":")
        if not colon:
            raise ValueError(f"expected FILE:SCALE, got {word!r}")
        found.append(Adapter(path=path, scale=number(scale, float)))
    return tuple(found)


def layer_range(text: str) -> tuple[int, int]:
    """Two layer numbers."""
    words = text.split()
    if len(words) != 2:
        raise ValueError(f"expected two layer numbers, got {text!r}")
    return int(number(words[0], int)), int(number(words[1], int))


def sampler_names(text: str) -> tuple[str, ...]:
    """Sampler names between semicolons, in any spelling that llama-server knows; unknown ones are refused."""
    return tuple(sampler_name(word) for word in text.split(";") if word.strip())


def sampler_name(word: str) -> str:
    """The true name of one sampler: case, dashes and short names do not matter."""
    plain = word.strip().lower().replace("-", "_")
    known = {name.replace("_", ""): name for name in (*SAMPLERS, "infill", "adaptive_p")}
    name = SAMPLER_ALIASES.get(plain) or known.get(plain.replace("_", ""))
    if name is None:
        raise ValueError(f"unknown sampler {word.strip()!r}; known: {', '.join(known.values())}")
    return name


def sampler_letters(text: str) -> tuple[str, ...]:
    """A sequence of one-letter sampler names, as `edskypmxt`."""
    unknown = sorted(set(text) - set(SAMPLER_LETTERS))
    if unknown:
        raise ValueError(f"unknown sampler letter {unknown[0]!r}; known: {''.join(SAMPLER_LETTERS)}")
    return tuple(SAMPLER_LETTERS[letter] for letter in text)


def inverse(text: str) -> float:
    """1/x of a scale factor."""
    value = number(text, float)
    if value <= 0:
        raise ValueError(f"expected a number above 0, got {text!r}")
    return 1.0 / value


def unescape(text: str) -> str:
    r"""Replace `\n \r \t \' \" \\ \xHH`; other backslashes stay as they are."""
    return re.sub(r"\\(?:x([0-9a-fA-F]{1,2})|(.))", _replacement, text, flags=re.DOTALL)


def _replacement(match: re.Match[str]) -> str:
    if match[1] is not None:
        return chr(int(match[1], 16))
    return _ESCAPES.get(match[2], match[0])
