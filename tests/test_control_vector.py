"""Control vectors read from files change what the model computes, by their scale."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from engine import control_vector
from engine.batch import Batch
from engine.context import Context
from engine.gguf import ModelError
from engine.model import Model
from ipc.config import Adapter


def write(path: Path, layer: int, values: np.ndarray, prefix: str = "direction") -> str:
    writer = GGUFWriter(path, "controlvector")
    writer.add_tensor(f"{prefix}.{layer}", values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def logits(model: Model, directions: np.ndarray | None, layers: tuple[int, int] | None = None) -> np.ndarray:
    with closing(Context(model, n_ctx=64, n_batch=64, n_seq_max=1, n_threads=1, n_threads_batch=1)) as context:
        if directions is not None:
            context.set_control_vector(directions, layers)
        batch = Batch(8)
        batch.add(np.array([504, 3575, 282], np.int32), 0, 0, "last")
        assert context.decode(batch) == 0
        return context.logits(2).copy()


def test_a_vector_steers_the_model_by_its_scale(model: Model, tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", 5, np.full(model.n_embd, 2.0))
    plain = logits(model, None)
    zero = control_vector.load((Adapter(path=path, scale=0.0),), model.n_embd, model.n_layer)
    steered = control_vector.load((Adapter(path=path, scale=1.0),), model.n_embd, model.n_layer)
    assert np.allclose(logits(model, zero), plain)
    assert np.abs(logits(model, steered) - plain).max() > 0.1
    assert np.allclose(logits(model, steered, (6, model.n_layer - 1)), plain)


def test_files_add_up(model: Model, tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", 1, np.ones(model.n_embd))
    total = control_vector.load((Adapter(path=path), Adapter(path=path, scale=0.5)), model.n_embd, model.n_layer)
    assert total.shape == (model.n_layer - 1, model.n_embd)
    assert (total[0] == 1.5).all() and not total[1:].any()


@pytest.mark.parametrize(("layer", "size", "prefix"), [(99, 576, "direction"), (1, 7, "direction"), (1, 576, "other")])
def test_a_vector_that_does_not_fit_is_refused(
    model: Model, tmp_path: Path, layer: int, size: int, prefix: str
) -> None:
    path = write(tmp_path / "bad.gguf", layer, np.ones(size), prefix)
    with pytest.raises(ModelError, match=r"bad\.gguf"):
        control_vector.load((Adapter(path=path),), model.n_embd, model.n_layer)
