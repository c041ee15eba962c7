"""Recognises a libllama by the default parameters it returns: a shifted, missing or added field shows in the values."""

import ctypes
import platform
from collections.abc import Iterator
from typing import Any

from engine import llama

SPARE = 256  # bytes past the end of our struct, to see whether the library's is longer
FILL = 0xA5

# Fields not named are zero. Values of llama_*_default_params in llama.cpp.
MODEL = {"n_gpu_layers": -1, "split_mode": 1, "load_mode": -1, "lazy_mode": 1, "use_extra_bufts": True}
CONTEXT = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_outputs_max_per_seq": 1,
    "n_threads": 4,
    "n_threads_batch": 4,
    "rope_scaling_type": -1,
    "pooling_type": -1,
    "attention_type": -1,
    "flash_attn_type": -1,
    "yarn_ext_factor": -1.0,
    "yarn_attn_factor": -1.0,
    "yarn_beta_fast": -1.0,
    "yarn_beta_slow": -1.0,
    "defrag_thold": -1.0,
    "type_k": 1,
    "type_v": 1,
    "offload_kqv": True,
    "no_perf": True,
    "op_offload": True,
    "swa_full": True,
}
EXPECTED: dict[str, tuple[type[ctypes.Structure], dict[str, Any]]] = {
    "llama_model_default_params": (llama.llama_model_params, MODEL),
    "llama_context_default_params": (llama.llama_context_params, CONTEXT),
}


def check_defaults(library: ctypes.CDLL) -> Iterator[str]:
    """What differs between `library`'s default parameters and ours, one sentence each."""
    for function, (struct, expected) in EXPECTED.items():
        raw = read_result(library, function, ctypes.sizeof(struct) + SPARE)
        params = struct.from_buffer(raw)
        for name, *_ in struct._fields_:
            found, wanted = plain(getattr(params, name)), expected.get(name, 0)
            if found != wanted:
                yield f"{function}().{name} is {found}, not {wanted}"
        if platform.machine() in RESULT_BY_ADDRESS and raw[ctypes.sizeof(struct) :].strip(bytes([FILL])):
            yield f"{struct.__name__} is longer than declared"


RESULT_BY_ADDRESS = ("x86_64", "AMD64")


def read_result(library: ctypes.CDLL, function: str, size: int) -> bytearray:
    """What `function` returns, read as `size` bytes.

    On x86-64 a large struct is returned through an address in the first argument, which lets us prefill the buffer and
    see exactly what was written.
    """
    if platform.machine() in RESULT_BY_ADDRESS:
        raw = bytearray([FILL]) * size
        prototype = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
        prototype((function, library))((ctypes.c_uint8 * size).from_buffer(raw))
        return raw
    oversized = type("oversized", (ctypes.Structure,), {"_fields_": [("bytes", ctypes.c_uint8 * size)]})
    return bytearray(ctypes.CFUNCTYPE(oversized)((function, library))())


def plain(value: Any) -> Any:
    """A field's value as a number; pointers become their truth."""
    return value if isinstance(value, bool | int | float) else bool(value)
