"""The embedding endpoints: forms of inputs, shapes of answers, options and errors."""

import asyncio
import base64
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from api.vectors import normalized
from ipc.config import Config
from ipc.messages import Abort, Embed, Error
from tests.api_client import CONFIG, running, until
from tests.fake_engine import N_EMBD, Script, vector
from tests.tiny_vocab import TinyVocab

LIMIT = 20


def ask(folder: Path, body: Any, path: str = "/v1/embeddings", config: Config = CONFIG, **script: Any) -> Any:
    """Status and decoded answer."""

    async def main() -> tuple[int, Any]:
        made = Script(**{"n_embed_tokens": LIMIT, **script})
        async with asyncio.timeout(20), running(folder, made, config, vocab=TinyVocab(add_bos=True)) as api:
            result = await api.post(path, body)
            return result.status_code, result.json

    return asyncio.run(main())


def vectors(folder: Path, body: Any, **options: Any) -> list[list[float]]:
    """The embeddings of a successful /v1/embeddings, in order."""
    status, answer = ask(folder, body, **options)
    assert status == 200, answer
    assert [item["index"] for item in answer["data"]] == list(range(len(answer["data"])))
    return [item["embedding"] for item in answer["data"]]


def raw(*tokens: int) -> list[float]:
    """The fake engine's vector."""
    found: list[float] = vector(np.array(tokens)).tolist()
    return found


# ---------------------------------------------------------------- inputs


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("ab", [[256, 97, 98]]),
        (["ab", "c"], [[256, 97, 98], [256, 99]]),
        ([7, 8], [[7, 8]]),
        ([[7, 8], [9]], [[7, 8], [9]]),
        (["a", [7, 8]], [[256, 97], [7, 8]]),
        ([7, "a"], [[7, 97]]),
        ([["a", 7]], [[256, 97, 7]]),
        ({"prompt_string": "a"}, [[256, 97]]),
        ([{"prompt_string": "a", "multimodal_data": []}, "b"], [[256, 97], [256, 98]]),
        ({"content": "a"}, [[256, 97]]),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, [[256, 97, 98]]),
    ],
)
def test_inputs_come_in_every_form(tmp_path: Path, given: Any, inputs: list[list[int]]) -> None:
    found = vectors(tmp_path, {"input": given, "embd_normalize": -1})
    assert found == [raw(*tokens) for tokens in inputs]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, '"input" or "content" must be provided'),
        ({"input": []}, '"input" must not be empty'),
        ({"content": []}, '"content" must not be empty'),
        ({"input": None}, '"input" must be a string'),
        ({"input": 5}, '"input" must be a string'),
        ({"input": True}, '"input" must be a string'),
        ({"input": ["a", None]}, "contains null"),
        ({"input": ["a", 1.5]}, "contains a number"),
        ({"input": [[]]}, "input 0 has no tokens"),
        ({"input": ["a", []]}, "input 1 has no tokens"),
        ({"input": [7, 999]}, "invalid tokens"),
        ({"input": [[7], [-1]]}, "invalid tokens"),
        ({"input": {}}, "needs a"),
        ({"input": {"prompt_string": "a", "multimodal_data": ["aGk="]}}, "no images, audio or video"),
        ({"input": [{"content": [{"type": "image_url", "image_url": {}}]}]}, "of type image_url"),
        ({"input": [{"content": [{"type": "input_audio"}]}]}, "of type input_audio"),
        ({"input": [{"content": [{"type": "text"}]}]}, "a content part must be"),
        ({"input": "a", "encoding_format": "int8"}, "Can be either float or base64"),
        ({"input": "a", "embd_normalize": -2}, "embd_normalize"),
        ({"input": "a", "embd_normalize": "x"}, "embd_normalize"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": N_EMBD + 1}, "dimensions"),
        ({"input": "a", "truncate": 1}, "truncate"),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(tmp_path: Path, body: Any, message: str) -> None:
    status, answer = ask(tmp_path, body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert message in answer["error"]["message"]


def test_an_empty_text_is_refused_by_a_vocabulary_that_adds_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, Script(n_embed_tokens=LIMIT)) as api:
            status, _, message = await api.error("/v1/embeddings", {"input": ["a", ""]})
            assert status == 400 and "Input content cannot be empty: input 1" in message

    asyncio.run(main())


def test_a_too_long_input_is_named_with_its_length_and_the_limit(tmp_path: Path) -> None:
    status, answer = ask(tmp_path, {"input": ["a", "b" * 30, "c" * 40]})
    error = answer["error"]
    assert (status, error["type"]) == (400, "exceed_context_size_error")
    assert (error["index"], error["n_prompt_tokens"], error["n_ctx"]) == (1, 31, LIMIT)
    assert "input 1 (31 tokens)" in error["message"] and "at most 20" in error["message"]


def test_truncate_cuts_what_is_too_long(tmp_path: Path) -> None:
    found = vectors(tmp_path, {"input": ["a", "b" * 30], "truncate": True, "embd_normalize": -1})
    assert found == [raw(256, 97), raw(256, *[98] * 19)]


def test_a_cut_input_keeps_the_token_at_its_end(tmp_path: Path) -> None:
    class Closing(TinyVocab):
        sep, add_sep = 257, True

        def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> np.ndarray:
            return np.append(super().encode(text, add_special, parse_special), np.int32(257))

    async def main() -> None:
        async with running(tmp_path, Script(n_embed_tokens=4), vocab=Closing()) as api:
            answer = await api.json("/embedding", {"input": "abcdef", "truncate": True, "embd_normalize": -1})
            assert answer[0]["embedding"][0] == raw(97, 98, 99, 257)

    asyncio.run(main())


# ---------------------------------------------------------------- answers


def test_the_openai_shape(tmp_path: Path) -> None:
    status, answer = ask(tmp_path, {"input": ["ab", "c"], "model": "other"})
    assert status == 200
    assert (answer["object"], answer["model"]) == ("list", "other")
    assert answer["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
    assert {item["object"] for item in answer["data"]} == {"embedding"}
    assert "encoding_format" not in answer["data"][0]


@pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
def test_the_native_shape(tmp_path: Path, path: str) -> None:
    status, answer = ask(tmp_path, {"input": ["a", "b"], "embd_normalize": -1}, path)
    assert status == 200
    expected = [{"index": 0, "embedding": [raw(256, 97)]}, {"index": 1, "embedding": [raw(256, 98)]}]
    assert answer == expected


def test_content_gives_the_native_shape_anywhere(tmp_path: Path) -> None:
    status, answer = ask(tmp_path, {"content": "a", "embd_normalize": -1})
    assert (status, answer) == (200, [{"index": 0, "embedding": [raw(256, 97)]}])


def test_without_pooling_each_token_has_its_vector(tmp_path: Path) -> None:
    status, answer = ask(tmp_path, {"input": ["a", "bc"]}, "/embedding", pooling="none")
    assert status == 200
    assert answer == [
        {"index": 0, "embedding": [raw(256), raw(97)]},
        {"index": 1, "embedding": [raw(256), raw(98), raw(99)]},
    ]


def test_without_pooling_there_is_no_openai_shape(tmp_path: Path) -> None:
    status, answer = ask(tmp_path, {"input": "a"}, pooling="none")
    assert status == 400
    assert answer["error"]["message"].startswith("Pooling type 'none' is not OAI compatible")


def test_base64_carries_the_same_floats(tmp_path: Path) -> None:
    _, answer = ask(tmp_path, {"input": ["ab", "c"], "encoding_format": "base64"})
    decoded = [np.frombuffer(base64.b64decode(item["embedding"]), "<f4").tolist() for item in answer["data"]]
    assert decoded == vectors(tmp_path, {"input": ["ab", "c"], "encoding_format": "float"})
    assert [item["encoding_format"] for item in answer["data"]] == ["base64", "base64"]


def test_vectors_have_length_one_unless_asked_otherwise(tmp_path: Path) -> None:
    (found,) = vectors(tmp_path, {"input": "ab"})
    assert math.hypot(*found) == pytest.approx(1, abs=1e-6)
    assert found[0] / found[1] == pytest.approx((256 + 97 + 98) / 3)


def test_the_norm_of_the_configuration_is_the_default(tmp_path: Path) -> None:
    config = replace(CONFIG, engine=replace(CONFIG.engine, embd_normalize=1))
    (found,) = vectors(tmp_path, {"input": "ab"}, config=config)
    assert sum(map(abs, found)) == pytest.approx(1, abs=1e-6)


def test_dimensions_cut_and_renormalise(tmp_path: Path) -> None:
    assert vectors(tmp_path, {"input": "ab", "dimensions": 1}) == [[1.0]]
    assert vectors(tmp_path, {"input": "ab", "dimensions": 2, "embd_normalize": -1}) == [[451.0, 3.0]]


def test_thousands_of_inputs_are_answered_in_order(tmp_path: Path) -> None:
    inputs = [[1 + i % 200, 2] for i in range(3000)]
    found = vectors(tmp_path, {"input": inputs, "embd_normalize": -1})
    assert found == [raw(*tokens) for tokens in inputs]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_vector_that_is_no_number_is_an_error_naming_the_model(tmp_path: Path, bad: float) -> None:
    for path in ("/v1/embeddings", "/embedding"):
        status, answer = ask(tmp_path, {"input": "a"}, path, scale=bad)
        assert status == 500
        assert "tiny" in answer["error"]["message"] and "NaN" in answer["error"]["message"]


def test_a_server_without_embeddings_says_how_to_get_them(tmp_path: Path) -> None:
    for path in ("/embedding", "/embeddings", "/v1/embeddings"):
        status, answer = ask(tmp_path, {"input": "a"}, path, n_embed_tokens=None)
        assert (status, answer["error"]["type"]) == (501, "not_supported_error")
        assert "Start it with `--embeddings`" in answer["error"]["message"]


def test_a_reranker_says_that_it_ranks(tmp_path: Path) -> None:
    status, answer = ask(tmp_path, {"input": "a"}, pooling="rank")
    assert status == 501 and "ranks documents" in answer["error"]["message"]


def test_what_the_engine_refuses_keeps_its_status(tmp_path: Path) -> None:
    refusal = Error(429, "rate_limit_error", "the queue is full, try again later")
    status, answer = ask(tmp_path, {"input": "a"}, refuse=refusal)
    assert (status, answer["error"]["message"]) == (429, refusal.message)


def test_a_client_that_leaves_takes_its_task_along(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, Script(n_embed_tokens=LIMIT, mute=True)) as api:
            request = asyncio.create_task(api.post("/v1/embeddings", {"input": "a"}))
            await until(lambda: api.engine.got(Embed))
            request.cancel()
            await until(lambda: api.engine.got(Abort))

    asyncio.run(main())


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("norm", "wanted"),
    [
        (-1, [3.0, -4.0]),
        (0, [3 / 4 * 32760, -32760.0]),
        (1, [3 / 7, -4 / 7]),
        (2, [0.6, -0.8]),
        (3, [3 / 91 ** (1 / 3), -4 / 91 ** (1 / 3)]),
    ],
)
def test_norms(norm: int, wanted: list[float]) -> None:
    found = normalized(np.array([[3, -4], [0, 0]], np.float32), norm)
    assert found[0].tolist() == pytest.approx(wanted, rel=1e-6)
    assert found[1].tolist() == [0, 0]


def test_a_large_power_does_not_overflow() -> None:
    found = normalized(np.array([[1e30, 1e30]], np.float32), 1000)
    assert found[0].tolist() == pytest.approx([2**-0.001] * 2, rel=1e-6)
