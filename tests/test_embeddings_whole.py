"""Embeddings and reranking by whole servers on real models: reported cases, clients, text generation beside."""

import base64
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai import OpenAI

from tests.server import Server, wait_for
from tests.test_convert import DATA, SENTENCES

SHORT = SENTENCES[:40]


@pytest.fixture(scope="module")
def encoder(lib: Path, encoder_path: Path) -> Iterator[Server]:
    with Server(["-m", str(encoder_path), "-t", "2", "--metrics"]) as server:
        yield server.wait_ready()


@pytest.fixture(scope="module")
def causal(lib: Path, model_path: Path) -> Iterator[Server]:
    settings = "--embeddings --pooling mean -np 2 --no-kv-unified -c 1024 -b 256 -ub 256 -t 2"
    with Server(["-m", str(model_path), *settings.split()]) as server:
        yield server.wait_ready()


def embed(server: Server, inputs: Any, **fields: Any) -> np.ndarray:
    answer = server.post("/v1/embeddings", {"input": inputs, **fields})
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    assert [item["index"] for item in data] == list(range(len(data)))
    return np.array([item["embedding"] for item in data], np.float32)


def test_vectors_of_a_hundred_sentences_are_those_of_the_reference(encoder: Server) -> None:
    found, wanted = embed(encoder, SENTENCES), np.load(DATA / "minilm.npz")["vectors"].astype(np.float32)
    assert (found * wanted).sum(axis=1).min() >= 0.999
    assert np.abs(np.linalg.norm(found, axis=1) - 1).max() < 1e-4
    single = np.concatenate([embed(encoder, sentence) for sentence in SENTENCES])
    assert (found * single).sum(axis=1).min() >= 0.9999


def test_forty_texts_at_once_are_the_forty_alone_on_a_causal_model(causal: Server) -> None:
    together = embed(causal, SHORT)
    single = np.concatenate([embed(causal, text) for text in SHORT])
    assert (together * single).sum(axis=1).min() >= 0.999


def test_a_too_long_input_is_refused_by_name_and_the_server_goes_on(causal: Server) -> None:
    long = [7] * 400
    for inputs, index in (([long], 0), (["a", long, "b"], 1), (["a", [7] * 3000], 1)):
        answer = causal.post("/v1/embeddings", {"input": inputs})
        error = answer.json()["error"]
        assert answer.status_code == 400
        assert (error["index"], error["n_ctx"]) == (index, 256)
        assert error["n_prompt_tokens"] == len(inputs[index])
    assert embed(causal, ["a", long, "b"], truncate=True).shape == (3, 576)


def test_text_and_vectors_come_from_one_server_at_once(causal: Server) -> None:
    ask = {"prompt": "Once upon a time", "n_predict": 40, "temperature": 0, "ignore_eos": True, "id_slot": 0}
    alone = causal.post("/completion", ask).json()["content"]
    with ThreadPoolExecutor(1) as pool:
        vectors = pool.submit(embed, causal, SHORT)
        with causal.stream("/completion", {**ask, "stream": True}) as events:
            first = next(events)
            assert not vectors.done()
            text = first["content"] + "".join(event["content"] for event in events)
        assert len(vectors.result()) == len(SHORT)
    assert text[:20] == alone[:20]


def test_a_short_input_does_not_wait_for_a_large_request(encoder: Server) -> None:
    alone = min(timed(encoder) for _ in range(3))
    with ThreadPoolExecutor(1) as pool:
        large = pool.submit(embed, encoder, SENTENCES * 4)
        until_busy(encoder)
        waits = sorted(timed(encoder) for _ in range(3))
        assert not large.done()
        large.result()
    assert waits[0] < alone + 2.0


def timed(server: Server) -> float:
    begin = time.monotonic()
    embed(server, "short")
    return time.monotonic() - begin


def until_busy(server: Server) -> None:
    """Until the engine reads embeddings; its count of prompt tokens then grows."""
    before = count(server)
    wait_for(lambda: count(server) > before, 20)


def count(server: Server) -> float:
    """Tokens read since the start."""
    lines = server.get("/metrics").text.splitlines()
    (line,) = [line for line in lines if line.startswith("llamacpp:prompt_tokens_total ")]
    return float(line.split()[1])


@pytest.mark.parametrize(
    ("body", "status"),
    [({"input": ""}, 200), ({"input": ["a", ""]}, 200), ({"input": []}, 400), ({"input": None}, 400), ({}, 400)],
)
def test_an_empty_text_has_a_vector_where_the_model_adds_tokens(encoder: Server, body: Any, status: int) -> None:
    assert encoder.post("/v1/embeddings", body).status_code == status


def test_an_empty_text_is_refused_where_the_model_adds_none(causal: Server) -> None:
    for inputs in ("", ["a", ""]):
        answer = causal.post("/v1/embeddings", {"input": inputs})
        assert answer.status_code == 400 and "cannot be empty" in answer.json()["error"]["message"]


def test_base64_and_norms(encoder: Server) -> None:
    numbers = embed(encoder, ["a b", "c"])
    answer = encoder.post("/v1/embeddings", {"input": ["a b", "c"], "encoding_format": "base64"}).json()
    decoded = np.stack([np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in answer["data"]])
    assert np.abs(decoded - numbers).max() < 1e-6
    raw = embed(encoder, ["a b", "c"], embd_normalize=-1)
    assert np.abs(np.linalg.norm(raw, axis=1) - 1).min() > 0.1
    assert np.abs(raw / np.linalg.norm(raw, axis=1, keepdims=True) - numbers).max() < 1e-5


def test_the_openai_client_gets_vectors(encoder: Server) -> None:
    with OpenAI(base_url=f"{encoder.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.embeddings.create(model="any", input=["a cat", "a kitten", "the stock market"])
        short = client.embeddings.create(model="any", input="a cat", dimensions=64, encoding_format="float")
    cat, kitten, market = (np.array(item.embedding) for item in answer.data)
    assert cat @ kitten > cat @ market
    assert answer.usage.prompt_tokens == sum((4, 4, 5))
    assert len(short.data[0].embedding) == 64
    assert np.linalg.norm(short.data[0].embedding) == pytest.approx(1, abs=1e-4)


def test_an_encoder_makes_no_text(encoder: Server) -> None:
    assert encoder.post("/completion", {"prompt": "a"}).status_code == 501
    assert encoder.post("/rerank", {"query": "a", "documents": ["b"]}).status_code == 501


def test_a_reranker_sorts_by_the_score_of_its_head(lib: Path, reranker_path: Path) -> None:
    documents = SENTENCES[:12]
    with Server(["-m", str(reranker_path), "--reranking", "-t", "2"]) as server:
        server.wait_ready()
        answer = server.post("/v1/rerank", {"query": "where does it rain", "documents": documents, "top_n": 5}).json()
        tei = server.post("/rerank", {"query": "where does it rain", "texts": documents}).json()
        alone = [
            server.post("/rerank", {"query": "where does it rain", "texts": [document]}).json()[0]["score"]
            for document in documents
        ]
    assert [result["index"] for result in answer["results"]] == [result["index"] for result in tei][:5]
    assert [result["score"] for result in tei] == sorted((result["score"] for result in tei), reverse=True)
    assert [result["score"] for result in sorted(tei, key=lambda one: one["index"])] == pytest.approx(alone, abs=0.02)


def test_ranking_with_a_model_that_has_no_head_fails_at_the_start(lib: Path, encoder_path: Path) -> None:
    with (
        Server(["-m", str(encoder_path), "--reranking"]) as server,
        pytest.raises(AssertionError, match="no classification head"),
    ):
        server.wait_ready()


def test_the_examples_of_the_documentation_print_what_it_says(
    encoder: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parent.parent / "docs" / "embeddings.md").read_text("utf-8")
    search, client = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(search.replace("http://127.0.0.1:8080", encoder.url), {})
    said, printed = (re.findall(r"^ *(0\.\d\d)  (.+)$", text, re.MULTILINE) for text in (page, capsys.readouterr().out))
    assert [text for _, text in said] == [text for _, text in printed]
    assert [float(score) for score, _ in said] == pytest.approx([float(score) for score, _ in printed], abs=0.011)
    exec(client.replace("http://127.0.0.1:8080", encoder.url), {})
    assert capsys.readouterr().out == "256 8\n"
