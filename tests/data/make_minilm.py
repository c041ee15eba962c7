"""Makes `minilm.npz`, the vectors of `sentences.txt` as the reference implementation computes them.

Needs packages that the project does not: in a virtual environment of its own,

    pip install torch==2.13.0 transformers numpy
    python tests/data/make_minilm.py "$(.venv/bin/llamarada model minilm)"

The vectors are the mean over a sentence's tokens (no padding, one sentence at a time), of length 1, in float16.
`tokens` joins the token ids of all sentences, `lengths` says how many each has.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

HERE = Path(__file__).parent


def main(folder: str) -> None:
    """Compute and write."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    sentences = (HERE / "sentences.txt").read_text("utf-8").splitlines()
    ids = [tokenizer(sentence)["input_ids"] for sentence in sentences]
    with torch.no_grad():
        means = [model(torch.tensor([each])).last_hidden_state[0].mean(dim=0).numpy() for each in ids]
    vectors = np.stack(means)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.savez_compressed(
        HERE / "minilm.npz",
        vectors=vectors.astype(np.float16),
        tokens=np.concatenate(ids).astype(np.uint16),
        lengths=np.array([len(each) for each in ids], np.uint16),
    )


if __name__ == "__main__":
    main(sys.argv[1])
