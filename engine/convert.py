"""`llamarada convert SRC OUT`: an embedding model or reranker of the BERT family, from safetensors to GGUF."""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, PoolingType
from gguf.quants import quantize

from engine.convert_vocab import ConvertError, WordPiece, read_json
from engine.safetensors import SafetensorsError, Tensors

Array = npt.NDArray[Any]

FILE_TYPES = {
    "f32": (LlamaFileType.ALL_F32, GGMLQuantizationType.F32),
    "f16": (LlamaFileType.MOSTLY_F16, GGMLQuantizationType.F16),
    "q8_0": (LlamaFileType.MOSTLY_Q8_0, GGMLQuantizationType.Q8_0),
}
_ARCHITECTURES = ("BertModel", "BertForMaskedLM", "BertForSequenceClassification")
_WHOLE = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
_LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_HEAD = {"pooler.dense": "cls", "classifier": "cls.output"}  # of a reranker: tanh between the two
_PAIR = "[CLS]{query}[SEP]{document}[SEP]"
_OTHER_HEADS = ("cls.predictions.", "cls.seq_relationship.", "pooler.")
_EXACT = ("position_embd", "token_types", "cls")  # kept in f32
_POOLING = {
    "pooling_mode_cls_token": PoolingType.CLS,
    "pooling_mode_mean_tokens": PoolingType.MEAN,
    "pooling_mode_lasttoken": PoolingType.LAST,
}


class Checkpoint:
    """What a model folder holds. `config` and `weights` may be changed before `write`."""

    def __init__(self, folder: Path) -> None:
        """Read the folder's lists; ConvertError when it is no BERT model."""
        self.folder = folder
        self.config = read_json(folder / "config.json")
        if not self.config:
            raise ConvertError(f"{folder}: no config.json in it")
        self.tensors = Tensors(folder)
        self.weights: dict[str, Array] = {}  # instead of, or beside, those of the files

    @property
    def is_reranker(self) -> bool:
        return "BertForSequenceClassification" in self.config.get("architectures", [])

    def check(self) -> None:
        """Raise ConvertError unless libllama computes this model as it was meant."""
        named = self.config.get("architectures") or ["BertModel"]
        if not set(named) & set(_ARCHITECTURES):
            raise ConvertError(f"{self.folder}: {named[0]} is not supported, only {', '.join(_ARCHITECTURES)}")
        for key, wanted in {"hidden_act": "gelu", "position_embedding_type": "absolute"}.items():
            if self.config.get(key, wanted) != wanted:
                raise ConvertError(f"{self.folder}: {key} {self.config[key]!r} is not supported, only {wanted!r}")

    def names(self) -> list[str]:
        """The tensors' names."""
        return list(dict.fromkeys([*self.tensors.names(), *self.weights]))

    def load(self, name: str) -> Array:
        """A tensor as float32."""
        return self.weights[name] if name in self.weights else self.tensors[name]

    def hyper(self, name: str) -> int:
        """A number that every config of the family has."""
        value = self.config.get(name)
        if not isinstance(value, int) or value <= 0:
            raise ConvertError(f"{self.folder}/config.json: {name}: expected a positive number, got {value!r}")
        return value

    def labels(self) -> list[str]:
        """Names of a reranker's outputs."""
        given = self.config.get("id2label") or {"0": "LABEL_0"}
        return [given[key] for key in sorted(given, key=int)]

    def pooling(self) -> PoolingType:
        """How token vectors become one: by the sentence-transformers configuration, else the mean."""
        if self.is_reranker:
            return PoolingType.RANK
        modules = read_modules(self.folder)
        modes = [kind for key, kind in _POOLING.items() if modules.get(key)]
        if len(modes) > 1 or (modules and not modes):
            raise ConvertError(f"{self.folder}: only cls, mean or last-token pooling is supported, one of them")
        return modes[0] if modes else PoolingType.MEAN


def read_modules(folder: Path) -> dict[str, Any]:
    """The configuration of the folder's pooling module; empty when it has none."""
    return next(iter(read_json(path) for path in sorted(folder.glob("*_Pooling/config.json"))), {})


def write(checkpoint: Checkpoint, target: Path, kind: str = "f16") -> None:
    """Write `checkpoint` as a GGUF file whose matrices are of type `kind`. ConvertError says what it lacks."""
    checkpoint.check()
    writer = GGUFWriter(target, "bert")
    _write_metadata(writer, checkpoint, kind)
    WordPiece.read(checkpoint.folder, checkpoint.hyper("vocab_size")).write(writer)
    found = set()
    for name, values in _renamed(checkpoint):
        writer.add_tensor(name, *_encoded(name, values, kind))
        found.add(name)
    _check_complete(checkpoint, found)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_metadata(writer: GGUFWriter, checkpoint: Checkpoint, kind: str) -> None:
    writer.add_name(checkpoint.folder.resolve().name)
    writer.add_file_type(FILE_TYPES[kind][0])
    writer.add_context_length(checkpoint.hyper("max_position_embeddings"))
    writer.add_embedding_length(checkpoint.hyper("hidden_size"))
    writer.add_feed_forward_length(checkpoint.hyper("intermediate_size"))
    writer.add_block_count(checkpoint.hyper("num_hidden_layers"))
    writer.add_head_count(checkpoint.hyper("num_attention_heads"))
    writer.add_layer_norm_eps(float(checkpoint.config.get("layer_norm_eps", 1e-12)))
    writer.add_causal_attention(False)
    writer.add_token_type_count(checkpoint.hyper("type_vocab_size"))
    writer.add_pooling_type(checkpoint.pooling())
    if checkpoint.is_reranker:
        writer.add_classifier_output_labels(checkpoint.labels())
        writer.add_string("tokenizer.chat_template.rerank", _PAIR)


def _renamed(checkpoint: Checkpoint) -> Iterator[tuple[str, Array]]:
    """The tensors that libllama uses, under its names."""
    for name in checkpoint.names():
        plain = name.removeprefix("bert.").replace(".gamma", ".weight").replace(".beta", ".bias")
        target = _target(plain, checkpoint.is_reranker)
        if target:
            yield target, checkpoint.load(name)
        elif not plain.startswith(_OTHER_HEADS):
            raise ConvertError(f"{checkpoint.folder}: tensor {name} is not part of a BERT model as libllama knows it")


def _target(name: str, is_reranker: bool) -> str:
    """libllama's name of a tensor, "" when it has none."""
    part, _, kind = name.rpartition(".")
    layer = re.fullmatch(r"encoder\.layer\.(\d+)\.(.+)", part)
    if layer is not None:
        return f"blk.{layer[1]}.{_LAYER[layer[2]]}.{kind}" if layer[2] in _LAYER else ""
    known = _WHOLE | (_HEAD if is_reranker else {})
    return f"{known[part]}.{kind}" if part in known else ""


def _encoded(name: str, values: Array, kind: str) -> tuple[Array, tuple[int, ...] | None, GGMLQuantizationType]:
    """The data, its shape when it is not that of the data, and its type: vectors and small tables stay exact."""
    wanted = FILE_TYPES[kind][1]
    if values.ndim < 2 or name.startswith(_EXACT) or (kind == "q8_0" and values.shape[-1] % 32):
        wanted = GGMLQuantizationType.F32
    return quantize(values, wanted), None, wanted


def _check_complete(checkpoint: Checkpoint, found: set[str]) -> None:
    layers = range(checkpoint.hyper("num_hidden_layers"))
    wanted = {f"blk.{i}.{part}.{kind}" for i in layers for part in _LAYER.values() for kind in ("weight", "bias")}
    wanted |= {f"{part}.weight" for part in _WHOLE.values()} | {"token_embd_norm.bias"}
    if checkpoint.is_reranker:
        wanted |= {f"{part}.{kind}" for part in _HEAD.values() for kind in ("weight", "bias")}
    missing = sorted(wanted - found)
    if missing:
        raise ConvertError(f"{checkpoint.folder}: the weights for {', '.join(missing[:3])} are missing")


def main(arguments: list[str]) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="llamarada convert", description=(__doc__ or "").partition(": ")[2])
    parser.add_argument("source", type=Path, help="folder with config.json, the tokenizer and *.safetensors")
    parser.add_argument("target", type=Path, help="the GGUF file to write")
    parser.add_argument("--type", choices=list(FILE_TYPES), default="f16", help="of the matrices (default: f16)")
    given = parser.parse_args(arguments)
    fresh = given.target.with_name(given.target.name + ".part")
    try:
        write(Checkpoint(given.source), fresh, given.type)
        fresh.replace(given.target)
    except (ConvertError, SafetensorsError, OSError) as problem:
        fresh.unlink(missing_ok=True)
        print(f"error: {problem}", file=sys.stderr)
        return 1
    print(f"{given.target}: {given.target.stat().st_size / 2**20:.0f} MiB")
    return 0
