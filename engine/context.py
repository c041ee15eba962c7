"""A model's working memory: the KV cache of its sequences, and the step that reads a batch into it."""

import ctypes
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from engine import library, llama
from engine.batch import Batch
from engine.gguf import ModelError, reason
from engine.lora import Adapter
from engine.model import Model

Floats = npt.NDArray[np.float32]
FLASH_ATTN = {
    "auto": llama.FlashAttnType.AUTO,
    "on": llama.FlashAttnType.ENABLED,
    "off": llama.FlashAttnType.DISABLED,
}
END = 2**31 - 1  # after the last position


class Context:
    """What `n_seq_max` sequences hold of `n_ctx` tokens (0: as many as the model was trained for)."""

    def __init__(
        self,
        model: Model,
        *,
        pooling: str | None = None,
        flash_attn: str | None = None,
        type_k: str | None = None,
        type_v: str | None = None,
        **params: Any,
    ) -> None:
        """`params` are fields of `llama_context_params`: n_ctx, n_batch, n_ubatch, n_seq_max, n_threads, kv_unified, …

        None stands for libllama's default. ModelError gives libllama's reason when the context cannot be made.
        """
        params["pooling_type"] = _named(llama.PoolingType, "pooling", pooling)
        params["flash_attn_type"] = FLASH_ATTN[flash_attn] if flash_attn else None
        params["type_k"] = _named(llama.GgmlType, "type_k", type_k)
        params["type_v"] = _named(llama.GgmlType, "type_v", type_v)
        native = _params(params)
        with library.collect_errors() as errors:
            self.ptr = llama.llama_init_from_model(model.ptr, native)
        if not self.ptr:
            raise ModelError(f"{model.path}: no context: {reason(errors)}")
        self.model = model
        self.memory = llama.llama_get_memory(self.ptr)
        self.n_ctx = llama.llama_n_ctx(self.ptr)
        self.n_ctx_seq = llama.llama_n_ctx_seq(self.ptr)
        self.n_batch = llama.llama_n_batch(self.ptr)
        self.n_ubatch = llama.llama_n_ubatch(self.ptr)
        self.n_seq_max = llama.llama_n_seq_max(self.ptr)
        self.kv_unified = bool(native.kv_unified)
        self.pooling = llama.PoolingType(llama.llama_pooling_type(self.ptr))
        self.can_shift = llama.llama_memory_can_shift(self.memory)
        self._n_vocab = model.vocab.n_tokens
        self._n_pooled = model.n_cls_out if self.pooling == llama.PoolingType.RANK else model.n_embd_out
        self._rows: dict[tuple[int, int], Floats] = {}

    def close(self) -> None:
        """Free the context. Views that `logits` and `embeddings` gave out are dead then."""
        if self.ptr:
            self._rows.clear()
            llama.llama_free(self.ptr)
            self.ptr = llama.Context()

    @property
    def has_memory(self) -> bool:
        """False for models that keep nothing between batches, such as BERT."""
        return bool(self.memory)

    def decode(self, batch: Batch | llama.llama_batch) -> int:
        """Read `batch` into the cache. 0: done; 1: no room, nothing changed; 2: aborted, and below -1: failed, with the
        micro-batches before it kept; -1: invalid batch.
        """
        return llama.llama_decode(self.ptr, self._fitting(batch))

    def encode(self, batch: Batch | llama.llama_batch) -> int:
        """Run `batch` through the encoder, without the cache. 0: done; negative: failed."""
        return llama.llama_encode(self.ptr, self._fitting(batch))

    def _fitting(self, batch: Batch | llama.llama_batch) -> llama.llama_batch:
        struct = batch.struct if isinstance(batch, Batch) else batch
        if struct.n_tokens > self.n_batch:  # libllama would abort
            raise ValueError(f"a batch of {struct.n_tokens} tokens; at most n_batch = {self.n_batch}")
        return struct

    def logits(self, row: int) -> Floats:
        """The logits [n_vocab] that follow batch row `row`: a view, good until the next decode."""
        return self._view(llama.llama_get_logits_ith(self.ptr, row), self._n_vocab, row)

    def embeddings(self, row: int) -> Floats:
        """The embedding [n_embd_out] of batch row `row`: a view, good until the next decode."""
        return self._view(llama.llama_get_embeddings_ith(self.ptr, row), self.model.n_embd_out, row)

    def embeddings_seq(self, sequence: int) -> Floats:
        """The pooled embedding of `sequence`, with rank pooling its scores [n_cls_out]: a view, good until the next decode."""
        return self._view(llama.llama_get_embeddings_seq(self.ptr, sequence), self._n_pooled, sequence)

    def _view(self, pointer: Any, length: int, asked: int) -> Floats:
        address = pointer.value
        if not address:
            raise IndexError(f"the last decode has no output for {asked}")
        view = self._rows.get((address, length))
        if view is None:
            if len(self._rows) > 4096:  # libllama's buffer moves when it grows
                self._rows.clear()
            view = np.frombuffer((ctypes.c_float * length).from_address(address), np.float32)
            self._rows[address, length] = view
        return view

    def clear(self) -> None:
        """Forget every sequence."""
        llama.llama_memory_clear(self.memory, True)

    def seq_rm(self, sequence: int, start: int, end: int | None = None) -> bool:
        """Forget positions `start`…`end`-1 of `sequence` (to its end for None). False where that cannot be cut."""
        return llama.llama_memory_seq_rm(self.memory, sequence, start, END if end is None else end)

    def seq_cp(self, source: int, target: int, start: int = 0, end: int | None = None) -> None:
        """Make positions `start`…`end`-1 of `source` also `target`'s.

        Unified: shares the cells, and `target` keeps what it had. Streams: `target` becomes a copy, and can then be cut.
        """
        if self.kv_unified:
            llama.llama_memory_seq_cp(self.memory, source, target, start, END if end is None else end)
            return
        llama.llama_memory_seq_cp(self.memory, source, target, -1, -1)
        if start > 0:
            self.seq_rm(target, 0, start)
        if end is not None:
            self.seq_rm(target, end)

    def seq_keep(self, sequence: int) -> None:
        """Forget every other sequence."""
        llama.llama_memory_seq_keep(self.memory, sequence)

    def seq_add(self, sequence: int, start: int, end: int | None, delta: int) -> None:
        """Move positions `start`…`end`-1 of `sequence` by `delta`. Cells shared with another sequence move for it too."""
        llama.llama_memory_seq_add(self.memory, sequence, start, END if end is None else end, delta)

    def seq_pos_min(self, sequence: int) -> int | None:
        """The first position held for `sequence`; None when it is empty."""
        position = llama.llama_memory_seq_pos_min(self.memory, sequence)
        return None if position < 0 else position

    def seq_pos_max(self, sequence: int) -> int | None:
        """The last position held for `sequence`; None when it is empty."""
        position = llama.llama_memory_seq_pos_max(self.memory, sequence)
        return None if position < 0 else position

    def state_size(self, sequence: int, flags: int = 0) -> int:
        """Bytes that `state_get` would return."""
        return llama.llama_state_seq_get_size_ext(self.ptr, sequence, flags)

    def state_get(self, sequence: int, flags: int = 0) -> npt.NDArray[np.uint8]:
        """A copy of what is held for `sequence`."""
        data = np.empty(self.state_size(sequence, flags), np.uint8)
        n = llama.llama_state_seq_get_data_ext(self.ptr, data.ctypes.data, len(data), sequence, flags)
        return data[:n]

    def state_set(self, sequence: int, data: npt.NDArray[np.uint8] | bytes, flags: int = 0) -> bool:
        """Put a copy that `state_get` made into `sequence`. False when it does not fit; the sequence is empty then."""
        source = np.frombuffer(data, np.uint8)
        n = llama.llama_state_seq_set_data_ext(self.ptr, source.ctypes.data, len(source), sequence, flags)
        return n != 0

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None:
        """Threads for steps of one token, and for larger ones."""
        llama.llama_set_n_threads(self.ptr, n_threads, n_threads_batch)

    def set_embeddings(self, wanted: bool) -> None:
        """Whether the next decodes give embeddings (of every row) beside logits."""
        llama.llama_set_embeddings(self.ptr, wanted)

    def set_causal(self, causal: bool) -> None:
        """Whether tokens attend to earlier ones only."""
        llama.llama_set_causal_attn(self.ptr, causal)

    def set_lora(self, adapters: Sequence[tuple[Adapter, float]]) -> None:
        """Apply these adapters, each with its scale, and no others from the next decode on."""
        n = len(adapters)
        pointers = (ctypes.c_void_p * n)(*[adapter.ptr.value for adapter, _ in adapters])
        scales = (ctypes.c_float * n)(*[scale for _, scale in adapters])
        if llama.llama_set_adapters_lora(self.ptr, pointers, n, scales) != 0:
            raise ModelError("the adapters could not be applied")

    def synchronize(self) -> None:
        """Wait until the last decode is computed."""
        llama.llama_synchronize(self.ptr)


def _named(kind: type[IntEnum], field: str, name: str | None) -> int | None:
    if name is None:
        return None
    if name.upper() not in kind.__members__:
        raise ModelError(f"{field}: {name!r} is none of {', '.join(kind.__members__).lower()}")
    return kind[name.upper()]


def _params(fields: dict[str, Any]) -> llama.llama_context_params:
    params = llama.llama_context_default_params()
    for name, value in fields.items():
        if name not in llama.CONTEXT_FIELDS:
            raise TypeError(f"llama_context_params has no field {name!r}")
        if value is not None:
            setattr(params, name, value)
    return params
