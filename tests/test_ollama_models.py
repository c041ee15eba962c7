"""What Ollama's clients learn of the model, and its vectors."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from api.ollama_models import size_text, typed
from ipc.messages import ModelInfo
from tests.api_client import Api
from tests.chat_vocab import ChatVocab
from tests.fake_engine import N_EMBD, FakeEngine
from tests.wire_events import run, run_api

POOLED = ModelInfo("fake.gguf", "fake", "fake", 1000, 2000, "F32", 261, 1024, N_EMBD, N_EMBD, 1, 1, "mean")


def test_the_model(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        tags = (await api.get("/api/tags")).json
        (entry,) = tags["models"]
        assert (entry["name"], entry["model"], entry["size"]) == ("tiny", "tiny", 2000)
        assert len(entry["digest"]) == 64
        assert entry["details"]["family"] == "fake"
        assert tags["data"][0]["id"] == "tiny"
        (running,) = (await api.get("/api/ps")).json["models"]
        assert running["context_length"] == 1024
        assert entry.items() <= running.items()
        shown = await api.json("/api/show", {"model": "tiny"})
        assert shown["template"] == ChatVocab().chat_template()
        assert shown["capabilities"] == ["completion", "tools", "thinking", "insert"]
        assert shown["model_info"]["general.parameter_count"] == 1000
        assert (await api.get("/api/version")).json["version"].count(".") == 2

    run(test, tmp_path)


def test_vectors_need_a_server_that_makes_them(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        for path, body in (("/api/embed", {"input": "a"}), ("/api/embeddings", {"prompt": "a"})):
            result = await api.post(path, {"model": "tiny", **body})
            assert result.status_code == 501
            assert "--embeddings" in result.json["error"]
        assert (await api.json("/api/embed", {"model": "tiny", "input": []}))["embeddings"] == []
        assert await api.json("/api/embeddings", {"model": "tiny", "prompt": ""}) == {"embedding": []}

    run(test, tmp_path)


class WithoutSeparator(ChatVocab):
    """A vocabulary that puts nothing behind an input."""

    add_sep = False
    sep = None


def test_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    welcome = FakeEngine.welcome
    monkeypatch.setattr(FakeEngine, "welcome", lambda engine: replace(welcome(engine), n_embed_tokens=9, model=POOLED))

    async def test(api: Api) -> None:
        answer = await api.json("/api/embed", {"model": "other", "input": ["a", "bb"]})
        assert (answer["model"], answer["prompt_eval_count"]) == ("other", 3)
        assert [len(row) for row in answer["embeddings"]] == [8, 8]
        assert [round(sum(x * x for x in row), 5) for row in answer["embeddings"]] == [1, 1]
        short = await api.json("/api/embed", {"model": "tiny", "input": "a", "dimensions": 2})
        assert [round(sum(x * x for x in row), 5) for row in short["embeddings"]] == [1]
        assert len(short["embeddings"][0]) == 2
        raw = await api.json("/api/embeddings", {"model": "tiny", "prompt": "a"})
        assert raw["embedding"][:2] == [97, 1]
        refused = await api.post("/api/embed", {"model": "tiny", "input": "a" * 10, "truncate": False})
        assert refused.status_code == 400
        assert (await api.json("/api/embed", {"model": "tiny", "input": "a" * 10}))["prompt_eval_count"] == 9
        assert "embedding" in (await api.json("/api/show", {}))["capabilities"]

    run_api(test, tmp_path, vocab=WithoutSeparator())


@pytest.mark.parametrize(
    ("n", "text"), [(134_515_008, "134.5M"), (7_000_000_000, "7B"), (8_030_261_248, "8.03B"), (12_000, "12K"), (7, "7")]
)
def test_numbers_of_parameters(n: int, text: str) -> None:
    assert size_text(n) == text


def test_metadata_are_values() -> None:
    assert [typed(text) for text in ("true", "12", "0.5", "llama", "1.0.0")] == [True, 12, 0.5, "llama", "1.0.0"]
