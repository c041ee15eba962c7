"""The words that `engine.llama` is written in: C types as annotations, and `c`, which declares a C function.

What mypy sees is what Python passes and gets; what ctypes sees is the C type.
"""

import ctypes
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_bool, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, TypeVar


class NotLoaded(RuntimeError):
    """A function of libllama was called before `library.load`."""


class Handle(c_void_p):
    """A pointer to the opaque C struct `struct`. ctypes refuses one where another belongs; NULL is falsy."""

    struct: str

    def __init_subclass__(cls, struct: str) -> None:
        cls.struct = struct


if TYPE_CHECKING:
    from _ctypes import CFuncPtr

    i32 = int
    i64 = int
    u32 = int
    u64 = int
    size_t = int
    f32 = float
    string = bytes | None
    void_p = Any  # an address as int, a ctypes array, byref(…) or None
    i8_p = Any
    u8_p = Any
    i32_p = Any
    i32_pp = Any
    size_p = Any
    f32_p = Any
    char_p = Any
    string_p = Any
    adapter_p = Any
    device_p = Any
    logit_bias_p = Any
    token_data_array_p = Any
    chat_message_p = Any

    class ggml_log_callback(CFuncPtr): ...

    class ggml_abort_callback(CFuncPtr): ...

    class ggml_abort_callback_t(CFuncPtr): ...

    class llama_progress_callback(CFuncPtr): ...

else:

    class Pointer(c_void_p):
        """A typed pointer that also takes an address as int, such as a numpy array's `.ctypes.data`."""

        pointee: str

    def pointer_to(pointee: str) -> type[Pointer]:
        return type(f"{pointee} *", (Pointer,), {"pointee": pointee})

    i32, i64, u32, u64, size_t, f32 = c_int32, c_int64, c_uint32, c_uint64, c_size_t, c_float
    string, void_p = c_char_p, c_void_p
    i8_p, u8_p, i32_p, i32_pp = map(pointer_to, ("int8_t", "uint8_t", "int32_t", "int32_t *"))
    size_p, f32_p, char_p, string_p = map(pointer_to, ("size_t", "float", "char", "char *"))
    adapter_p, device_p = map(pointer_to, ("llama_adapter_lora *", "ggml_backend_device *"))
    logit_bias_p, token_data_array_p = map(pointer_to, ("llama_logit_bias", "llama_token_data_array"))
    chat_message_p = pointer_to("llama_chat_message")

    def function(name: str, restype: Any, *argtypes: Any) -> type[Any]:
        base = CFUNCTYPE(restype, *argtypes)
        return type(name, (base,), {"_flags_": base._flags_, "_restype_": restype, "_argtypes_": argtypes})

    ggml_log_callback = function("ggml_log_callback", None, c_int, c_char_p, c_void_p)  # level, text, user data
    ggml_abort_callback = function("ggml_abort_callback", c_bool, c_void_p)  # user data; true ends the decode
    ggml_abort_callback_t = function("ggml_abort_callback_t", None, c_char_p)  # what failed; the process then aborts
    llama_progress_callback = function("llama_progress_callback", c_bool, c_float, c_void_p)  # 0…1; false ends the load

F = TypeVar("F", bound=Callable[..., Any])
FUNCTIONS: dict[str, list[Any]] = {}  # every declared function: its arguments' types, then its result's


def c(declaration: F) -> F:
    """Declare a C function by its Python signature; `bind` later puts the real one in its place."""
    name = declaration.__name__
    FUNCTIONS[name] = [c_bool if t is bool else t for t in declaration.__annotations__.values()]

    def unbound(*arguments: Any) -> Any:
        raise NotLoaded(f"{name} was called before engine.library.load()")

    return update_wrapper(unbound, declaration)  # type: ignore[return-value]


def missing(library: ctypes.CDLL) -> list[str]:
    """Names of declared functions that `library` does not export."""
    return [name for name in FUNCTIONS if not hasattr(library, name)]


def bind(namespace: dict[str, Any], library: ctypes.CDLL) -> None:
    """Replace the declarations in `namespace` by the functions of `library`."""
    for name, (*arguments, result) in FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
        namespace[name] = function
