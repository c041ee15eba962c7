"""Control vectors: directions added to every layer's output, read from GGUF files and summed with their scales."""

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader

from engine.gguf import ModelError
from ipc.config import Adapter

_PREFIX = "direction."  # tensor "direction.N" is added after layer N, N >= 1


def load(files: tuple[Adapter, ...], n_embd: int, n_layer: int) -> npt.NDArray[np.float32]:
    """The sum of all files' directions [n_layer - 1, n_embd], row 0 for layer 1. ModelError names the bad file."""
    total = np.zeros((n_layer - 1, n_embd), np.float32)
    for file in files:
        try:
            tensors = GGUFReader(file.path).tensors
        except (OSError, ValueError) as problem:
            raise ModelError(f"{file.path}: {problem}") from problem
        found = [tensor for tensor in tensors if tensor.name.startswith(_PREFIX)]
        if not found:
            raise ModelError(f"{file.path}: holds no control vector (no tensor named {_PREFIX}N)")
        for tensor in found:
            layer = int(tensor.name.removeprefix(_PREFIX))
            if not 1 <= layer < n_layer or tensor.data.size != n_embd:
                raise ModelError(f"{file.path}: {tensor.name} does not fit a model of {n_layer} layers of {n_embd}")
            total[layer - 1] += file.scale * tensor.data.astype(np.float32).ravel()
    return total
