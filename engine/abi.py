"""Proves `engine.llama` against libllama's headers: every declaration becomes a C++ static assertion.

python -m engine.abi --headers DIR [--headers DIR …] [--compiler c++]
"""

import argparse
import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import Any

from engine import llama
from engine.ctype import FUNCTIONS, Handle

HEADERS = ("llama.h", "ggml.h", "ggml-backend.h", "ggml-cpu.h", "gguf.h")
ENUMS: dict[str, type[IntEnum] | type[IntFlag]] = {
    "LLAMA_VOCAB_TYPE": llama.VocabType,
    "LLAMA_POOLING_TYPE": llama.PoolingType,
    "LLAMA_ROPE_SCALING_TYPE": llama.RopeScalingType,
    "LLAMA_ATTENTION_TYPE": llama.AttentionType,
    "LLAMA_FLASH_ATTN_TYPE": llama.FlashAttnType,
    "LLAMA_SPLIT_MODE": llama.SplitMode,
    "LLAMA_LOAD_MODE": llama.LoadMode,
    "LLAMA_LAZY_MODE": llama.LazyMode,
    "LLAMA_KV_OVERRIDE_TYPE": llama.KvOverrideType,
    "LLAMA_TOKEN_ATTR": llama.TokenAttr,
    "GGML_LOG_LEVEL": llama.LogLevel,
    "GGML_BACKEND_DEVICE_TYPE": llama.DeviceType,
    "GGML_NUMA_STRATEGY": llama.NumaStrategy,
    "GGML_TYPE": llama.GgmlType,
}
CONSTANTS = {
    "LLAMA_DEFAULT_SEED": llama.DEFAULT_SEED,
    "LLAMA_TOKEN_NULL": llama.TOKEN_NULL,
    "LLAMA_STATE_SEQ_MAGIC": llama.STATE_SEQ_MAGIC,
    "LLAMA_STATE_SEQ_VERSION": llama.STATE_SEQ_VERSION,
    "LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY": llama.STATE_SEQ_PARTIAL_ONLY,
    "LLAMA_STATE_SEQ_FLAGS_ON_DEVICE": llama.STATE_SEQ_ON_DEVICE,
}
SCALARS: dict[Any, str] = {
    None: "void",
    ctypes.c_bool: "bool",
    ctypes.c_char: "char",
    ctypes.c_int8: "int8_t",
    ctypes.c_int32: "int32_t",
    ctypes.c_uint32: "uint32_t",
    ctypes.c_int64: "int64_t",
    ctypes.c_uint64: "uint64_t",
    ctypes.c_size_t: "size_t",
    ctypes.c_float: "float",
    ctypes.c_double: "double",
    ctypes.c_char_p: "char *",
    ctypes.c_void_p: "void *",
}
COMPLAINT = re.compile(r"error: (?:static assertion failed(?: due to requirement '.*')?: )?(.*)")  # of gcc and clang
PRELUDE = """
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>

// Whether a value declared as D has the representation of an A. An int stands for an enum of its size, `void *` for
// every pointer, and const makes no difference.
template <class D, class A> constexpr bool fits() {
    using d = std::remove_cv_t<D>;
    using a = std::remove_cv_t<A>;
    if constexpr (std::is_same_v<d, a>) {
        return true;
    } else if constexpr (std::is_pointer_v<d> && std::is_pointer_v<a>) {
        using pointee = std::remove_cv_t<std::remove_pointer_t<d>>;
        return std::is_void_v<pointee> || fits<pointee, std::remove_pointer_t<a>>();
    } else if constexpr (std::is_integral_v<d> && std::is_enum_v<a>) {
        return sizeof(d) == sizeof(a) && !std::is_same_v<d, bool>;
    } else if constexpr (std::is_integral_v<d> && std::is_integral_v<a>) {
        return sizeof(d) == sizeof(a) && std::is_signed_v<d> == std::is_signed_v<a> &&
               std::is_same_v<d, bool> == std::is_same_v<a, bool>;
    } else {
        return false;
    }
}

struct none {};
template <class F> struct function;
template <class R, class... A> struct function<R (*)(A...)> {
    using result = R;
    static constexpr size_t arguments = sizeof...(A);
    template <size_t I> using argument = std::tuple_element_t<
        (I < arguments ? I : arguments), std::tuple<std::conditional_t<std::is_void_v<A>, none, A>..., none>>;
};

// Whether T has exactly N members: it can be made from N values of any type, and not from one more.
struct any { template <class T> operator T() const; };
template <size_t> using any_at = any;
template <class T, class I, class = void> struct made_from : std::false_type {};
template <class T, size_t... I>
struct made_from<T, std::index_sequence<I...>, std::void_t<decltype(T{any_at<I>{}...})>> : std::true_type {};
template <class T, size_t N> constexpr bool has_members() {
    return made_from<T, std::make_index_sequence<N>>::value && !made_from<T, std::make_index_sequence<N + 1>>::value;
}
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.abi", description="Prove the binding against headers.")
    parser.add_argument("--headers", action="append", required=True, type=Path, help="folder with llama.h, ggml*.h")
    parser.add_argument("--compiler", default="c++")
    options = parser.parse_args()
    errors = prove(options.headers, options.compiler)
    print("\n".join(errors) or f"{len(FUNCTIONS)} functions and {len(structs())} structs agree with the headers")
    return 1 if errors else 0


def prove(headers: list[Path], compiler: str = "c++", checks: Iterable[str] | None = None) -> list[str]:
    """What the compiler finds wrong with `checks` (default: all), one line per declaration; empty when nothing is."""
    includes = [argument for folder in headers for argument in ("-I", str(folder))]
    command = [compiler, "-std=c++17", "-fsyntax-only", "-w", *includes, "-x", "c++", "-"]
    program = "\n".join([*(f'#include "{header}"' for header in HEADERS), PRELUDE, *(checks or all_checks())])
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        run = subprocess.run(command, input=program, capture_output=True, text=True, timeout=120, env=environment)
    except FileNotFoundError:
        return [f"no compiler {compiler!r}: install one, or name one with --compiler"]
    if run.returncode == 0:
        return []
    return COMPLAINT.findall(run.stderr) or [run.stderr]


def all_checks() -> Iterator[str]:
    """Static assertions that hold where the headers agree with `engine.llama`."""
    for name, value in CONSTANTS.items():
        yield check(f"{name} == {value}", f"{name} is not {value}")
    for prefix, enum in ENUMS.items():
        yield from enum_checks(prefix, enum)
    for struct in structs():
        yield from struct_checks(struct)
    for name, types in FUNCTIONS.items():
        yield from function_checks(name, types)


def enum_checks(prefix: str, enum: Iterable[IntEnum | IntFlag]) -> Iterator[str]:
    for member in enum:
        name = f"{prefix}_{member.name}"
        yield check(f"{name} == {member.value}", f"{name} is not {member.value}")


def structs() -> list[type[ctypes.Structure]]:
    """The C structs that `engine.llama` declares."""
    classes = [value for value in vars(llama).values() if isinstance(value, type)]
    return [kind for kind in classes if issubclass(kind, ctypes.Structure) and kind is not ctypes.Structure]


def struct_checks(struct: type[ctypes.Structure]) -> Iterator[str]:
    name = struct.__name__
    for field, kind, offset in fields(struct):
        where = f"{name}.{field}"
        yield check(f"offsetof({name}, {field}) == {offset}", f"{where} is not at byte {offset}")
        yield check(f"fits<{cpp(kind)}, decltype({name}::{field})>()", f"{where} is not a {cpp(kind)}")
    size = ctypes.sizeof(struct)
    yield check(f"sizeof({name}) == {size}", f"{name} is not {size} bytes long")
    if not hasattr(struct, "_anonymous_"):
        n = len(struct._fields_)
        yield check(f"has_members<{name}, {n}>()", f"{name} does not have {n} members")


def fields(struct: Any) -> Iterator[tuple[str, Any, int]]:
    """Name, type and offset of each member; an anonymous union's members count as the struct's."""
    for name, kind in struct._fields_:
        offset = getattr(struct, name).offset
        if name in getattr(struct, "_anonymous_", ()):
            yield from ((inner, inner_kind, offset) for inner, inner_kind in kind._fields_)
        else:
            yield name, kind, offset


def function_checks(name: str, types: list[Any]) -> Iterator[str]:
    *arguments, result = types
    f = f"function<decltype(&{name})>"
    yield check(f"{f}::arguments == {len(arguments)}", f"{name} does not take {len(arguments)} arguments")
    for i, argument in enumerate(arguments):
        wanted = cpp(argument)
        yield check(f"fits<{wanted}, {f}::argument<{i}>>()", f"{name}: argument {i + 1} is not a {wanted}")
    yield check(f"fits<{cpp(result)}, {f}::result>()", f"{name} does not return a {cpp(result)}")


def check(condition: str, otherwise: str) -> str:
    return f'static_assert({condition}, "{otherwise}");'


def cpp(kind: Any) -> str:
    """The C++ spelling of a ctypes type."""
    if kind in SCALARS:
        return SCALARS[kind]
    if hasattr(kind, "pointee"):
        return f"{kind.pointee} *"
    if issubclass(kind, Handle):
        return f"{kind.struct} *"
    if issubclass(kind, ctypes.Array):
        return f"{cpp(kind._type_)}[{kind._length_}]"
    if issubclass(kind, ctypes._Pointer):
        return f"{cpp(kind._type_)} *"
    return str(kind.__name__)


if __name__ == "__main__":
    sys.exit(main())
