"""A loaded model: its weights, its vocabulary and what is known about it."""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine import gguf, library, llama
from engine.ctype import llama_progress_callback
from engine.gguf import ModelError
from engine.lora import Adapter
from engine.vocab import Vocab
from ipc.messages import ModelInfo

__all__ = ["Model", "ModelError"]

Progress = Callable[[float], None]


class Model:
    """Close it after every `Context` made from it."""

    def __init__(self, ptr: llama.Model, path: str) -> None:
        self.ptr = ptr
        self.path = path
        self.vocab = Vocab(ptr)
        self.n_embd = llama.llama_model_n_embd(ptr)
        self.n_embd_out = llama.llama_model_n_embd_out(ptr)
        self.n_cls_out = llama.llama_model_n_cls_out(ptr)
        self.n_ctx_train = llama.llama_model_n_ctx_train(ptr)
        self.n_layer = llama.llama_model_n_layer(ptr)
        self.n_swa = llama.llama_model_n_swa(ptr)
        self.size = llama.llama_model_size(ptr)
        self.has_encoder = llama.llama_model_has_encoder(ptr)
        self.has_decoder = llama.llama_model_has_decoder(ptr)
        self.is_recurrent = llama.llama_model_is_recurrent(ptr)
        self.is_hybrid = llama.llama_model_is_hybrid(ptr)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        progress: Progress | None = None,
        kv_overrides: Mapping[str, bool | int | float | str] | None = None,
        tensor_split: Sequence[float] = (),
        devices: Sequence[str] = (),
        **params: Any,
    ) -> "Model":
        """Load the GGUF file `path`, telling `progress` how far it is, 0…1.

        `params` are fields of `llama_model_params`: n_gpu_layers, split_mode, main_gpu, load_mode, lazy_mode,
        check_tensors, use_extra_bufts, no_host, … None stands for libllama's default. ModelError gives the reason when
        the file cannot be loaded.
        """
        library.load_backends()
        native = llama.llama_model_default_params()
        gguf.fill(native, params)
        keep = [  # what the params point to must outlive the call
            _set_progress(native, progress),
            _set_overrides(native, kv_overrides or {}),
            _set_tensor_split(native, tensor_split),
            _set_devices(native, devices),
        ]
        model = cls(gguf.open_model(path, native), str(path))
        del keep
        return model

    def close(self) -> None:
        """Free the weights and the adapters loaded on them."""
        if self.ptr:
            llama.llama_model_free(self.ptr)
            self.ptr = llama.Model()

    def load_adapter(self, path: str | Path) -> Adapter:
        """Load a LoRA adapter for this model; it is freed with the model. ModelError when it does not fit."""
        return Adapter.load(self.ptr, path)

    @property
    def meta(self) -> dict[str, str]:
        """The scalars of the file's metadata, as text."""
        return self.vocab.meta

    @property
    def labels(self) -> list[str]:
        """Names of a classifier's outputs; "" where the file names none."""
        labels = (llama.llama_model_cls_label(self.ptr, i) for i in range(self.n_cls_out))
        return [(label or b"").decode("utf-8", "replace") for label in labels]

    def info(self) -> ModelInfo:
        """What is told to clients; `pooling` and `can_shift` are the context's to fill in."""
        ptr = self.ptr
        return ModelInfo(
            path=self.path,
            desc=gguf.string(lambda buffer, size: llama.llama_model_desc(ptr, buffer, size)),
            architecture=self.meta.get("general.architecture", ""),
            n_params=llama.llama_model_n_params(ptr),
            size=self.size,
            ftype=(llama.llama_ftype_name(llama.llama_model_ftype(ptr)) or b"").decode(),
            n_vocab=self.vocab.n_tokens,
            n_ctx_train=self.n_ctx_train,
            n_embd=self.n_embd,
            n_embd_out=self.n_embd_out,
            n_layer=self.n_layer,
            vocab_type=self.vocab.type,
            has_encoder=self.has_encoder,
            has_decoder=self.has_decoder,
            n_swa=self.n_swa,
        )


def _set_progress(params: llama.llama_model_params, progress: Progress | None) -> Any:
    if progress is None:
        return None

    def tell(done: float, user_data: object) -> bool:
        progress(done)
        return True

    params.progress_callback = callback = llama_progress_callback(tell)
    return callback


def _set_overrides(params: llama.llama_model_params, overrides: Mapping[str, bool | int | float | str]) -> Any:
    """The list ends with an entry whose key is empty."""
    if not overrides:
        return None
    array = (llama.llama_model_kv_override * (len(overrides) + 1))()
    for entry, (key, value) in zip(array, overrides.items(), strict=False):
        entry.key = key.encode()
        if isinstance(value, bool):
            entry.tag, entry.val_bool = llama.KvOverrideType.BOOL, value
        elif isinstance(value, int):
            entry.tag, entry.val_i64 = llama.KvOverrideType.INT, value
        elif isinstance(value, float):
            entry.tag, entry.val_f64 = llama.KvOverrideType.FLOAT, value
        else:
            entry.tag, entry.val_str = llama.KvOverrideType.STR, value.encode()
    params.kv_overrides = array
    return array


def _set_tensor_split(params: llama.llama_model_params, split: Sequence[float]) -> Any:
    if not split:
        return None
    limit = llama.llama_max_devices()
    if len(split) > limit:
        raise ModelError(f"tensor_split: {len(split)} shares given, at most {limit} devices are supported")
    array = (ctypes.c_float * limit)(*split)
    params.tensor_split = ctypes.addressof(array)
    return array


def _set_devices(params: llama.llama_model_params, names: Sequence[str]) -> Any:
    """The list ends with NULL."""
    if not names:
        return None
    devices = [llama.ggml_backend_dev_by_name(name.encode()) for name in names]
    for name, device in zip(names, devices, strict=True):
        if not device:
            raise ModelError(f"device {name!r} not found; there are {', '.join(library.device_names())}")
    array = (ctypes.c_void_p * (len(devices) + 1))(*[device.value for device in devices])
    params.devices = ctypes.addressof(array)
    return array
