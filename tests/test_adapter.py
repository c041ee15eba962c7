"""LoRA adapters on the demo model; the files are made here, with known seeds."""

from contextlib import closing
from pathlib import Path

import gguf
import numpy as np
import pytest

from engine.batch import Batch
from engine.context import Context
from engine.lora import Adapter
from engine.model import Model, ModelError

RANK = 4


def write_adapter(path: Path, n_embd: int, *, architecture: str = "llama", invocation: list[int] | None = None) -> Path:
    """A LoRA file that changes the first layer's output projection."""
    random = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(RANK))
    writer.add_string("general.name", "changes the first layer")
    if invocation:
        kinds = gguf.GGUFValueType
        writer.add_key_value("adapter.alora.invocation_tokens", invocation, kinds.ARRAY, kinds.UINT32)
    for suffix, shape in (("lora_a", (RANK, n_embd)), ("lora_b", (n_embd, RANK))):
        values = random.normal(0, 0.3, shape).astype(np.float32)
        writer.add_tensor(f"blk.0.attn_output.weight.{suffix}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits_with(context: Context, adapters: list[tuple[Adapter, float]]) -> np.ndarray:
    context.clear()
    context.set_lora(adapters)
    batch = Batch(16)
    tokens = context.model.vocab.encode("The capital of France is")
    batch.add(tokens, 0, 0, "last")
    assert context.decode(batch) == 0
    return context.logits(len(tokens) - 1).copy()


def test_adapter_changes_the_logits_by_its_scale(model: Model, tmp_path: Path) -> None:
    adapter = model.load_adapter(write_adapter(tmp_path / "a.gguf", model.n_embd))
    with closing(adapter), closing(Context(model, n_ctx=64, n_threads=1, n_threads_batch=1)) as context:
        plain = logits_with(context, [])
        applied = logits_with(context, [(adapter, 1.0)])
        assert np.abs(applied - plain).max() > 0.1
        assert np.abs(logits_with(context, [(adapter, 0.5)]) - applied).max() > 0.01
        np.testing.assert_allclose(logits_with(context, []), plain, atol=1e-3)


def test_adapter_describes_itself(model: Model, tmp_path: Path) -> None:
    with closing(model.load_adapter(write_adapter(tmp_path / "a.gguf", model.n_embd))) as adapter:
        assert adapter.meta["general.name"] == "changes the first layer"
        assert adapter.invocation_tokens == []


def test_invocation_tokens_are_read(model: Model, tmp_path: Path) -> None:
    file = write_adapter(tmp_path / "a.gguf", model.n_embd, invocation=[1, 4093, 198])
    with closing(model.load_adapter(file)) as adapter:
        assert adapter.invocation_tokens == [1, 4093, 198]


def test_adapter_that_does_not_fit_gives_the_reason(model: Model, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"small\.gguf: .*tensor"):
        model.load_adapter(write_adapter(tmp_path / "small.gguf", 32))
    with pytest.raises(ModelError, match=r"bert\.gguf: .*arch"):
        model.load_adapter(write_adapter(tmp_path / "bert.gguf", model.n_embd, architecture="bert"))
    with pytest.raises(ModelError, match="no such file"):
        model.load_adapter(tmp_path / "none.gguf")
