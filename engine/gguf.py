"""Opens GGUF files through libllama and reads their metadata."""

import re
from collections.abc import Callable, Mapping, Sequence
from ctypes import Structure, create_string_buffer
from pathlib import Path
from typing import Any, Protocol

from engine import library, llama

_PART = re.compile(r"-\d{5}-of-(?=\d{5}\.gguf$)")  # in the name of a split model's file


class ModelError(RuntimeError):
    """A model, adapter or context could not be made; the message gives libllama's reason."""


def open_model(path: str | Path, params: llama.llama_model_params) -> llama.Model:
    """Load the GGUF file `path` (the first one of a split model). ModelError says why it could not be."""
    file = Path(path)
    if not file.is_file():
        raise ModelError(f"{path}: no such file")
    with library.collect_errors() as errors:
        handle = llama.llama_model_load_from_file(str(file).encode(), params)
    if not handle:
        raise ModelError(f"{path}: {reason(errors)}")
    return handle


def has_tensor(path: str | Path, names: Sequence[str]) -> bool:
    """Whether one of the tensors `names` is in the GGUF file `path`, or in another file of its split model."""
    file = Path(path)
    parts = sorted(file.parent.glob(_PART.sub("-*-of-", file.name, count=1))) if _PART.search(file.name) else [file]
    return any(_has(part, names) for part in parts)


def _has(file: Path, names: Sequence[str]) -> bool:
    handle = llama.gguf_init_from_file(str(file).encode(), llama.gguf_init_params(no_alloc=True))
    if not handle:
        raise ModelError(f"{file}: cannot be read")
    try:
        return any(llama.gguf_find_tensor(handle, name.encode()) >= 0 for name in names)
    finally:
        llama.gguf_free(handle)


def fill(params: Structure, fields: Mapping[str, Any]) -> None:
    """Set the given fields of a params struct; None keeps libllama's default. TypeError on an unknown field."""
    known = {name for name, *_ in params._fields_}
    for name, value in fields.items():
        if name not in known:
            raise TypeError(f"{type(params).__name__} has no field {name!r}")
        if value is not None:
            setattr(params, name, value)


def reason(errors: list[str]) -> str:
    """libllama's error lines as one sentence: the most telling one is logged first."""
    return "; ".join(dict.fromkeys(errors)) or "libllama gave no reason"


def model_metadata(model: llama.Model) -> dict[str, str]:
    """Every scalar of a model file's metadata, as text."""
    key, value = llama.llama_model_meta_key_by_index, llama.llama_model_meta_val_str_by_index
    return _metadata(model, llama.llama_model_meta_count(model), key, value)


def adapter_metadata(adapter: llama.Adapter) -> dict[str, str]:
    """Every scalar of an adapter file's metadata, as text."""
    key, value = llama.llama_adapter_meta_key_by_index, llama.llama_adapter_meta_val_str_by_index
    return _metadata(adapter, llama.llama_adapter_meta_count(adapter), key, value)


class _ByIndex(Protocol):
    def __call__(self, handle: Any, i: int, buf: Any, buf_size: int, /) -> int: ...


def _metadata(handle: Any, count: int, key: _ByIndex, value: _ByIndex) -> dict[str, str]:
    def at(i: int, function: _ByIndex) -> str:
        return string(lambda buffer, size: function(handle, i, buffer, size))

    return {at(i, key): at(i, value) for i in range(count)}


def string(write: Callable[[Any, int], int]) -> str:
    """The text that `write(buffer, size)` makes; it returns the text's length even where the buffer is shorter."""
    size = 256
    while True:
        buffer = create_string_buffer(size)
        length = write(buffer, size)
        if length < size:
            return buffer.value.decode("utf-8", "replace")
        size = length + 1
