"""What tests of several files share: libllama and the demo model, found as the server finds them."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from engine import library
from engine.download import fetch_model
from engine.model import Model
from engine.vocab import Vocab


@pytest.fixture(scope="session")
def lib() -> Path:
    """The folder of the loaded libllama."""
    return library.load()


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The demo model's file; LLAMARADA_TEST_MODEL names another copy of it."""
    override = os.environ.get("LLAMARADA_TEST_MODEL")
    return Path(override) if override else fetch_model("smollm2")


@pytest.fixture(scope="session")
def model(lib: Path, model_path: Path) -> Iterator[Model]:
    """The demo model, loaded once."""
    with closing(Model.load(model_path)) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def vocab(model: Model) -> Vocab:
    """The demo model's vocabulary."""
    return model.vocab


@pytest.fixture(scope="session")
def encoder_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """all-MiniLM-L6-v2 in f16: an encoder with mean pooling, 384 floats a vector, 512 tokens at most."""
    from engine.convert import Checkpoint, write  # what it imports takes half a second

    path = tmp_path_factory.mktemp("encoder") / "minilm.gguf"
    write(Checkpoint(fetch_model("minilm")), path)
    return path


@pytest.fixture(scope="session")
def reranker_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same encoder with a head of random weights, see `tests.rerank_head`."""
    from engine.convert import write
    from tests import rerank_head

    path = tmp_path_factory.mktemp("reranker") / "reranker.gguf"
    write(rerank_head.checkpoint(), path)
    return path
