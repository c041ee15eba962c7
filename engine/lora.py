"""LoRA adapters: small weight changes that a context can switch on for a batch."""

import ctypes
from functools import cached_property
from pathlib import Path

from engine import gguf, library, llama


class Adapter:
    """An adapter loaded on a model. `close` frees it; otherwise it goes with the model."""

    def __init__(self, ptr: llama.Adapter, path: str) -> None:
        self.ptr = ptr
        self.path = path

    @classmethod
    def load(cls, model: llama.Model, path: str | Path) -> "Adapter":
        """ModelError when the file is no adapter for `model`."""
        if not Path(path).is_file():
            raise gguf.ModelError(f"{path}: no such file")
        with library.collect_errors() as errors:
            ptr = llama.llama_adapter_lora_init(model, str(path).encode())
        if not ptr:
            raise gguf.ModelError(f"{path}: {gguf.reason(errors)}")
        return cls(ptr, str(path))

    def close(self) -> None:
        """Free the adapter; no context may still use it, and its model must still be open."""
        if self.ptr:
            llama.llama_adapter_lora_free(self.ptr)
            self.ptr = llama.Adapter()

    @cached_property
    def meta(self) -> dict[str, str]:
        """The scalars of the file's metadata, as text."""
        return gguf.adapter_metadata(self.ptr)

    @cached_property
    def invocation_tokens(self) -> list[int]:
        """The token sequence that activates an aLoRA; empty for a plain LoRA."""
        n = llama.llama_adapter_get_alora_n_invocation_tokens(self.ptr)
        first = llama.llama_adapter_get_alora_invocation_tokens(self.ptr)
        return list((ctypes.c_int32 * n).from_address(first.value)) if n and first else []
