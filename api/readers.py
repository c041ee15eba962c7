"""The structured fields of a request: `spec/generation.md` §1-3. Each function is one field's `Reader`."""

import logging
import math
from typing import Any, TypeVar

from api.fields import kind_of, strings
from ipc.messages import LoraScale

log = logging.getLogger(__name__)
T = TypeVar("T")

MOST = {"samplers": 64, "stop": 256, "breakers": 128, "tokens": 1024, "adapters": 64, "triggers": 256}
LONGEST = 4096  # characters of a stop string

LETTERS = {
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
NAMES = {
    **{name: name for name in LETTERS.values()},
    **{name.replace("_", "-"): name for name in LETTERS.values()},
    **{name.replace("_", ""): name for name in LETTERS.values()},
    "nucleus": "top_p",
    "temp": "temperature",
    "typ": "typ_p",
}


def samplers(value: Any, vocab: Any) -> list[str]:
    """Canonical sampler names from a list of names or a string of letters; unknown ones are skipped."""
    bounded(value, "samplers")
    if isinstance(value, str):
        asked: list[str] = list(value)
        found = [LETTERS.get(letter) for letter in asked]
    else:
        asked = strings(value)
        found = [NAMES.get(name.lower()) for name in asked]
    for name, canonical in zip(asked, found, strict=True):
        if canonical is None:
            log.warning("Unknown sampler %.40r skipped", name)
    return [name for name in found if name is not None]


def stop(value: Any, vocab: Any) -> list[str]:
    """Stop strings; empty ones are dropped."""
    words = bounded([value] if isinstance(value, str) else strings(value), "stop")
    if any(len(word) > LONGEST for word in words):
        raise ValueError(f"a stop string may have at most {LONGEST} characters")
    return [word for word in words if word]


def breakers(value: Any, vocab: Any) -> list[str]:
    """DRY's sequence breakers."""
    words = bounded(strings(value), "breakers")
    if not words:
        raise ValueError("Error: dry_sequence_breakers must be a non-empty array of strings")
    return words


def seed(value: Any, vocab: Any) -> int | None:
    """A uint32, where -1 (or its unsigned form) asks for a random one."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"type must be an integer, but is {kind_of(value)}")
    wrapped = value % 2**32
    return None if wrapped == 2**32 - 1 else wrapped


def logit_bias(value: Any, vocab: Any) -> list[tuple[int, float]]:
    """Pairs of token id and bias from `[[key, bias], …]` or `{"key": bias}`; malformed pairs are skipped."""
    biases: list[tuple[int, float]] = []
    for key, bias in pairs(value):
        number = bias_of(bias)
        if number is not None:
            biases += [(token, number) for token in tokens_of(key, vocab)]
    if len(biases) > 2 * vocab.n_tokens:
        raise ValueError(f"biases for {len(biases)} tokens, but the vocabulary has {vocab.n_tokens}")
    return biases


def pairs(value: Any) -> list[tuple[Any, Any]]:
    """The (key, bias) pairs of either form; keys of an object that are integers become ids."""
    if isinstance(value, dict):
        return [(as_id(key), bias) for key, bias in value.items()]
    if isinstance(value, list):
        return [(pair[0], pair[1]) for pair in value if isinstance(pair, list) and len(pair) == 2]
    raise ValueError("type must be an array of [token, bias] pairs or an object")


def as_id(key: str) -> int | str:
    """A key that is an integer as one, any other unchanged."""
    try:
        return int(key)
    except ValueError:
        return key


def bias_of(value: Any) -> float | None:
    """The bias, -inf for `false`, None when malformed."""
    if value is False:
        return -math.inf
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def tokens_of(key: Any, vocab: Any) -> list[int]:
    """The ids that a key means: itself when it is one, else those of its text."""
    if isinstance(key, bool):
        return []
    if isinstance(key, int):
        return [key] if 0 <= key < vocab.n_tokens else []
    if isinstance(key, str):
        return [int(token) for token in vocab.encode(key, add_special=False, parse_special=False)]
    return []


def lora(value: Any, vocab: Any) -> list[LoraScale]:
    """The request's own adapter scales."""
    text = "Error: 'lora' must be an array of objects with 'id' and 'scale' fields"
    if not isinstance(value, list):
        raise ValueError(text)
    return [adapter(item, text) for item in bounded(value, "adapters")]


def adapter(item: Any, text: str) -> LoraScale:
    """One entry of `lora`."""
    if not isinstance(item, dict):
        raise ValueError(text)
    number: Any = item.get("id")
    scale: Any = item.get("scale")
    plain = isinstance(number, int) and isinstance(scale, (int, float))
    if not plain or isinstance(number, bool) or isinstance(scale, bool) or abs(number) > 2**31:
        raise ValueError(text)
    return LoraScale(number, float(scale))


def single_tokens(value: Any, vocab: Any) -> list[int]:
    """The ids of those strings that are one token each."""
    texts = bounded(strings(value), "tokens")
    ids = [vocab.encode(text, add_special=False, parse_special=True) for text in texts]
    return [int(tokens[0]) for tokens in ids if len(tokens) == 1]


def tag(value: Any, vocab: Any) -> list[int]:
    """The tokens of one marker, special ones parsed."""
    if not isinstance(value, str):
        raise ValueError(f"type must be a string, but is {kind_of(value)}")
    return [int(token) for token in vocab.encode(value, add_special=False, parse_special=True)]


def tags(value: Any, vocab: Any) -> list[list[int]]:
    """The tokens of each marker; empty markers are dropped."""
    words = [value] if isinstance(value, str) else strings(value)
    return [tag(word, vocab) for word in words if word]


def fields(value: Any, vocab: Any) -> list[str]:
    """`response_fields`."""
    return strings(value)


def objects(value: Any, vocab: Any) -> list[dict[str, Any]]:
    """An array of objects."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError("type must be an array of objects")
    return bounded(value, "triggers")


def bounded(value: T, kind: str) -> T:
    """`value`, unless it is a list so long that it would hold up the engine."""
    if isinstance(value, (list, str)) and len(value) > MOST[kind]:
        raise ValueError(f"at most {MOST[kind]} entries are possible, but there are {len(value)}")
    return value


def priority(value: Any, vocab: Any) -> int:
    """A small integer; requests with a higher one are served first."""
    if not isinstance(value, int) or isinstance(value, bool) or not -100 <= value <= 100:
        raise ValueError("Value must be between -100 <= value <= 100")
    return value
