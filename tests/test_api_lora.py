"""The adapter endpoints speak to the engine and check what clients send."""

from pathlib import Path

import pytest

from api.lora import shown
from ipc.messages import DropLora, GetLora, LoadLora, LoraState, SetLora
from tests.api_client import Api, run
from tests.fake_engine import Script


def test_adapters_are_listed(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        result = await api.get("/lora-adapters")
        assert result.status_code == 200 and result.json == []
        assert any(isinstance(message, GetLora) for message in api.engine.received)

    run(test, tmp_path, Script())


def test_scales_are_set_and_checked(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        assert (await api.post("/lora-adapters", [{"id": 0, "scale": 0.5}])).json == {"success": True}
        (asked,) = [message for message in api.engine.received if isinstance(message, SetLora)]
        assert [(entry.id, entry.scale) for entry in asked.scales] == [(0, 0.5)]
        bad = await api.post("/lora-adapters", {"id": 0})
        assert bad.status_code == 400 and bad.json["error"]["message"] == "Request body must be an array"

    run(test, tmp_path, Script())


def test_an_adapter_is_loaded_and_dropped(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        assert (await api.post("/lora-adapters/load", {"path": "x.gguf", "scale": 2})).status_code == 200
        assert (await api.http.simulate_delete("/lora-adapters/3")).status_code == 200
        loaded = [m for m in api.engine.received if isinstance(m, LoadLora)]
        dropped = [m for m in api.engine.received if isinstance(m, DropLora)]
        assert (loaded[0].path, loaded[0].scale, dropped[0].adapter) == ("x.gguf", 2.0, 3)

    run(test, tmp_path, Script())


@pytest.mark.parametrize(
    "body", [{}, {"path": 3}, {"path": ""}, {"path": "x", "scale": "big"}, {"path": "x", "scale": True}]
)
def test_a_bad_load_is_refused(tmp_path: Path, body: dict[str, object]) -> None:
    async def test(api: Api) -> None:
        result = await api.post("/lora-adapters/load", body)
        assert result.status_code == 400 and "Field '" in result.json["error"]["message"]

    run(test, tmp_path, Script())


def test_methods_that_a_path_lacks_are_refused(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        assert (await api.get("/lora-adapters/load")).status_code == 405
        assert (await api.get("/lora-adapters/0")).status_code == 405
        assert (await api.http.simulate_delete("/lora-adapters/x")).status_code == 400

    run(test, tmp_path, Script())


def test_an_adapter_is_shown_with_its_invocation() -> None:
    entry = shown(LoraState(1, "a.gguf", 0.5, "task", "prefix", [4, 5]))
    assert entry["alora_invocation_tokens"] == [4, 5] and entry["task_name"] == "task"
