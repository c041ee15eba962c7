"""A model's working memory: the KV cache of its sequences, and the step that reads a batch into it."""

import ctypes
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from engine import library, llama
from engine.batch import Batch
from engine.gguf import ModelError, fill, reason
from engine.lora import Adapter
from engine.model import Model

Floats = npt.NDArray[np.float32]
INVALID_BATCH = -1


class FlashAttn(IntEnum):
    """`llama.FlashAttnType` by the names that users give."""

    AUTO = llama.FlashAttnType.AUTO
    ON = llama.FlashAttnType.ENABLED
    OFF = llama.FlashAttnType.DISABLED


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
        params["flash_attn_type"] = _named(FlashAttn, "flash_attn", flash_attn)
        params["type_k"] = _named(llama.GgmlType, "type_k", type_k)
        params["type_v"] = _named(llama.GgmlType, "type_v", type_v)
        native = llama.llama_context_default_params()
        fill(native, params)
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
        self._causal = llama.llama_get_causal_attn(self.ptr)
        self._n_vocab = model.vocab.n_tokens
        self._n_pooled = model.n_cls_out if self.pooling == llama.PoolingType.RANK else model.n_embd_out
        self._rows: dict[tuple[int, int], Floats] = {}  # views by address and length
        self._read_later: set[int] = set()  # sequences that copies not made yet come from
        self._written_later: set[int] = set()  # sequences whose copies or shifts are not made yet

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
        code = llama.llama_decode(self.ptr, self._fitting(batch, self.batch_limit))
        if code != INVALID_BATCH and (self._written_later or self._read_later):
            self._read_later.clear()
            self._written_later.clear()
        return code

    def encode(self, batch: Batch | llama.llama_batch) -> int:
        """Run `batch` through the encoder, without the cache. 0: done; negative: failed."""
        return llama.llama_encode(self.ptr, self._fitting(batch, self.n_ubatch))

    @property
    def batch_limit(self) -> int:
        """The most tokens that one `decode` takes: without memory or causal order a batch is not split."""
        return self.n_batch if self._causal and self.memory else self.n_ubatch

    def _fitting(self, batch: Batch | llama.llama_batch, limit: int) -> llama.llama_batch:
        struct = batch.struct if isinstance(batch, Batch) else batch
        if struct.n_tokens > limit:  # libllama would abort the process
            raise ValueError(f"a batch of {struct.n_tokens} tokens; this context takes at most {limit}")
        return struct

    def logits(self, row: int) -> Floats:
        """The logits [n_vocab] that follow batch row `row`: a view, good until the next decode."""
        return self._view(llama.llama_get_logits_ith(self.ptr, row), self._n_vocab, row)

    def embeddings(self, row: int) -> Floats:
        """The embedding [n_embd_out] of batch row `row`: a view, good until the next decode."""
        return self._view(llama.llama_get_embeddings_ith(self.ptr, row), self.model.n_embd_out, row)

    def embeddings_seq(self, seq: int) -> Floats:
        """The pooled embedding [n_embd_out] of `seq`, or its scores [n_cls_out] with rank pooling: a view as above."""
        return self._view(llama.llama_get_embeddings_seq(self.ptr, seq), self._n_pooled, seq)

    def _view(self, pointer: Any, length: int, asked: int) -> Floats:
        address = pointer.value
        if not address:
            raise IndexError(f"the last decode has no output for {asked}")
        view = self._rows.get((address, length))
        if view is None:
            if len(self._rows) > 4096:  # libllama's buffer moves when it grows
                self._rows.clear()
            view = np.ctypeslib.as_array((ctypes.c_float * length).from_address(address))
            self._rows[address, length] = view
        return view

    def clear(self) -> None:
        """Forget every sequence."""
        llama.llama_memory_clear(self.memory, True)

    def seq_rm(self, seq: int, p0: int, p1: int) -> bool:
        """Forget positions `p0`…`p1`-1 of `seq`. False where the memory cannot be cut there.

        Here and below a negative `p0` means from the start, a negative `p1` to the end.
        """
        return llama.llama_memory_seq_rm(self.memory, seq, p0, p1)

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        """Give `dst` the positions `p0`…`p1`-1 of `src`.

        Unified: the cells are shared; `dst` keeps what it had. Streams: `dst` becomes a copy, made by the next decode.
        """
        if self.kv_unified:
            llama.llama_memory_seq_cp(self.memory, src, dst, p0, p1)
            return
        llama.llama_memory_seq_cp(self.memory, src, dst, -1, -1)  # libllama copies whole streams only
        self._read_later.add(src)
        self._written_later.add(dst)
        if p0 > 0:
            self.seq_rm(dst, 0, p0)
        if p1 >= 0:
            self.seq_rm(dst, p1, -1)

    def seq_keep(self, seq: int) -> None:
        """Forget every other sequence."""
        llama.llama_memory_seq_keep(self.memory, seq)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Move positions `p0`…`p1`-1 of `seq` by `delta`; cells shared with another sequence move for it too."""
        llama.llama_memory_seq_add(self.memory, seq, p0, p1, delta)
        self._written_later.add(seq)

    def seq_pos_min(self, seq: int) -> int:
        """The first position held for `seq`; -1 when there is none."""
        return llama.llama_memory_seq_pos_min(self.memory, seq)

    def seq_pos_max(self, seq: int) -> int:
        """The last position held for `seq`; -1 when there is none."""
        return llama.llama_memory_seq_pos_max(self.memory, seq)

    def state_size(self, seq: int, flags: int = 0) -> int:
        """Bytes that `state_get` would return."""
        return llama.llama_state_seq_get_size_ext(self.ptr, seq, flags)

    def state_get(self, seq: int, flags: int = 0) -> npt.NDArray[np.uint8]:
        """A copy of what is held for `seq`; empty in the rare case that it cannot be had now."""
        if seq in self._written_later and not self._apply_later(seq):
            return np.empty(0, np.uint8)
        data = np.empty(self.state_size(seq, flags), np.uint8)
        n = llama.llama_state_seq_get_data_ext(self.ptr, data.ctypes.data, len(data), seq, flags)
        return data[:n]

    def state_set(self, seq: int, data: npt.NDArray[np.uint8] | bytes, flags: int = 0) -> bool:
        """Put a copy that `state_get` made into `seq`. False when that fails: what `seq` holds then is undefined."""
        if seq in self._written_later or seq in self._read_later:
            if not flags:  # else it replaces a part of what is there
                self.seq_rm(seq, -1, -1)
            if not self._apply_later(seq):
                return False
        source = np.frombuffer(data, np.uint8)
        n = llama.llama_state_seq_set_data_ext(self.ptr, source.ctypes.data, len(source), seq, flags)
        return n != 0

    def _apply_later(self, seq: int) -> bool:
        """Make libllama carry out the copies and shifts it has put off. False where that is not possible.

        A state saved now would lack them, and one restored now would be overwritten by them. Only a decode does it: of
        one token, in an empty sequence or after the end of `seq`, which is taken out again.
        """
        vehicle = next((s for s in range(self.n_seq_max) if self.seq_pos_max(s) < 0), seq)
        position = self.seq_pos_max(vehicle) + 1
        if position and (self.model.is_recurrent or self.model.is_hybrid):  # cannot take it out again
            return False
        batch = Batch(1)
        batch.add_token(0, position, vehicle)
        self.decode(batch)
        return self.seq_rm(vehicle, position, -1)

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None:
        """Threads for steps of one token, and for larger ones."""
        llama.llama_set_n_threads(self.ptr, n_threads, n_threads_batch)

    def set_embeddings(self, wanted: bool) -> None:
        """Whether the next decodes give embeddings (of every row) beside logits."""
        llama.llama_set_embeddings(self.ptr, wanted)

    def set_causal(self, causal: bool) -> None:
        """Whether tokens attend to earlier ones only."""
        llama.llama_set_causal_attn(self.ptr, causal)
        self._causal = causal

    def set_lora(self, adapters: Sequence[tuple[Adapter, float]]) -> None:
        """Apply these adapters, each with its scale, and no others from the next decode on."""
        n = len(adapters)
        pointers = (ctypes.c_void_p * n)(*[adapter.ptr.value for adapter, _ in adapters])
        scales = (ctypes.c_float * n)(*[scale for _, scale in adapters])
        if llama.llama_set_adapters_lora(self.ptr, pointers, n, scales) != 0:
            raise ModelError("the adapters could not be applied")

    def set_control_vector(self, directions: Floats, layers: tuple[int, int] | None = None) -> None:
        """Add `directions` [n_layer - 1, n_embd] to the outputs of layers 1 and up; `layers`: first and last."""
        first, last = layers or (1, len(directions))
        data = np.ascontiguousarray(directions, np.float32)
        n_embd = data.shape[1]
        if llama.llama_set_adapter_cvec(self.ptr, data.ctypes.data, data.size, n_embd, first, last) != 0:
            raise ModelError("the control vector could not be applied")

    def synchronize(self) -> None:
        """Wait until the last decode is computed."""
        llama.llama_synchronize(self.ptr)


def _named(kind: type[IntEnum], field: str, name: str | None) -> int | None:
    if name is None:
        return None
    if name.upper() not in kind.__members__:
        raise ModelError(f"{field}: {name!r} is none of {', '.join(kind.__members__).lower()}")
    return kind[name.upper()]
