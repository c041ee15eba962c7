"""What a step costs by KV mode and flash attention: a token for each of S sequences, alone and beside a prompt.

.venv/bin/python -m bench.kv_modes --markdown

The combinations of one row are measured in turns, so that a slow minute of the machine is shared by all.
"""

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from bench import servers, table
from engine.batch import Batch
from engine.context import Context
from engine.download import fetch_model
from engine.model import Model

MODES = {
    "unified, FA": (True, "on"),
    "unified": (True, "off"),
    "streams, FA": (False, "on"),
    "streams": (False, "off"),
}
PROMPT = 32  # tokens that a step carries beside generated ones
N_BATCH = 512


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.kv_modes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="GGUF file (default: the demo model)")
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 4, 8, 32])
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 1024], help="tokens that each sequence holds")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    servers.warn_if_busy()
    path = args.model or fetch_model("smollm2")
    model = Model.load(path)
    rows = []
    for slots in args.slots:
        for length in args.lengths:
            with _runs(model, slots, length, args.threads) as runs:
                rows += _rows(slots, length, runs, args.rounds)
    model.close()
    print(f"{path.name}, {args.threads} threads; ms per step, median of {args.rounds}\n")
    print(table.render(("slots", "tokens each", "step", *MODES), rows, args.markdown))


@contextmanager
def _runs(model: Model, slots: int, length: int, threads: int) -> Iterator[dict[str, "Run"]]:
    with ExitStack() as stack:
        runs = {name: Run(model, slots, length, threads, *mode) for name, mode in MODES.items()}
        for run in runs.values():
            stack.callback(run.context.close)
        yield runs


def _rows(slots: int, length: int, runs: dict[str, "Run"], rounds: int) -> list[list[str]]:
    rows = []
    for label, n_prompt in (("decode", 0), (f"decode + {PROMPT} prompt tokens", PROMPT)):
        times: dict[str, list[float]] = {name: [] for name in runs}
        for name, run in [*runs.items()] * (rounds + 1):
            times[name].append(run.step(n_prompt))
        medians = [statistics.median(measured[1:]) for measured in times.values()]  # the first builds the graph
        rows.append([str(slots), str(length), label, *map(table.number, medians)])
    return rows


class Run:
    """`slots` sequences that generate, and one more that reads a prompt; each holds `length` tokens."""

    def __init__(self, model: Model, slots: int, length: int, threads: int, unified: bool, flash_attn: str) -> None:
        cells = (slots + 1) * (length + 2 * PROMPT)
        self.context = Context(
            model,
            n_ctx=-(-cells // (256 * (slots + 1))) * 256 * (slots + 1),
            n_batch=N_BATCH,
            n_ubatch=N_BATCH,
            n_seq_max=slots + 1,
            n_threads=threads,
            n_threads_batch=threads,
            kv_unified=unified,
            flash_attn=flash_attn,
        )
        self.slots, self.length = slots, length
        self.batch = Batch(N_BATCH)
        self.dice = np.random.default_rng(1)
        self._read()

    def step(self, n_prompt: int) -> float:
        """Milliseconds of one decode; what it added to the cache is taken out again."""
        self.batch.clear()
        for sequence in range(self.slots):
            self.batch.add_token(500, self.length, sequence)
        if n_prompt:
            self.batch.add(self._tokens(n_prompt), self.length, self.slots)
        begun = time.perf_counter()
        self._decode()
        taken = time.perf_counter() - begun
        for sequence in range(self.slots + bool(n_prompt)):
            self.context.seq_rm(sequence, self.length, -1)
        return 1e3 * taken

    def _read(self) -> None:
        """One sequence is read, the others get copies of its state, with cells of their own."""
        for start in range(0, self.length, N_BATCH):
            self.batch.clear()
            self.batch.add(self._tokens(min(N_BATCH, self.length - start)), start, 0)
            self._decode()
        state = self.context.state_get(0)
        for sequence in range(1, self.slots + 1):
            self.context.state_set(sequence, state)

    def _tokens(self, n: int) -> np.ndarray:
        return self.dice.integers(200, 40_000, n).astype(np.int32)

    def _decode(self) -> None:
        code = self.context.decode(self.batch)
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")
        self.context.synchronize()


if __name__ == "__main__":
    main()
