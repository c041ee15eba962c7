"""The declarations of engine.llama against the headers, and against a library built from others."""

import _ctypes
import ctypes
import platform
import shutil
import subprocess
from collections.abc import Callable
from enum import IntEnum
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from engine import abi, defaults, library, llama
from engine.ctype import FUNCTIONS, f32, i32, size_t, u32

COMPILER = shutil.which("c++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")


@pytest.fixture(scope="module")
def headers(lib: Path) -> Path:
    folder = lib / "include"
    if not folder.is_dir():
        pytest.skip(f"no headers in {folder}; build_llama.sh puts them there")
    return folder


@needs_compiler
def test_every_declaration_fits_the_headers(headers: Path) -> None:
    assert abi.prove([headers]) == []


@needs_compiler
def test_wrong_functions_are_named(headers: Path) -> None:
    wrong = {
        "llama_vocab_is_eog": [llama.Vocab, u32, ctypes.c_bool],
        "llama_sampler_init_min_p": [size_t, f32, llama.Sampler],
        "llama_n_ctx": [llama.Context, ctypes.c_int64],
        "llama_free": [llama.Model, None],
        "llama_vocab_bos": [i32],
        "llama_set_embeddings": [llama.Context, i32, None],
        "llama_no_such_function": [i32],
    }
    errors = abi.prove([headers], checks=chain.from_iterable(abi.function_checks(*item) for item in wrong.items()))
    assert errors[:7] == [
        "llama_vocab_is_eog: argument 2 is not a uint32_t",
        "llama_sampler_init_min_p: argument 1 is not a size_t",
        "llama_sampler_init_min_p: argument 2 is not a float",
        "llama_n_ctx does not return a int64_t",
        "llama_free: argument 1 is not a llama_model *",
        "llama_vocab_bos does not take 0 arguments",
        "llama_set_embeddings: argument 2 is not a int32_t",
    ]
    assert "llama_no_such_function" in errors[7]


def spoiled(struct: type[ctypes.Structure], change: Callable[[list[Any]], object]) -> type[ctypes.Structure]:
    """`struct` with its list of fields changed by `change`."""
    fields = list(struct._fields_)
    change(fields)
    return type(struct.__name__, (ctypes.Structure,), {"_fields_": fields})


@needs_compiler
def test_wrong_fields_are_named(headers: Path) -> None:
    wrong = [
        spoiled(llama.llama_context_params, lambda fields: fields.pop()),
        spoiled(llama.llama_model_params, lambda fields: fields.append(("extra", ctypes.c_uint8))),
        spoiled(llama.llama_token_data, lambda fields: fields.reverse()),
        spoiled(llama.llama_logit_bias, lambda fields: fields.__setitem__(1, ("bias", ctypes.c_int32))),
        spoiled(llama.llama_sampler_chain_params, lambda fields: fields.__setitem__(0, ("perf", ctypes.c_bool))),
    ]
    errors = abi.prove([headers], checks=chain.from_iterable(map(abi.struct_checks, wrong)))
    assert "llama_context_params is not 152 bytes long" in errors
    assert "llama_context_params does not have 36 members" in errors
    assert "llama_model_params does not have 18 members" in errors
    assert "llama_token_data.p is not at byte 0" in errors
    assert "llama_logit_bias.bias is not a int32_t" in errors
    assert any("llama_sampler_chain_params" in error and "perf" in error for error in errors)


@needs_compiler
def test_wrong_enum_value_is_named(headers: Path) -> None:
    shifted = IntEnum("PoolingType", {"UNSPECIFIED": -1, "NONE": 0, "CLS": 1})
    assert abi.prove([headers], checks=abi.enum_checks("LLAMA_POOLING_TYPE", shifted)) == [
        "LLAMA_POOLING_TYPE_CLS is not 1"
    ]


def test_missing_compiler_is_said() -> None:
    assert "no compiler 'no-such-compiler'" in abi.prove([Path()], "no-such-compiler")[0]


def test_default_parameters_are_recognised(lib: Path) -> None:
    loaded = ctypes.CDLL(str(lib / f"libllama{library.SUFFIX}"))
    assert list(defaults.check_defaults(loaded)) == []


@pytest.fixture
def build_library(tmp_path: Path):
    """Builds a library that has every declared function and whose context parameters have the given fields."""
    if COMPILER is None:
        pytest.skip("no C++ compiler")

    def build(context_fields: str) -> ctypes.CDLL:
        special = ("llama_context_default_params", "llama_model_default_params")
        stubs = "".join(f"void {name}(void) {{}}\n" for name in FUNCTIONS if name not in special)
        model = llama.llama_model_params
        size, layers = ctypes.sizeof(model), model.n_gpu_layers.offset
        source = f"""#include <cstdint>
#include <cstring>
extern "C" {{
{stubs}
struct model_params {{ char bytes[{size}]; }};
static void put(char * at, int32_t value) {{ memcpy(at, &value, 4); }}
model_params llama_model_default_params() {{
    model_params p{{}};
    put(p.bytes + {layers}, -1); put(p.bytes + {layers + 4}, 1); put(p.bytes + {layers + 8}, -1);
    put(p.bytes + {layers + 12}, 1); p.bytes[{model.use_extra_bufts.offset}] = 1;
    return p;
}}
struct context_params {{ {context_fields} }};
context_params llama_context_default_params() {{ return {{}}; }}
}}"""
        target = tmp_path / f"libforeign{library.SUFFIX}"
        command = [COMPILER, "-shared", "-fPIC", "-x", "c++", "-", "-o", str(target)]
        subprocess.run(command, input=source, text=True, check=True, timeout=60)
        return ctypes.CDLL(str(target))

    return build


FIELDS = """
uint32_t n_ctx = 512, n_batch = 2048, n_ubatch = 512, n_seq_max = 1, n_rs_seq = 0, outputs = 0, per_seq = 1;
int32_t threads = 4, threads_batch = 4, type = 0, rope = -1, pooling = -1, attention = -1, flash = -1;
float base = 0, scale = 0, ext = -1, attn = -1, fast = -1, slow = -1; uint32_t orig = 0; float defrag = -1;
void *eval = 0, *eval_data = 0; int32_t k = 1, v = 1; void *abort = 0, *abort_data = 0;
bool embeddings = 0, kqv = 1, no_perf = 1, op = 1, swa = 1, unified = 0;
void *samplers = 0; uint64_t n_samplers = 0; void *other = 0;
"""


def test_library_with_the_same_layout_passes(build_library, tmp_path: Path) -> None:
    library.check(build_library(FIELDS), tmp_path)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        (FIELDS.replace("n_rs_seq = 0, ", ""), "n_outputs_max is 1, not 0"),
        (FIELDS.replace("type = 0", "added = 7, type = 0"), "ctx_type is 7, not 0"),
        (FIELDS + "void *added = 0;", "longer than declared"),
        (FIELDS.replace("void *other = 0;", ""), "ctx_other is True, not 0"),
    ],
    ids=["removed", "inserted", "appended", "shorter"],
)
@pytest.mark.skipif(platform.machine() not in defaults.RESULT_BY_ADDRESS, reason="exact on x86-64 only")
def test_library_with_another_layout_is_refused(build_library, tmp_path: Path, fields: str, complaint: str) -> None:
    with pytest.raises(library.LibraryError, match=complaint) as refused:
        library.check(build_library(fields), tmp_path)
    assert str(tmp_path) in str(refused.value)
    assert "build_llama.sh" in str(refused.value)


def test_library_without_the_functions_is_refused(tmp_path: Path) -> None:
    foreign = ctypes.CDLL(_ctypes.__file__)
    with pytest.raises(library.LibraryError, match=r"it has no llama_version.*LLAMARADA_LIB"):
        library.check(foreign, tmp_path)
