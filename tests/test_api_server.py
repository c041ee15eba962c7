"""What holds for every route, and the routes that do not generate."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from falcon.testing import ASGIConductor
from msgspec.structs import replace

from api.cors import is_local
from api.metrics import lines
from api.routes import create_app
from ipc.client import AsyncClient
from ipc.config import Config, HttpSection
from ipc.messages import MetricsReply
from ipc.slab import State
from tests.api_client import CONFIG, Api, run, running, until
from tests.fake_engine import Script
from tests.tiny_vocab import TinyVocab


def http(**changes: Any) -> Config:
    return replace(CONFIG, http=replace(CONFIG.http, **changes))


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/infill", "/tokenize", "/detokenize"])
@pytest.mark.parametrize("body", ["", "{", "[]", '"x"', "null", "[" * 100_000, '{"prompt":"\\ud800"}', "\xff"])
def test_a_body_that_is_no_object_is_refused(tmp_path: Path, path: str, body: str) -> None:
    async def test(api: Api) -> None:
        result = await api.http.simulate_post(path, body=body.encode("latin-1"))
        assert result.status_code == 400
        assert result.headers["content-type"] == "application/json; charset=utf-8"
        assert result.json["error"]["type"] == "invalid_request_error"
        assert (await api.json("/completion", {"prompt": "a", "n_predict": 1}))["content"] == "w0 "

    run(test, tmp_path)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, '"prompt" is required'),
        ({"prompt": None}, '"prompt" is required'),
        ({"prompt": []}, '"prompt" must not be empty'),
        ({"prompt": [261]}, "Prompt contains invalid tokens"),
        ({"prompt": "a", "temperature": "hot"}, "Field 'temperature': type must be a number, but is a string"),
        ({"prompt": "a", "n": 5}, "Field 'n_cmpl': Value must be between 1 <= value <= 4, but got 5"),
        ({"prompt": "a", "id_slot": 9}, "Field 'id_slot': Value must be between 0 <= value < 4, but got 9"),
    ],
)
def test_client_faults_are_named(tmp_path: Path, body: dict[str, Any], message: str) -> None:
    async def test(api: Api) -> None:
        for path in ("/completion", "/v1/completions"):
            assert await api.error(path, body) == (400, "invalid_request_error", message)

    run(test, tmp_path)


def test_unknown_routes_and_methods(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        missing = await api.get("/nope")
        assert missing.status_code == 404
        expected = {"code": 404, "message": "File Not Found", "type": "not_found_error"}
        assert missing.json == {"error": expected}
        wrong = await api.get("/completion")
        assert (wrong.status_code, wrong.json["error"]["code"]) == (405, 405)
        assert "POST" in wrong.headers["allow"]

    run(test, tmp_path)


def test_a_body_over_the_limit_is_refused(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        body = {"prompt": "a" * (1 << 20)}
        declared = await api.post("/completion", body)
        assert (declared.status_code, declared.json["error"]["code"]) == (413, 413)
        async with api.open("/completion", body) as chunked:  # comes without a length
            await chunked.part()
            assert chunked.status == 413

    run(test, tmp_path, config=http(max_body_mib=1))


def test_an_unexpected_fault_is_a_500_without_details(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret")

    async def test(api: Api) -> None:
        monkeypatch.setattr("api.completions.tokenize_prompts", broken)
        code, kind, message = await api.error("/completion", {"prompt": "a"})
        assert (code, kind) == (500, "server_error")
        assert "secret" not in message

    run(test, tmp_path)


def test_a_content_type_is_not_needed(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-8"):
            result = await api.post("/tokenize", {"content": "a"}, headers={"Content-Type": kind})
            assert result.json == {"tokens": [97]}

    run(test, tmp_path)


# ---------------------------------------------------------------- health


def test_everything_is_503_while_the_model_loads(tmp_path: Path) -> None:
    async def main() -> None:
        client = AsyncClient(f"ipc://{tmp_path}/none.sock", f"{tmp_path}/none.slab")
        async with ASGIConductor(create_app(CONFIG, client, TinyVocab())) as conductor:
            for path in ("/health", "/v1/health", "/v1/models", "/props", "/slots", "/metrics", "/nope"):
                result = await conductor.simulate_get(path)
                expected = {"code": 503, "message": "Loading model", "type": "unavailable_error"}
                assert (result.status_code, result.json) == (503, {"error": expected})
                assert "retry-after" in result.headers
            assert (await conductor.simulate_post("/completion", body="{}")).status_code == 503

    asyncio.run(main())


def test_health_follows_the_engine(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        ok = await api.get("/health")
        assert (ok.status_code, ok.json) == (200, {"status": "ok"})
        api.engine.slab.state = State.DRAINING
        assert (await api.get("/health")).status_code == 503
        assert (await api.error("/completion", {"prompt": "a"}))[2] == "The server is shutting down"
        api.engine.slab.state = State.READY
        assert (await api.get("/v1/health")).status_code == 200
        api.engine.die()
        await until(lambda: api.client.info is None)
        assert (await api.get("/health")).status_code == 503

    run(test, tmp_path)


def test_a_running_stream_goes_on_while_the_server_drains(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        async with api.open("/completion", {"prompt": "a", "n_predict": 10}) as stream:
            await stream.part()
            api.engine.slab.state = State.DRAINING
            assert '"stop":true' in await stream.rest()
        assert (await api.post("/completion", {"prompt": "a"})).status_code == 503

    run(test, tmp_path, Script(step_seconds=0.01))


# ---------------------------------------------------------------- access


PUBLIC = ("/health", "/v1/health")
READ = ("/models", "/v1/models", "/api/tags", "/props", "/slots", "/metrics")
WRITE = ("/completion", "/completions", "/v1/completions", "/infill", "/tokenize", "/detokenize", "/props")


@pytest.mark.parametrize("prefix", ["", "/api"])
def test_only_health_needs_no_key(tmp_path: Path, prefix: str) -> None:
    async def test(api: Api) -> None:
        for path in PUBLIC:
            assert (await api.get(prefix + path)).status_code == 200
            assert (await api.post(prefix + path, {})).status_code == 401
        for path in ("/nope", *READ):
            for method in ("GET", "POST", "PUT", "DELETE", "HEAD"):
                assert (await api.http.simulate_request(method, prefix + path)).status_code == 401, (method, path)
        for path in WRITE:
            result = await api.post(prefix + path, {})
            expected = {"code": 401, "message": "Invalid API Key", "type": "authentication_error"}
            assert (result.status_code, result.json) == (401, {"error": expected})
            assert (await api.http.simulate_options(prefix + path)).status_code == 200

    run(test, tmp_path, config=http(api_key=("k1",), api_prefix=prefix))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer k1"}, 200),
        ({"Authorization": "bearer k1"}, 200),
        ({"Authorization": "BEARER  k1"}, 200),
        ({"Authorization": "k1"}, 200),
        ({"X-Api-Key": "k1"}, 200),
        ({"X-Api-Key": "Bearer k2"}, 200),
        ({"Authorization": "Bearer k2"}, 200),
        ({"Authorization": "Bearer k3"}, 200),
        ({"Authorization": "Bearer wrong", "X-Api-Key": "k1"}, 401),
        ({"Authorization": "", "X-Api-Key": "k1"}, 200),
        ({"Authorization": "Bearer "}, 401),
        ({"Authorization": "Bearer k"}, 401),
        ({"Authorization": "Bearer k11"}, 401),
        ({"Authorization": "# no"}, 401),
        ({}, 401),
    ],
)
def test_keys_and_how_they_are_shown(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"\r\n\n# no\nk3\r\n")

    async def test(api: Api) -> None:
        assert (await api.get("/v1/models", headers=headers)).status_code == status

    run(test, tmp_path, config=http(api_key=("k1", "k2"), api_key_file=str(file)))


def test_a_prefix_moves_all_paths(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        assert (await api.get("/p/health")).status_code == 200
        assert (await api.get("/health")).status_code == 404

    run(test, tmp_path, config=http(api_prefix="/p"))


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        ("*", "http://a.example", "http://a.example"),
        ("*", None, "*"),
        ("localhost", "http://localhost:3000", "http://localhost:3000"),
        ("localhost", "https://[::1]", "https://[::1]"),
        ("localhost", "http://localhost.evil.example", None),
        ("localhost", "http://[", None),
        ("localhost", None, None),
        ("http://a.example", "http://b.example", "http://a.example"),
    ],
)
def test_cors_origins(tmp_path: Path, origins: str, origin: str | None, allowed: str | None) -> None:
    async def test(api: Api) -> None:
        for path in ("/health", "/nope"):
            result = await api.get(path, headers={"Origin": origin} if origin else {})
            assert result.headers.get("access-control-allow-origin") == allowed
            assert "access-control-allow-credentials" not in result.headers

    run(test, tmp_path, config=http(cors_origins=origins))


def test_options_are_answered_before_everything_else(tmp_path: Path) -> None:
    async def main() -> None:
        client = AsyncClient(f"ipc://{tmp_path}/none.sock", f"{tmp_path}/none.slab")
        config = http(api_key=("k1",), cors_headers="X-A")
        async with ASGIConductor(create_app(config, client, TinyVocab())) as conductor:
            result = await conductor.simulate_options("/anything")
            assert (result.status_code, result.text) == (200, "")
            assert result.headers["content-type"] == "text/html"
            assert result.headers["access-control-allow-credentials"] == "false"
            assert result.headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
            assert result.headers["access-control-allow-headers"] == "X-A"

    asyncio.run(main())


def test_an_origin_with_a_foreign_host_is_not_local() -> None:
    assert is_local("http://127.0.0.1:8080")
    assert not any(is_local(one) for one in ("http://127.0.0.1.evil", "null", "", "http://localhost@evil"))


def test_request_ids_are_echoed_or_made(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        assert (await api.get("/health", headers={"X-Request-Id": "abc-1"})).headers["x-request-id"] == "abc-1"
        made = [(await api.get(path)).headers["x-request-id"] for path in ("/health", "/nope")]
        assert len(set(made)) == 2
        long = (await api.get("/health", headers={"X-Request-Id": "a" * 200})).headers["x-request-id"]
        assert len(long) == 32
        assert (await api.get("/health")).headers["server"] == "llama.cpp"

    run(test, tmp_path)


def test_head_answers_like_get(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        for path in ("/health", "/v1/models", "/props"):
            result = await api.http.simulate_head(path)
            assert (result.status_code, result.text) == (200, "")

    run(test, tmp_path)


# ---------------------------------------------------------------- what the server tells about itself


def test_models(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        for path in ("/models", "/v1/models", "/api/tags"):
            answer = (await api.get(path)).json
            assert answer["object"] == "list"
            [model], [entry] = answer["models"], answer["data"]
            assert (model["name"], model["details"]["format"]) == ("tiny", "gguf")
            assert (entry["id"], entry["aliases"], entry["owned_by"]) == ("tiny", ["tiny", "other"], "llamacpp")
            assert (entry["meta"]["n_vocab"], entry["meta"]["n_ctx"]) == (261, 1024)

    run(test, tmp_path)


def test_props(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        props = (await api.get("/props")).json
        settings = props["default_generation_settings"]
        assert settings["n_ctx"] == 1024
        assert (settings["params"]["temperature"], settings["params"]["n_predict"]) == (0.8, -1)
        assert "stop" not in settings["params"]
        assert (props["total_slots"], props["model_alias"], props["model_path"]) == (4, "tiny", "fake.gguf")
        assert (props["bos_token"], props["eos_token"]) == ("<s>", "</s>")
        assert props["chat_template"] == "{{ messages }}"
        assert props["endpoint_metrics"]
        assert not props["endpoint_props"]
        refused = await api.post("/props", {})
        assert (refused.status_code, refused.json["error"]["type"]) == (501, "not_supported_error")

    run(test, tmp_path)


def test_props_can_be_posted_when_enabled(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        assert await api.json("/props", {}) == {"success": True}

    run(test, tmp_path, config=http(props=True))


def test_slots_show_what_runs(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        idle = (await api.get("/slots")).json
        assert idle == [{"id": i, "n_ctx": 1024, "speculative": False, "is_processing": False} for i in range(2)]
        async with api.open("/completion", {"prompt": ["abc", "de"], "n_predict": 10_000}) as stream:
            await stream.part()
            busy = (await api.get("/slots")).json
            assert busy[0]["is_processing"]
            assert busy[0]["n_prompt_tokens"] == 3
            assert busy[0]["next_token"][0]["n_decoded"] > 0
            assert busy[0]["params"]["temperature"] == 0.8
            assert "prompt" not in busy[0]
            full = await api.get("/slots", query_string="fail_on_no_slot=1")
            assert (full.status_code, full.json["error"]["message"]) == (503, "no slot available")
        assert (await api.get("/slots")).status_code == 200

    run(test, tmp_path, Script(step_seconds=0.01, n_slots=2))


def test_metrics_have_llama_servers_names(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        result = await api.get("/metrics")
        assert result.headers["content-type"] == "text/plain; version=0.0.4"
        assert "# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing 0\n" in result.text
        assert "# HELP llamacpp:requests_deferred " in result.text

    run(test, tmp_path)


def test_metrics_show_large_and_broken_numbers_exactly() -> None:
    reply = MetricsReply(0, {"n_decode_total": 12345678.0, "prompt_seconds_total": 0.5, "new_one": 1.0}, [3, 1])
    text = "".join(lines(reply))
    assert "\nllamacpp:n_decode_total 12345678\n" in text
    assert "\nllamacpp:prompt_seconds_total 0.5\n" in text
    assert "# TYPE llamacpp:new_one gauge\n" in text
    assert 'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 1\n' in text


def test_disabled_endpoints_say_how_to_enable_them(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        for path, option in (("/metrics", "--metrics"), ("/slots", "--slots")):
            result = await api.get(path)
            assert (result.status_code, result.json["error"]["type"]) == (501, "not_supported_error")
            assert f"Start it with `{option}`" in result.json["error"]["message"]

    run(test, tmp_path, config=replace(CONFIG, http=HttpSection(slots=False)))


# ---------------------------------------------------------------- tokens


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, []),
        ({"content": None}, []),
        ({"content": "ab"}, [97, 98]),
        ({"content": "a</s>"}, [97, 257]),
        ({"content": "</s>", "parse_special": False}, [60, 47, 115, 62]),
        ({"content": ["a", 5, "b"]}, [97, 5, 98]),
        ({"content": "é", "with_pieces": True}, [{"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]),
        ({"content": "a<s>", "with_pieces": True}, [{"id": 97, "piece": "a"}, {"id": 256, "piece": "<s>"}]),
    ],
)
def test_tokenize(tmp_path: Path, body: dict[str, Any], expected: list[Any]) -> None:
    async def test(api: Api) -> None:
        assert await api.json("/tokenize", body) == {"tokens": expected}

    run(test, tmp_path)


@pytest.mark.parametrize(
    ("body", "expected"),
    [({}, ""), ({"tokens": [97, 257]}, "a</s>"), ({"tokens": [195, 169]}, "é"), ({"tokens": [195]}, "\ufffd")],
)
def test_detokenize(tmp_path: Path, body: dict[str, Any], expected: str) -> None:
    async def test(api: Api) -> None:
        assert await api.json("/detokenize", body) == {"content": expected}

    run(test, tmp_path)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"content": 3}),
        ("/tokenize", {"content": [1.5]}),
        ("/tokenize", {"content": "a", "with_pieces": 1}),
        ("/detokenize", {"tokens": "a"}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": ["a"]}),
    ],
)
def test_bad_token_requests(tmp_path: Path, path: str, body: dict[str, Any]) -> None:
    async def test(api: Api) -> None:
        assert (await api.error(path, body))[:2] == (400, "invalid_request_error")

    run(test, tmp_path)


def test_a_worker_that_starts_before_the_engine_serves_once_it_is_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, wait=False) as api:
            await until(lambda: api.client.info is not None)
            assert (await api.get("/health")).status_code == 200

    asyncio.run(main())
