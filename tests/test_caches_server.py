"""The prompt caches of the demo model: reuse in a slot, saved slots over HTTP and a restart, the disk cache."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.real_engine import RealEngine
from tests.server import Server

STORY = (
    "The old lighthouse keeper climbed the stairs every evening at sunset, carrying a lamp and a bag of bread for the "
    "gulls. He had done so for forty years, and he knew every stone of the tower. On the first day of winter a small "
    "boat came out of the fog, and in it sat a girl who said that she had lost her way. "
)
AGAIN = "The old lighthouse keeper"  # after the story, the model goes on with the story whatever the last digits are


MARKS = [
    *("tiger", "violin", "copper", "lantern", "meadow", "pepper", "window", "thunder"),
    *("marble", "rocket", "silver", "velvet", "walnut", "candle", "hammer", "orange"),
]
ROUNDS = int(os.environ.get("LLAMARADA_TEST_ROUNDS", "2"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slots")


def start(model_path: Path, folder: Path) -> Server:
    args = ["-m", str(model_path), "-c", "2048", "-np", "2", "-kvu", "-t", "2", "--slot-save-path", str(folder)]
    return Server([*args, "--cache-disk", str(folder / "disk")]).wait_ready()


@pytest.fixture(scope="module")
def server(lib: Path, model_path: Path, folder: Path) -> Iterator[Server]:
    with start(model_path, folder) as started:
        yield started


def complete(server: Server, prompt: str, **fields: Any) -> tuple[str, int, int]:
    """Text, tokens found in a cache, tokens of the prompt."""
    body = {"prompt": prompt, "n_predict": 8, "temperature": 0, "id_slot": 0, **fields}
    response = server.post("/completion", body)
    assert response.status_code == 200, response.text
    answer = response.json()
    timings = answer["timings"]
    return answer["content"], timings["cache_n"], timings["cache_n"] + timings["prompt_n"]


def act(server: Server, action: str, **body: Any) -> dict[str, Any]:
    response = server.post(f"/slots/0?action={action}", body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    assert answer["id_slot"] == 0
    return answer


def test_the_same_slot_is_reused(server: Server) -> None:
    """The case P04: again, with two words more, and a branch at half."""
    first, cached, n = complete(server, STORY * 2 + AGAIN)
    again, cached_again, _ = complete(server, STORY * 2 + AGAIN)
    assert (cached, cached_again) == (0, n - 1) and again == first
    longer, cached, _ = complete(server, STORY * 2 + AGAIN + " climbed the")
    assert n <= cached < n + 3
    branch, cached, _ = complete(server, STORY + AGAIN)
    assert n / 2 - 5 <= cached <= n / 2 + 5
    assert complete(server, STORY * 2 + AGAIN + " climbed the", cache_prompt=False)[0] == longer
    assert complete(server, STORY + AGAIN, cache_prompt=False)[0] == branch


def test_a_saved_slot_survives_erasing_and_a_restart(server: Server, model_path: Path, folder: Path) -> None:
    """The case P06."""
    complete(server, STORY * 2 + AGAIN, n_predict=4)
    saved = act(server, "save", filename="story.bin")
    expected, cached, n = complete(server, STORY * 2 + AGAIN + " climbed the")
    assert saved["filename"] == "story.bin" and saved["n_written"] == (folder / "story.bin").stat().st_size
    assert saved["timings"]["save_ms"] > 0
    assert act(server, "erase")["n_erased"] >= n
    restored = act(server, "restore", filename="story.bin")
    assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])
    text, cached, _ = complete(server, STORY * 2 + AGAIN + " climbed the")
    assert text == expected and cached >= restored["n_restored"] - 8
    fresh = folder / "fresh"
    fresh.mkdir()
    shutil.copy(folder / "story.bin", fresh)
    with start(model_path, fresh) as other:
        restored = act(other, "restore", filename="story.bin")
        text, cached, _ = complete(other, STORY * 2 + AGAIN + " climbed the")
        assert text == expected and cached >= restored["n_restored"] - 8


@pytest.mark.parametrize(
    ("path", "body", "code", "text"),
    [
        ("/slots/x?action=save", {"filename": "a"}, 400, "Invalid slot ID"),
        ("/slots/0?action=copy", {"filename": "a"}, 400, "Invalid action"),
        ("/slots/0?action=save", {"filename": "../a"}, 400, "Invalid filename"),
        ("/slots/0?action=save", {}, 400, "Invalid filename"),
        ("/slots/0?action=restore", {"filename": "none"}, 400, "Unable to restore slot: No available space in KV"),
    ],
)
def test_bad_slot_actions_are_refused(server: Server, path: str, body: dict[str, Any], code: int, text: str) -> None:
    response = server.post(path, body)
    assert response.status_code == code and text in response.json()["error"]["message"]


def secret(engine: RealEngine, mark: str) -> list[int]:
    """A prompt that goes on with `mark` and what follows it, whatever the last digits of the logits are."""
    start = "Anna keeps a garden behind the old mill, and the secret word on her gate is"
    sentence = f"{start} {mark}, which every guest must say aloud. "
    return engine.model.vocab.encode(sentence + start).tolist()


def test_clients_never_see_each_others_mark(lib: Path, model_path: Path) -> None:
    """The idea of case C03: many clients, several rounds, random aborts, fewer slots than clients."""
    random = Random(3)
    with RealEngine(model_path, ctx_size=512, parallel=1, kv_unified=True, cache_ram=0) as alone:
        prompts = [secret(alone, mark) for mark in MARKS]
        expected = [alone.generate(tokens, 8, cache_prompt=False)[0] for tokens in prompts]
    with RealEngine(model_path, ctx_size=256, parallel=4, kv_unified=True) as engine:
        for _ in range(ROUNDS):
            tasks = [engine.submit(tokens, 8) for tokens in prompts]
            engine.step(random.randint(0, 5))
            for task in random.sample(tasks, 2):
                engine.abort(task)
            engine.run()
            for task, text, mark in zip(tasks, expected, MARKS, strict=True):
                assert engine.tokens(task) == text[: len(engine.tokens(task))]
                said = engine.text(task)
                assert not any(other in said for other in MARKS if other != mark)
                assert mark in said or engine.final(task).reason == "abort"


def test_a_long_conversation_is_resumed_after_a_restart(lib: Path, model_path: Path, tmp_path: Path) -> None:
    settings = {"ctx_size": 2048, "parallel": 2, "kv_unified": True, "cache_disk": str(tmp_path)}
    defaults = {"flash_attn": "auto", "cache_type_k": "f16", "cache_type_v": "f16"}
    with RealEngine(model_path, **settings, **defaults) as engine:
        prompt = engine.model.vocab.encode(STORY * 14).tolist()[:1000]
        begun = time.monotonic()
        answer, _ = engine.generate(prompt, 1)
        seconds = time.monotonic() - begun
    with RealEngine(model_path, **settings, **defaults) as engine:
        begun = time.monotonic()
        _, cached = engine.generate([*prompt, *answer, 28, 198], 1)
        assert cached >= 1000 and time.monotonic() - begun < seconds / 5
