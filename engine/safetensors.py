"""Reads the tensors of a Hugging Face model folder: `*.safetensors`, each mapped, none read before it is asked for."""

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

_MAX_HEADER = 100 << 20
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_SKIPPED = {"I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"}  # ids and masks, no weights

Floats = npt.NDArray[np.float32]


class SafetensorsError(ValueError):
    """A file is missing or damaged; the text names it."""


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class Tensors:
    """Name to float32 array. Integer tensors are left out."""

    def __init__(self, folder: Path) -> None:
        """Map every `*.safetensors` file of `folder`; SafetensorsError when there is none or one is damaged."""
        self._entries: dict[str, tuple[npt.NDArray[np.uint8], _Entry]] = {}
        paths = sorted(folder.glob("*.safetensors"))
        if not paths:
            raise SafetensorsError(f"{folder}: no *.safetensors file in it")
        for path in paths:
            self._add(path)

    def _add(self, path: Path) -> None:
        raw = np.memmap(path, np.uint8, "r") if path.stat().st_size >= 8 else np.empty(0, np.uint8)
        size = int(raw[:8].view("<u8")[0]) if raw.size else 0
        if not 0 < size <= min(_MAX_HEADER, raw.size - 8):
            raise SafetensorsError(f"{path}: not a safetensors file")
        try:
            header = msgspec.json.decode(raw[8 : 8 + size].tobytes(), type=dict[str, msgspec.Raw])
            header.pop("__metadata__", None)
            entries = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in header.items()}
        except msgspec.MsgspecError as error:
            raise SafetensorsError(f"{path}: damaged header: {error}") from None
        data = raw[8 + size :]
        for name, entry in entries.items():
            if entry.dtype not in _SKIPPED:
                self._entries[name] = data[slice(*_checked(path, name, entry, data.size))], entry

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __getitem__(self, name: str) -> Floats:
        raw, entry = self._entries[name]
        values = raw.view(_TYPES[entry.dtype]).reshape(entry.shape)
        if entry.dtype == "BF16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32)

    def names(self) -> list[str]:
        """The names of all tensors, in the files' order."""
        return list(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape."""
        return tuple(self._entries[name][1].shape)


def _checked(path: Path, name: str, entry: _Entry, size: int) -> tuple[int, int]:
    """Where the tensor's bytes are, which must be inside the file and as many as its shape says."""
    if entry.dtype not in _TYPES:
        raise SafetensorsError(f"{path}: tensor {name}: type {entry.dtype} is not supported")
    first, end = entry.data_offsets
    if not 0 <= first <= end <= size or min(entry.shape, default=0) < 0:
        raise SafetensorsError(f"{path}: tensor {name} lies outside of the file")
    if end - first != np.prod(entry.shape, dtype=np.int64) * np.dtype(_TYPES[entry.dtype]).itemsize:
        raise SafetensorsError(f"{path}: tensor {name}: {end - first} bytes do not make a {entry.dtype} {entry.shape}")
    return first, end
