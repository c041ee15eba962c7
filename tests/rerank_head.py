"""A reranker for tests: all-MiniLM-L6-v2 with a classification head of seeded random weights, and the head in numpy."""

import numpy as np
import numpy.typing as npt

from engine.convert import Checkpoint
from engine.download import fetch_model

SIZE = 384
Floats = npt.NDArray[np.float32]


def weights() -> dict[str, Floats]:
    """The head's tensors under Hugging Face's names."""
    dice = np.random.default_rng(6)
    return {
        "pooler.dense.weight": dice.normal(0, SIZE**-0.5, (SIZE, SIZE)).astype(np.float32),
        "pooler.dense.bias": dice.normal(0, 0.1, SIZE).astype(np.float32),
        "classifier.weight": dice.normal(0, 1, (1, SIZE)).astype(np.float32),
        "classifier.bias": dice.normal(0, 0.1, 1).astype(np.float32),
    }


def checkpoint() -> Checkpoint:
    """The model as a folder of Hugging Face's would hold it."""
    made = Checkpoint(fetch_model("minilm"))
    made.config |= {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    made.weights = weights()
    return made


def scores(hidden: Floats) -> Floats:
    """What the head makes of the first token's vectors [n, SIZE]."""
    head = weights()
    inner = np.tanh(hidden @ head["pooler.dense.weight"].T + head["pooler.dense.bias"])
    outer: Floats = inner @ head["classifier.weight"].T + head["classifier.bias"]
    return outer[:, 0]
