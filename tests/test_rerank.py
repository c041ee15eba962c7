"""The rerank endpoints: both forms, order, options, prompts and errors."""

import asyncio
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from api.rerank import Prompt
from ipc.messages import Embed
from tests.api_client import running
from tests.fake_engine import Script
from tests.tiny_vocab import TinyVocab

DOCUMENTS = ["bbb", "a", "cc"]  # the fake engine's score is the number of tokens


def ask(folder: Path, body: Any, path: str = "/v1/rerank", **script: Any) -> Any:
    """Status and decoded answer."""

    async def main() -> tuple[int, Any]:
        made = Script(**{"n_embed_tokens": 20, "pooling": "rank", **script})
        async with asyncio.timeout(20), running(folder, made, vocab=TinyVocab(add_bos=True)) as api:
            result = await api.post(path, body)
            return result.status_code, result.json

    return asyncio.run(main())


@pytest.mark.parametrize("path", ["/rerank", "/reranking", "/v1/rerank", "/v1/reranking"])
def test_the_best_document_comes_first(tmp_path: Path, path: str) -> None:
    status, answer = ask(tmp_path, {"query": "q", "documents": DOCUMENTS, "model": "other"}, path)
    assert status == 200
    assert (answer["object"], answer["model"]) == ("list", "other")
    assert answer["usage"] == {"prompt_tokens": 12, "total_tokens": 12}
    assert answer["results"] == [
        {"index": 0, "relevance_score": 5.0},
        {"index": 2, "relevance_score": 4.0},
        {"index": 1, "relevance_score": 3.0},
    ]


def test_texts_give_the_tei_form(tmp_path: Path) -> None:
    status, answer = ask(tmp_path, {"query": "q", "texts": DOCUMENTS})
    assert status == 200
    assert answer == [{"index": 0, "score": 5.0}, {"index": 2, "score": 4.0}, {"index": 1, "score": 3.0}]


def test_each_form_returns_the_documents_in_its_own_way(tmp_path: Path) -> None:
    _, jina = ask(tmp_path, {"query": "q", "documents": DOCUMENTS, "return_documents": True, "top_n": 1})
    assert jina["results"] == [{"index": 0, "relevance_score": 5.0, "document": {"text": "bbb"}}]
    _, tei = ask(tmp_path, {"query": "q", "texts": DOCUMENTS, "return_text": True, "top_n": 1})
    assert tei == [{"index": 0, "score": 5.0, "text": "bbb"}]


@pytest.mark.parametrize(("top_n", "indices"), [(0, []), (1, [0]), (2, [0, 2]), (3, [0, 2, 1]), (10, [0, 2, 1])])
def test_top_n_keeps_the_best(tmp_path: Path, top_n: int, indices: list[int]) -> None:
    _, answer = ask(tmp_path, {"query": "q", "documents": DOCUMENTS, "top_n": top_n})
    assert [result["index"] for result in answer["results"]] == indices


def test_equal_scores_keep_the_order_of_the_documents(tmp_path: Path) -> None:
    _, answer = ask(tmp_path, {"query": "q", "documents": ["xx", "a", "b", "c"]})
    assert [result["index"] for result in answer["results"]] == [0, 1, 2, 3]


def test_raw_scores_turned_off_gives_probabilities(tmp_path: Path) -> None:
    body = {"query": "q", "texts": ["a"], "raw_scores": False}
    _, answer = ask(tmp_path, body, scale=0.5)
    assert answer[0]["score"] == pytest.approx(1 / (1 + math.exp(-1.5)))
    _, answer = ask(tmp_path, {**body, "raw_scores": True}, scale=0.5)
    assert answer[0]["score"] == 1.5


def test_documents_may_be_objects_with_a_text(tmp_path: Path) -> None:
    status, answer = ask(tmp_path, {"query": "q", "documents": [{"text": "bb"}, "a"], "return_documents": True})
    assert status == 200
    assert [result["document"]["text"] for result in answer["results"]] == ["bb", "a"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"documents": ["a"]}, '"query" must be provided'),
        ({"query": 5, "documents": ["a"]}, '"query" must be a string'),
        ({"query": None, "documents": ["a"]}, '"query" must be a string'),
        ({"query": "q"}, '"documents" must be a non-empty string array'),
        ({"query": "q", "documents": []}, '"documents" must be a non-empty string array'),
        ({"query": "q", "texts": []}, '"documents" must be a non-empty string array'),
        ({"query": "q", "documents": "a"}, '"documents" must be a non-empty string array'),
        ({"query": "q", "documents": ["a", 5]}, '"documents" must be a non-empty string array'),
        ({"query": "q", "documents": [{"image": "x"}]}, '"documents" must be a non-empty string array'),
        ({"query": "q", "documents": ["a"], "top_n": -1}, "top_n"),
        ({"query": "q", "documents": ["a"], "top_n": "x"}, "top_n"),
        ({"query": "q", "documents": ["a"], "return_documents": "x"}, "return_documents"),
        ({"query": "q", "texts": ["a"], "raw_scores": 1}, "raw_scores"),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(tmp_path: Path, body: Any, message: str) -> None:
    status, answer = ask(tmp_path, body)
    assert status == 400
    assert message in answer["error"]["message"]


def test_a_too_long_document_is_named_or_cut(tmp_path: Path) -> None:
    body = {"query": "q", "documents": ["a", "b" * 30]}
    status, answer = ask(tmp_path, body)
    assert status == 400
    assert (answer["error"]["index"], answer["error"]["n_prompt_tokens"], answer["error"]["n_ctx"]) == (1, 32, 20)
    status, answer = ask(tmp_path, {**body, "truncate": True})
    assert status == 200
    assert answer["results"][0] == {"index": 1, "relevance_score": 20.0}


def test_a_query_that_leaves_no_room_is_refused_even_when_cutting(tmp_path: Path) -> None:
    status, answer = ask(tmp_path, {"query": "q" * 30, "documents": ["a"], "truncate": True})
    assert (status, answer["error"]["index"]) == (400, 0)


@pytest.mark.parametrize("script", [{"n_embed_tokens": None}, {"pooling": "mean"}])
def test_a_server_that_does_not_rank_says_how_to_make_it(tmp_path: Path, script: dict[str, Any]) -> None:
    status, answer = ask(tmp_path, {"query": "q", "documents": ["a"]}, **script)
    assert (status, answer["error"]["type"]) == (501, "not_supported_error")
    assert "Start it with `--reranking`" in answer["error"]["message"]


def test_a_score_that_is_no_number_is_an_error_naming_the_model(tmp_path: Path) -> None:
    status, answer = ask(tmp_path, {"query": "q", "documents": ["a"]}, scale=math.nan)
    assert status == 500 and "tiny" in answer["error"]["message"]


def test_all_documents_travel_in_one_task(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, Script(n_embed_tokens=20, pooling="rank")) as api:
            await api.json("/rerank", {"query": "q", "documents": ["a"] * 300})
            (task,) = api.engine.got(Embed)
            assert isinstance(task, Embed) and len(task.lengths) == 4 * 300

    asyncio.run(main())


# ---------------------------------------------------------------- prompts


class Vocabulary(TinyVocab):
    """One with given specials: BOS 256, EOS 257, SEP 258."""

    def __init__(self, *, template: str | None = None, **fields: Any) -> None:
        super().__init__()
        self.template = template
        vars(self).update(fields)

    def chat_template(self, name: str | None = None) -> str | None:
        return self.template if name == "rerank" else None


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, [113, 100]),
        ({"add_bos": True}, [256, 113, 100]),
        ({"add_bos": True, "add_eos": True}, [256, 113, 257, 100, 257]),
        ({"add_bos": True, "add_eos": True, "sep": 258, "add_sep": True}, [256, 113, 257, 258, 100, 257]),
        ({"add_bos": True, "eos": None, "sep": 258, "add_sep": True}, [256, 113, 258, 100]),
        ({"add_eos": True, "eos": None, "sep": 258}, [113, 258, 100, 258]),
    ],
)
def test_specials_stand_where_the_vocabulary_wants_them(fields: dict[str, Any], tokens: list[int]) -> None:
    assert Prompt(Vocabulary(**fields)).tokens("q", "d").tolist() == tokens


def test_the_template_of_the_model_is_used() -> None:
    prompt = Prompt(Vocabulary(template="<s>{query}:{document}{query}</s>"))
    assert prompt.tokens("q", "d").tolist() == [256, 113, 58, 100, 113, 257]


def test_a_document_spells_no_special_token_and_no_slot() -> None:
    for prompt in (Prompt(Vocabulary(template="<s>{query}:{document}</s>")), Prompt(Vocabulary())):
        tokens = prompt.tokens("{document}", "</s><s>{query}").tolist()
        assert bytes(token for token in tokens if token < 256).replace(b":", b"") == b"{document}</s><s>{query}"


def test_cutting_keeps_what_the_template_puts_behind() -> None:
    prompt = Prompt(Vocabulary(template="<s>{query}:{document}</s>"))
    assert prompt.cut("q", "d" * 100, 10).tolist() == [256, 113, 58, *[100] * 6, 257]
    assert np.array_equal(prompt.cut("q", "d", 10), prompt.tokens("q", "d"))
