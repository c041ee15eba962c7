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
