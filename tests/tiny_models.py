"""Models of a few hundred kilobytes with seeded random weights: dense, with sliding windows, recurrent, hybrid.

Their text is nonsense, but always the same: greedy output tells whether the memory held what it should.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np

LETTERS = [chr(c) for c in range(ord("a"), ord("z") + 1)]
PIECES = ["▁", *LETTERS, *(f"▁{letter}" for letter in LETTERS), "th", "he", "in", "er", "an", "▁the", "▁and"]
N_EMBD, N_LAYER, N_FF, N_HEAD, HEAD = 64, 4, 128, 4, 16
N_CTX = 8192
N_WINDOW = 48


def write_dense(path: Path) -> Path:
    """Plain attention (llama)."""
    writer, weights = _begin(path, "llama")
    _attention_settings(writer)
    writer.add_rope_dimension_count(HEAD)
    for layer in range(N_LAYER):
        _attention(weights, layer)
        _feed_forward(weights, layer)
    return _finish(writer, weights)


def write_window(path: Path) -> Path:
    """Every second layer sees the last 48 tokens only (gemma2)."""
    writer, weights = _begin(path, "gemma2")
    _attention_settings(writer)
    writer.add_sliding_window(N_WINDOW)
    for layer in range(N_LAYER):
        _attention(weights, layer)
        _feed_forward(weights, layer)
        for name in ("post_attention_norm", "post_ffw_norm"):
            weights.fill(f"blk.{layer}.{name}.weight", np.full(N_EMBD, 2.0))
    return _finish(writer, weights)


def write_recurrent(path: Path) -> Path:
    """A state per sequence instead of a KV cache (mamba)."""
    writer, weights = _begin(path, "mamba")
    _state_settings(writer)
    writer.add_ssm_time_step_rank(4)
    for layer in range(N_LAYER):
        _state_space(weights, layer)
    return _finish(writer, weights)


def write_hybrid(path: Path) -> Path:
    """Recurrent layers and attention layers take turns (jamba)."""
    writer, weights = _begin(path, "jamba")
    _attention_settings(writer, [0 if layer % 2 == 0 else 2 for layer in range(N_LAYER)])
    _state_settings(writer)
    writer.add_ssm_time_step_rank(4)
    for layer in range(N_LAYER):
        if layer % 2:
            _attention(weights, layer)
        else:
            _state_space(weights, layer)
            for name, size in (("dt", 4), ("b", 16), ("c", 16)):
                weights.norm(f"blk.{layer}.ssm_{name}_norm.weight", size)
        _feed_forward(weights, layer)
    return _finish(writer, weights)


class _Weights:
    """Adds seeded tensors to a file. Shapes are numpy's, so the input size comes last."""

    def __init__(self, writer: gguf.GGUFWriter) -> None:
        self._writer = writer
        self._random = np.random.default_rng(1)

    def add(self, name: str, *shape: int, scale: float | None = None) -> None:
        scale = 1.5 / np.sqrt(shape[-1]) if scale is None else scale
        self._writer.add_tensor(name, self._random.normal(0, scale, shape).astype(np.float32))

    def fill(self, name: str, values: np.ndarray) -> None:
        self._writer.add_tensor(name, values.astype(np.float32))

    def norm(self, name: str, size: int = N_EMBD) -> None:
        self._writer.add_tensor(name, np.ones(size, np.float32))


def _begin(path: Path, architecture: str) -> tuple[gguf.GGUFWriter, _Weights]:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(N_LAYER)
    writer.add_layer_norm_rms_eps(1e-5)
    _vocabulary(writer)
    weights = _Weights(writer)
    weights.add("token_embd.weight", _n_vocab(), N_EMBD, scale=0.15)
    weights.norm("output_norm.weight")
    return writer, weights


def _finish(writer: gguf.GGUFWriter, weights: _Weights) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(str(writer.path))


def _tokens() -> Iterator[tuple[str, int]]:
    types = gguf.TokenType
    yield from (("<unk>", types.UNKNOWN), ("<s>", types.CONTROL), ("</s>", types.CONTROL))
    yield from ((f"<0x{byte:02X}>", types.BYTE) for byte in range(256))
    yield from ((piece, types.NORMAL) for piece in PIECES)


def _n_vocab() -> int:
    return sum(1 for _ in _tokens())


def _vocabulary(writer: gguf.GGUFWriter) -> None:
    texts, kinds = zip(*_tokens(), strict=True)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(list(texts))
    writer.add_token_scores([float(len(text)) if kind == gguf.TokenType.NORMAL else 0.0 for text, kind in _tokens()])
    writer.add_token_types(list(kinds))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_vocab_size(len(texts))


def _attention_settings(writer: gguf.GGUFWriter, n_head_kv: int | list[int] = 2) -> None:
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(n_head_kv)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)


def _attention(weights: _Weights, layer: int) -> None:
    weights.norm(f"blk.{layer}.attn_norm.weight")
    weights.add(f"blk.{layer}.attn_q.weight", N_HEAD * HEAD, N_EMBD, scale=0.4)
    weights.add(f"blk.{layer}.attn_k.weight", 2 * HEAD, N_EMBD, scale=0.4)
    weights.add(f"blk.{layer}.attn_v.weight", 2 * HEAD, N_EMBD)
    weights.add(f"blk.{layer}.attn_output.weight", N_EMBD, N_HEAD * HEAD)


def _feed_forward(weights: _Weights, layer: int) -> None:
    weights.norm(f"blk.{layer}.ffn_norm.weight")
    weights.add(f"blk.{layer}.ffn_gate.weight", N_FF, N_EMBD)
    weights.add(f"blk.{layer}.ffn_up.weight", N_FF, N_EMBD)
    weights.add(f"blk.{layer}.ffn_down.weight", N_EMBD, N_FF)


def _state_settings(writer: gguf.GGUFWriter) -> None:
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_inner_size(2 * N_EMBD)
    writer.add_ssm_state_size(16)


def _state_space(weights: _Weights, layer: int) -> None:
    inner, state, rank = 2 * N_EMBD, 16, 4
    weights.norm(f"blk.{layer}.attn_norm.weight")
    weights.add(f"blk.{layer}.ssm_in.weight", 2 * inner, N_EMBD)
    weights.add(f"blk.{layer}.ssm_conv1d.weight", inner, 4, scale=0.7)
    weights.add(f"blk.{layer}.ssm_conv1d.bias", inner, scale=0.1)
    weights.add(f"blk.{layer}.ssm_x.weight", rank + 2 * state, inner)
    weights.add(f"blk.{layer}.ssm_dt.weight", inner, rank)
    weights.add(f"blk.{layer}.ssm_dt.bias", inner, scale=0.1)
    weights.fill(f"blk.{layer}.ssm_a", -np.tile(np.arange(1, state + 1) / state, (inner, 1)))
    weights.fill(f"blk.{layer}.ssm_d", np.ones(inner))
    weights.add(f"blk.{layer}.ssm_out.weight", N_EMBD, inner)


WRITERS: dict[str, Callable[[Path], Path]] = {
    "dense": write_dense,
    "window": write_window,
    "recurrent": write_recurrent,
    "hybrid": write_hybrid,
}
