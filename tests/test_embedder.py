"""Vectors from libllama: batched or single, every pooling, on a causal model and on an encoder."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.batch import Batch
from engine.context import Context
from engine.contexts import embedding_batch, open_contexts, open_embedding_context
from engine.embedder import Embedder
from engine.metrics import Metrics
from engine.model import Model, ModelError
from engine.outbox import Outbox
from ipc.config import EngineSection
from ipc.messages import Admitted, Embed, Error, Final, Result, Vectors
from ipc.slab import Slab
from tests import rerank_head
from tests.step_engine import FakeServer
from tests.tiny_models import write_dense

SENTENCES = (Path(__file__).parent / "data" / "sentences.txt").read_text("utf-8").splitlines()
POOLINGS = ["none", "mean", "cls", "last"]


class Desk:
    """An embedder with a slab, stepped by hand; results are kept by task."""

    def __init__(
        self, contexts: list[Context], folder: Path, *, n_rows: int = 8, row_floats: int = 4096, **options: Any
    ) -> None:
        self.vocab = contexts[0].model.vocab
        self.slab = Slab.create(str(folder / "slab"), n_rows, row_floats)
        self.server = FakeServer()
        self.outbox = Outbox(self.server)
        self.now = 0.0
        self.embedder = Embedder(
            contexts,
            n_threads=2,
            n_vocab=self.vocab.n_tokens,
            slab=self.slab,
            outbox=self.outbox,
            metrics=Metrics(),
            clock=lambda: self.now,
            **{"target": 128, **options},
        )
        self._ids = 0

    def submit(self, *inputs: Any, client: bytes = b"c", **fields: Any) -> int:
        self._ids += 1
        parts = [np.asarray(tokens, "<i4") for tokens in inputs]
        lengths = np.array([len(part) for part in parts], "<i4")
        task = Embed(self._ids, b"".join(part.tobytes() for part in parts), lengths.tobytes(), **fields)
        self.embedder.admit(client, task)
        return self._ids

    def step(self, room: int = 512, *, shared: bool = False) -> None:
        self.embedder.step(room, shared=shared)
        self.outbox.flush()

    def results(self, task: int, client: bytes = b"c") -> list[Result]:
        self.outbox.flush()
        return [result for step in self.server.sent[client] for result in step.results if result.id == task]

    def vectors(self, task: int) -> dict[int, np.ndarray]:
        """Each input's vectors [n, size], read from the slab and given back."""
        while not isinstance(self.results(task)[-1], Final):
            self.step()
        found = {}
        for result in self.results(task):
            if isinstance(result, Vectors):
                floats = np.concatenate([self.slab.get(ref) for ref in result.rows])
                for ref in result.rows:
                    self.slab.free(ref.row, ref.generation)
                counts = result.n_rows or [1] * len(result.indices)
                blocks = np.split(floats.reshape(sum(counts), -1), np.cumsum(counts)[:-1])
                found |= dict(zip(result.indices, blocks, strict=True))
        return found

    def final(self, task: int, client: bytes = b"c") -> Final:
        (final,) = [result for result in self.results(task, client) if isinstance(result, Final)]
        return final

    def close(self) -> None:
        self.embedder.fail_all(Error(503, "unavailable_error", "the test is over"))
        self.slab.close()


@contextmanager
def desk(path: Path, folder: Path, **settings: Any) -> Iterator[Desk]:
    """A desk for the model at `path`."""
    section = EngineSection(**{"embeddings": True, "threads": 2, **settings})
    with ExitStack() as stack:
        model = stack.enter_context(closing(Model.load(path)))
        text, contexts = open_contexts(model, section, ubatch_given="ubatch_size" in settings)
        for opened in {text, *contexts}:
            stack.enter_context(closing(opened))
        yield stack.enter_context(closing(Desk(contexts, folder)))


def tokens_of(made: Desk, texts: list[str]) -> list[np.ndarray]:
    return [made.vocab.encode(text) for text in texts]


@pytest.fixture(scope="module")
def causal_path(lib: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dense(tmp_path_factory.mktemp("causal") / "dense.gguf")


def differences(path: Path, folder: Path, n: int, pooling: str, **settings: Any) -> float:
    """The smallest cosine between an input's vectors in a batch and alone."""
    with desk(path, folder, pooling=pooling, **settings) as made:
        inputs = tokens_of(made, SENTENCES[:n])
        together = made.vectors(made.submit(*inputs))
        single = [made.vectors(made.submit(each))[0] for each in inputs]
    assert sorted(together) == list(range(n))
    assert [len(alone) for alone in single] == [len(each) if pooling == "none" else 1 for each in inputs]
    return min(cosine(together[index], alone).min() for index, alone in enumerate(single))


# Two slots and a KV stream each: with those, libllama's own pooling is wrong. Flash attention has half precision,
# differently for small batches.
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("model", ["causal_path", "encoder_path"])
def test_batched_vectors_are_the_single_ones(
    request: pytest.FixtureRequest, tmp_path: Path, model: str, pooling: str
) -> None:
    path = request.getfixturevalue(model)
    assert differences(path, tmp_path, 40, pooling, parallel=2, kv_unified=False, flash_attn="off") >= 0.9999


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_batched_vectors_of_a_quantised_model_are_the_single_ones(
    lib: Path, model_path: Path, tmp_path: Path, pooling: str
) -> None:
    assert differences(model_path, tmp_path, 12, pooling, parallel=2, kv_unified=False, ubatch_size=512) >= 0.999


@pytest.mark.parametrize(("unified", "right"), [(True, True), (False, False)])
def test_a_stream_per_sequence_spoils_pooling_in_libllama(causal_path: Path, unified: bool, right: bool) -> None:
    """Why embeddings have unified memory, whatever the settings say. If this fails, libllama was mended."""
    with closing(Model.load(causal_path)) as model:
        settings: Any = {"n_ctx": 256, "n_batch": 128, "n_ubatch": 128, "n_seq_max": 2, "pooling": "mean"}
        with closing(Context(model, embeddings=True, kv_unified=unified, **settings)) as context:
            inputs = [model.vocab.encode(text) for text in SENTENCES[3:5]]

            def last(given: list[np.ndarray]) -> np.ndarray:
                batch = Batch(128)
                for sequence, tokens in enumerate(given):
                    batch.add(tokens, 0, sequence, "all")
                assert context.decode(batch) == 0
                vector = context.embeddings_seq(len(given) - 1).copy()
                context.clear()
                return vector[None]

            assert (cosine(last(inputs), last(inputs[1:])).min() > 0.9999) == right


def cosine(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return (one * other).sum(axis=1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)


def test_scores_are_those_of_the_head(lib: Path, reranker_path: Path, encoder_path: Path, tmp_path: Path) -> None:
    with desk(encoder_path, tmp_path, pooling="cls") as made:
        inputs = tokens_of(made, SENTENCES[:30])
        hidden = made.vectors(made.submit(*inputs))
    with desk(reranker_path, tmp_path, pooling="rank") as made:
        found = made.vectors(made.submit(*inputs))
    wanted = rerank_head.scores(np.concatenate([hidden[i] for i in range(30)]))
    assert np.abs(np.array([found[i][0, 0] for i in range(30)]) - wanted).max() < 1e-3


def test_a_model_without_a_head_cannot_rank(lib: Path, encoder_path: Path) -> None:
    settings = EngineSection(embeddings=True, reranking=True, pooling="rank")
    with closing(Model.load(encoder_path)) as model, pytest.raises(ModelError, match="no classification head"):
        open_contexts(model, settings, ubatch_given=False)


@pytest.fixture(scope="module")
def context(lib: Path, encoder_path: Path) -> Iterator[Context]:
    settings = EngineSection(embeddings=True, threads=2)
    with (
        closing(Model.load(encoder_path)) as model,
        closing(open_embedding_context(model, settings, ubatch_given=False)) as opened,
    ):
        yield opened


@pytest.fixture
def shared(context: Context, tmp_path: Path) -> Iterator[Desk]:
    with closing(Desk([context], tmp_path, max_queue=5)) as made:
        yield made


def test_a_newcomer_is_answered_in_the_next_step(shared: Desk) -> None:
    large = shared.submit(*[[101, *range(2000, 2020), 102]] * 500)
    shared.step()
    small = shared.submit([101, 7592, 102])
    shared.step()
    assert shared.final(small).reason == "done"
    shared.embedder.abort((b"c", large))
    assert shared.final(large).reason == "abort"
    assert len(shared.embedder) == 0


def test_vectors_travel_inline_when_the_rows_are_used_up(shared: Desk) -> None:
    task = shared.submit(*[[101, 2000 + i, 102] for i in range(500)])
    while len(shared.embedder):
        shared.step()
    rows = [ref for result in shared.results(task) if isinstance(result, Vectors) for ref in result.rows]
    assert {ref.generation == 0 for ref in rows} == {True, False}
    assert shared.slab.n_used == shared.slab.n_rows
    assert sorted(shared.vectors(task)) == list(range(500))
    assert shared.slab.n_used == 0


def test_beside_text_an_input_waits_for_as_many_tokens_as_it_has(shared: Desk) -> None:
    task = shared.submit([101, *range(2000, 2098), 102])
    for _ in range(4):
        shared.step(room=20, shared=True)
        assert len(shared.embedder) == 1
    shared.step(room=20, shared=True)
    assert shared.final(task).reason == "done"


def test_beside_text_batches_are_as_small_as_their_room(shared: Desk) -> None:
    task = shared.submit(*[[101, 2000 + i, 102] for i in range(40)])
    shared.step(room=16, shared=True)
    first = next(result for result in shared.results(task) if isinstance(result, Vectors))
    assert len(first.indices) == 5


def test_a_client_that_is_gone_takes_its_work_along(shared: Desk) -> None:
    shared.submit([101, 102], client=b"gone")
    mine = shared.submit([101, 102])
    shared.embedder.drop(b"gone")
    shared.step()
    assert shared.final(mine).reason == "done"
    assert len(shared.embedder) == 0


def test_a_task_past_its_deadline_ends(shared: Desk) -> None:
    task = shared.submit(*[[101, *range(2000, 2100), 102]] * 5, deadline_ms=50)
    shared.step()
    shared.now += 51
    shared.step()
    error = shared.final(task).error
    assert error is not None and error.code == 408


def test_a_full_queue_refuses(shared: Desk) -> None:
    tasks = [shared.submit([101, 102]) for _ in range(7)]
    error = shared.final(tasks[-1]).error
    assert error is not None and error.code == 429
    assert all(isinstance(shared.results(task)[0], Admitted) for task in tasks[:-1])


@pytest.mark.parametrize(
    ("tokens", "lengths", "message"),
    [
        ([], [], "must be positive"),
        ([1, 2], [2, 0], "must be positive"),
        ([1, 2], [3], "add up"),
        ([1, 2], [-1, 3], "must be positive"),
        ([1] * 4, [2**31 - 1, 2**31 - 1, 6], "add up"),
        ([-1], [1], "invalid tokens"),
        ([30522], [1], "invalid tokens"),
        (b"abc", b"", "whole number of int32"),
        (b"", b"abcde", "whole number of int32"),
    ],
)
def test_a_wrong_task_is_refused(shared: Desk, tokens: Any, lengths: Any, message: str) -> None:
    raw = [value if isinstance(value, bytes) else np.array(value, "<i4").tobytes() for value in (tokens, lengths)]
    shared.embedder.admit(b"c", Embed(10**6, *raw))
    error = shared.results(10**6)[-1].error  # type: ignore[union-attr]
    assert isinstance(error, Error) and error.code == 400 and message in error.message


def test_a_too_long_input_is_named(shared: Desk) -> None:
    task = shared.submit([5] * 3, [5] * 513, [5] * 600)
    error = shared.final(task).error
    assert error is not None
    assert (error.code, error.index, error.n_prompt_tokens, error.n_ctx) == (400, 1, 513, 512)


def test_the_batch_grows_with_the_threads_of_a_context(context: Context) -> None:
    assert embedding_batch([context], EngineSection(threads=1, n_gpu_layers=0)) == 128
    assert embedding_batch([context], EngineSection(threads=8, n_gpu_layers=0)) == 512
    assert embedding_batch([context] * 8, EngineSection(threads=8, n_gpu_layers=0)) == 128


def test_an_encoder_gets_a_context_for_each_thread_and_a_model_with_memory_one(
    lib: Path, encoder_path: Path, causal_path: Path
) -> None:
    for path, n in ((encoder_path, 3), (causal_path, 1)):
        with closing(Model.load(path)) as model:
            text, contexts = open_contexts(model, EngineSection(embeddings=True, threads=3), ubatch_given=False)
            assert len(contexts) == n
            assert (text in contexts) == (path == encoder_path)
            for opened in {text, *contexts}:
                opened.close()


def test_contexts_side_by_side_share_the_work_and_keep_what_belongs_together(
    lib: Path, tmp_path: Path, encoder_path: Path
) -> None:
    with desk(encoder_path, tmp_path) as made:
        inputs = [[101, *range(2000, 2000 + i % 90), 102] for i in range(60)]
        large = made.submit(*inputs)
        made.step()
        gone = made.submit(*inputs, client=b"gone")
        made.embedder.drop(b"gone")
        small = made.submit([101, 7592, 102])
        found = made.vectors(large)
        alone = [made.vectors(made.submit(each))[0] for each in inputs[::7]]
        assert made.final(small).reason == "done"
        assert b"gone" not in made.server.sent or made.final(gone, b"gone").reason != "done"
    assert min(cosine(found[7 * i], vector).min() for i, vector in enumerate(alone)) > 0.999


def test_a_stop_waits_for_batches_that_are_being_read(lib: Path, tmp_path: Path, encoder_path: Path) -> None:
    with desk(encoder_path, tmp_path) as made:
        task = made.submit(*[[101, *range(2000, 2400), 102]] * 20)
        made.step()
        made.embedder.fail_all(Error(503, "unavailable_error", "the server stops"))
        assert made.final(task).error.code == 503  # type: ignore[union-attr]
        assert len(made.embedder) == 0


@pytest.mark.parametrize(("given", "limit"), [(None, 512), (256, 256), (2048, 512)])
def test_the_longest_input_is_that_of_the_model_unless_the_batch_is_set_smaller(
    lib: Path, encoder_path: Path, given: int | None, limit: int
) -> None:
    settings = EngineSection(threads=2, **({} if given is None else {"ubatch_size": given}))
    with (
        closing(Model.load(encoder_path)) as model,
        closing(open_embedding_context(model, settings, ubatch_given=given is not None)) as opened,
    ):
        assert opened.n_ubatch == limit
