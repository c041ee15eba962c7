"""Names for what KV depends on: the model's file, the settings that change KV, and adapters' files."""

import glob
import os
import re
import secrets
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import msgspec

from engine import llama
from engine.regime import Key, Regime
from ipc.config import EngineSection

_HEAD = 16 << 20  # bytes; the metadata is in here, however large the vocabulary
_SAMPLES, _SAMPLE = 64, 1 << 16
_FIELDS = (  # of the engine's settings
    *("n_slots", "unified", "swa_full", "cache_type_k", "cache_type_v", "flash_attn", "control_vector_layers"),
    *("rope_scaling", "rope_freq_base", "rope_freq_scale", "yarn_orig_ctx", "yarn_ext_factor", "yarn_attn_factor"),
    *("yarn_beta_slow", "yarn_beta_fast"),
)

AdapterName = tuple[tuple[str, float], ...]  # digest and scale of each
_UNKNOWN: Key = ((-1, 1.0),)  # adapters that are not loaded here: equal to no sequence's


class Known(Protocol):
    """The part of `engine.adapters.Adapters` that is used here."""

    @property
    def ids(self) -> list[int]: ...
    def path(self, number: int) -> str: ...


class Identity:
    """What KV in a file belongs to: `model`, and adapters by names that mean the same in every process."""

    def __init__(self, model: str, adapters: Known) -> None:
        self.model = model
        self._adapters = adapters
        self._digests: dict[int, str] = {}

    def name(self, key: Key) -> AdapterName:
        """The adapters of `key` by their files' contents."""
        return tuple((self._digest(number), scale) for number, scale in key)

    def key(self, name: AdapterName) -> Key | None:
        """The loaded adapters that are called so; None when one is missing."""
        numbers = {self._digest(number): number for number in self._adapters.ids}
        if any(digest not in numbers for digest, _ in name):
            return None
        return tuple(sorted((numbers[digest], scale) for digest, scale in name))

    def regime(self, name: AdapterName, start: int) -> Regime:
        """The regime of KV that was computed under `name` from `start` on."""
        key = self.key(name)
        return _UNKNOWN if key is None else key, start

    def _digest(self, number: int) -> str:
        if number not in self._digests:
            try:
                self._digests[number] = file_digest(self._adapters.path(number))
            except OSError:  # it is gone: a name that nothing else will ever have
                self._digests[number] = secrets.token_hex(16)
        return self._digests[number]


def model_digest(path: str, settings: EngineSection, overrides: tuple[str, ...] = ()) -> str:
    """Equal for two engines exactly when one can use the other's KV (of the same adapters)."""
    values = {name: getattr(settings, name) for name in _FIELDS}
    if settings.unified:
        del values["n_slots"]  # it is the number of KV streams otherwise
    digests = [file_digest(part) for part in _parts(path)]
    digests += [f"{file_digest(vector.path)} {vector.scale}" for vector in settings.control_vector]
    library = (llama.llama_version() or b"").decode()
    return blake2b(msgspec.json.encode([digests, values, overrides, library]), digest_size=16).hexdigest()


def file_digest(path: str) -> str:
    """A digest of a large file: its size, its beginning and samples of the rest."""
    size = os.path.getsize(path)
    digest = blake2b(str(size).encode(), digest_size=16)
    with open(path, "rb") as file:
        digest.update(file.read(_HEAD))
        for i in range(_SAMPLES):
            file.seek(size * i // _SAMPLES)
            digest.update(file.read(_SAMPLE))
    return digest.hexdigest()


def _parts(path: str) -> list[str]:
    """All files of a split model; else the one."""
    match = re.fullmatch(r"(.*-)\d{5}(-of-\d{5}\.gguf)", path)
    if not match:
        return [path]
    return sorted(glob.glob(f"{glob.escape(match[1])}?????{glob.escape(match[2])}")) or [str(Path(path))]
