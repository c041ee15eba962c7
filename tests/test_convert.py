"""`llamarada convert`: what it writes is the model that Hugging Face's folder holds."""

import json
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.batch import Batch
from engine.context import Context
from engine.convert import Checkpoint, main, write
from engine.convert_vocab import ConvertError
from engine.download import fetch_model
from engine.model import Model
from engine.safetensors import SafetensorsError, Tensors

DATA = Path(__file__).parent / "data"
SENTENCES = (DATA / "sentences.txt").read_text("utf-8").splitlines()


@pytest.fixture(scope="module")
def source() -> Path:
    return fetch_model("minilm")


def embed(path: Path, inputs: list[np.ndarray]) -> np.ndarray:
    """Vectors of length 1, each input in a batch of its own."""
    with closing(Model.load(path)) as model:
        context = Context(model, n_ctx=512, n_batch=512, n_ubatch=512, n_threads=2, n_threads_batch=2, embeddings=True)
        with closing(context):
            batch, vectors = Batch(512), []
            for tokens in inputs:
                batch.clear()
                batch.add(tokens, 0, 0, "all")
                assert context.encode(batch) == 0
                vectors.append(context.embeddings_seq(0).copy())
    found = np.stack(vectors)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.mark.parametrize(("kind", "least"), [("f16", 0.999), ("f32", 0.9999), ("q8_0", 0.99)])
def test_vectors_are_those_of_the_reference_implementation(
    lib: Path, source: Path, tmp_path: Path, kind: str, least: float
) -> None:
    path = tmp_path / "model.gguf"
    assert main([str(source), str(path), "--type", kind]) == 0
    reference = np.load(DATA / "minilm.npz")
    inputs = np.split(reference["tokens"].astype(np.int32), np.cumsum(reference["lengths"], dtype=np.int64)[:-1])
    wanted = reference["vectors"].astype(np.float32)
    assert (embed(path, inputs) * wanted).sum(axis=1).min() >= least


def test_texts_give_the_tokens_of_the_reference_implementation(lib: Path, encoder_path: Path) -> None:
    reference = np.load(DATA / "minilm.npz")
    with closing(Model.load(encoder_path)) as model:
        tokens = [model.vocab.encode(sentence) for sentence in SENTENCES]
    assert [len(each) for each in tokens] == reference["lengths"].tolist()
    assert np.concatenate(tokens).tolist() == reference["tokens"].tolist()


def test_a_reranker_keeps_its_head_and_its_labels(lib: Path, reranker_path: Path) -> None:
    with closing(Model.load(reranker_path)) as model:
        assert model.labels == ["LABEL_0"]
        assert model.vocab.chat_template("rerank") == "[CLS]{query}[SEP]{document}[SEP]"
        with closing(Context(model, n_ctx=64, n_batch=64, n_ubatch=64, embeddings=True)) as context:
            assert context.pooling.name == "RANK"


def spoil(config: dict[str, Any]) -> Callable[[Checkpoint], None]:
    return lambda checkpoint: checkpoint.config.update(config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (spoil({"architectures": ["LlamaForCausalLM"]}), "LlamaForCausalLM is not supported"),
        (spoil({"hidden_act": "relu"}), "hidden_act 'relu' is not supported"),
        (spoil({"position_embedding_type": "relative_key"}), "position_embedding_type"),
        (spoil({"num_hidden_layers": 7}), "blk.6.attn_k.bias"),
        (spoil({"num_hidden_layers": "six"}), "num_hidden_layers: expected a positive number, got 'six'"),
        (spoil({"architectures": ["BertForSequenceClassification"]}), "cls.output.bias"),
        (spoil({"vocab_size": 100}), "30522 tokens in the vocabulary, 100 rows"),
        (lambda checkpoint: checkpoint.weights.update({"encoder.layer.0.adapter.weight": np.ones(1)}), "adapter"),
    ],
)
def test_a_model_that_would_come_out_wrong_is_refused(
    source: Path, tmp_path: Path, change: Callable[[Checkpoint], None], message: str
) -> None:
    checkpoint = Checkpoint(source)
    change(checkpoint)
    with pytest.raises(ConvertError, match=message.replace("(", ".")):
        write(checkpoint, tmp_path / "out.gguf")


def test_the_command_names_what_is_missing_and_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), str(tmp_path / "out.gguf")]) == 1
    assert "no config.json in it" in capsys.readouterr().err
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"]}')
    assert main([str(tmp_path), str(tmp_path / "out.gguf")]) == 1
    assert "no *.safetensors file" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def safetensors(path: Path, header: dict[str, Any], data: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_tensors_of_every_float_type_are_read(tmp_path: Path) -> None:
    values = np.array([[1.5, -2.0], [0.0, 3.25]], np.float32)
    half, brain = values.astype("<f2").tobytes(), (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    header = {
        "__metadata__": {"format": "pt"},
        "half": {"dtype": "F16", "shape": [2, 2], "data_offsets": [0, 8]},
        "brain": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [8, 16]},
        "single": {"dtype": "F32", "shape": [4], "data_offsets": [16, 32]},
        "ids": {"dtype": "I64", "shape": [1], "data_offsets": [32, 40]},
    }
    safetensors(tmp_path / "a.safetensors", header, half + brain + values.tobytes() + bytes(8))
    tensors = Tensors(tmp_path)
    assert tensors.names() == ["half", "brain", "single"]
    assert (tensors["half"] == values).all()
    assert (tensors["brain"] == values).all()
    assert (tensors["single"] == values.ravel()).all()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 16]}, "outside"),
        ({"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}, "8 bytes do not make a F32"),
        ({"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}, "F8_E4M3 is not supported"),
        ({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}, "outside"),
        ({"dtype": "F32"}, "damaged header"),
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, entry: dict[str, Any], message: str) -> None:
    safetensors(tmp_path / "bad.safetensors", {"w": entry}, bytes(8))
    with pytest.raises(SafetensorsError, match=rf"bad\.safetensors.*{message}"):
        Tensors(tmp_path)


@pytest.mark.parametrize("raw", [b"", b"short", struct.pack("<Q", 1 << 40) + b"{}", struct.pack("<Q", 2) + b"[]"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "bad.safetensors").write_bytes(raw)
    with pytest.raises(SafetensorsError, match=r"bad\.safetensors"):
        Tensors(tmp_path)
