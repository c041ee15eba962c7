import os
import stat
import tomllib
from pathlib import Path

import pytest

from ipc.config import (
    DEMO,
    Adapter,
    Config,
    ConfigError,
    ambient,
    from_json,
    make_run_dir,
    pin_port,
    publish,
    resolve,
    to_json,
)
from ipc.options.toml import effective


def config(*argv: str, **env: str) -> Config:
    return resolve(list(argv), env).config


def refusal(*argv: str, **env: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(list(argv), env)
    return str(caught.value)


@pytest.fixture
def file(tmp_path: Path):
    def write(text: str, name: str = "one.toml") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


# ---------------------------------------------------------------- precedence


def test_nothing_given_is_the_default() -> None:
    resolved = resolve([], {})
    assert resolved.config == Config()
    assert set(resolved.sources.values()) == {"default"}


def test_flag_wins_over_variable_over_file(file) -> None:
    path = file("[http]\nport = 1\nmetrics = true\n[engine]\nparallel = 2\n")
    resolved = resolve(["--config", path, "--port", "3"], {"LLAMA_ARG_PORT": "2", "LLAMA_ARG_N_PARALLEL": "5"})
    got = resolved.config
    assert (got.http.port, got.engine.parallel, got.http.metrics) == (3, 5, True)
    assert resolved.sources["http.port"] == "command line --port"
    assert resolved.sources["engine.parallel"] == "env LLAMA_ARG_N_PARALLEL"
    assert resolved.sources["http.metrics"] == path
    assert resolved.sources["http.slots"] == "default"
    assert resolved.config.given == {"http.port", "engine.parallel", "http.metrics"}


def test_flag_over_variable_is_told() -> None:
    warnings = resolve(["--port", "3"], {"LLAMA_ARG_PORT": "2"}).warnings
    assert warnings == ("LLAMA_ARG_PORT is set, but --port on the command line wins",)


def test_file_can_be_named_by_a_variable(file) -> None:
    assert config(LLAMARADA_CONFIG_FILE=file("[http]\nport = 7\n")).http.port == 7


# ---------------------------------------------------------------- flags


def test_underscores_and_dashes_are_the_same() -> None:
    assert config("--ctx_size", "512").engine.ctx_size == 512


def test_short_and_long_forms() -> None:
    assert config("-np", "3").engine.parallel == config("--parallel", "3").engine.parallel == 3


def test_value_may_look_like_a_flag() -> None:
    assert config("-n", "-1", "-r", "--end").sampling.reverse_prompt == ("--end",)


@pytest.mark.parametrize("flags", [("-np", "-1"), ("-t", "-1"), ("-n", "-1"), ("-s", "-1"), ("--threads-http", "-1")])
def test_minus_one_means_not_set(flags: tuple[str, str]) -> None:
    got = config(*flags)
    assert got == Config(given=got.given)


def test_keep_all() -> None:
    assert config("--keep", "-1").engine.keep is None


def test_last_value_counts_and_is_told() -> None:
    resolved = resolve(["-c", "1", "--ctx-size", "2"], {})
    assert resolved.config.engine.ctx_size == 2
    assert "given more than once" in resolved.warnings[0]


def test_lists_grow_without_warning() -> None:
    resolved = resolve(["-r", "a,b", "-r", "c", "-l", "1+1", "-l", "2-1"], {})
    assert resolved.config.sampling.reverse_prompt == ("a,b", "c")
    assert resolved.config.sampling.logit_bias == ((1, 1.0), (2, -1.0))
    assert not resolved.warnings


def test_breakers_replace_the_defaults() -> None:
    assert config("--dry-sequence-breaker", r"\n", "--dry-sequence-breaker", "x").sampling.dry_sequence_breakers == (
        "\n",
        "x",
    )
    assert config("--dry-sequence-breaker", "none").sampling.dry_sequence_breakers == ()


def test_escapes_can_be_switched_off(file) -> None:
    assert config("-r", r"\n").sampling.reverse_prompt == ("\n",)
    assert config("-r", r"\n", "--no-escape").sampling.reverse_prompt == (r"\n",)
    path = file("[sampling]\nreverse_prompt = ['\\n']\n")
    assert config("--config", path).sampling.reverse_prompt == (r"\n",)


def test_switches_and_their_negations() -> None:
    got = config("-nocb", "--metrics", "--no-slots", "-no-kvu")
    assert (got.engine.cont_batching, got.http.metrics, got.http.slots, got.engine.kv_unified) == (
        False,
        True,
        False,
        False,
    )


def test_aliases_are_a_sorted_set() -> None:
    got = config("-m", "x/y.gguf", "-a", "b,a, b").model
    assert (got.alias, got.name) == (("a", "b"), "a")
    assert config("-m", "x/y.gguf").model.name == "y.gguf"


def test_verbose_is_a_verbosity() -> None:
    assert config("-v").log.verbosity > 9


def test_threads_http_are_workers_here() -> None:
    assert config("--threads-http", "3").http.workers == config("--http-workers", "3").http.workers == 3


def test_rope_scale_is_the_inverse_of_the_frequency_scale() -> None:
    assert config("--rope-scale", "4").engine.rope_freq_scale == 0.25


def test_flash_attention_understands_booleans() -> None:
    assert [config("-fa", word).engine.flash_attn for word in ("on", "1", "false", "auto")] == [
        "on",
        "on",
        "off",
        "auto",
    ]


def test_rerank_implies_embeddings_with_rank_pooling() -> None:
    resolved = resolve(["--rerank"], {})
    assert (resolved.config.engine.embeddings, resolved.config.engine.pooling) == (True, "rank")
    assert resolved.sources["engine.pooling"] == "command line --rerank"


def test_automatic_slots_are_four_that_share() -> None:
    assert (config().engine.n_slots, config().engine.unified) == (4, True)
    assert (config("-np", "2").engine.n_slots, config("-np", "2").engine.unified) == (2, False)
    assert config("-np", "2", "-kvu").engine.unified


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--nonsense"], "invalid argument: --nonsense"),
        (["file.gguf"], "invalid argument: file.gguf"),
        (["--ctxsize", "1"], "invalid argument: --ctxsize (did you mean --ctx-size?)"),
        (["--port=1"], "invalid argument: --port=1 (write it as: --port 1)"),
        (["--port"], 'error while handling argument "--port": expected value for argument'),
        (["--port", "x"], "error while handling argument \"--port\": expected int, got 'x'"),
        (["--port", "65536"], "expected a value from 0 to 65535, got 65536"),
        (["-np", "0"], "expected a value from 1 to 256, got 0"),
        (["--top-p", "nan"], "expected float, got 'nan'"),
        (["-ctk", "f17"], "expected one of f32, f16"),
        (["--rpc", "x"], "--rpc is not supported yet"),
        (["--spm-infill"], "--spm-infill is not supported yet"),
        (["--agent"], "--agent is not supported yet"),
        (["--draft-max", "8"], "--draft-max has been removed: use --spec-draft-n-max"),
        (["--gpt-oss-20b-default"], "--gpt-oss-20b-default is not supported: give the model"),
    ],
)
def test_refused_flags(argv: list[str], text: str) -> None:
    assert text in refusal(*argv)


def test_bad_value_shows_how_the_option_is_written() -> None:
    assert "-c, --ctx-size N" in refusal("-c", "many")


def test_asking_an_unsupported_option_for_nothing_is_fine() -> None:
    assert (
        config("--cache-ram", "0", "--no-cache-idle-slots", "--no-agent", "--spec-type", "none").speculative.types == ()
    )


def test_ignored_flag_warns() -> None:
    assert not resolve(["-cb"], {}).warnings
    assert resolve(["-nocb"], {}).warnings == ("-nocb is ignored: requests always join the running batch",)
    assert resolve(["--defrag-thold", "0.1", "--fit", "off"], {}).warnings[0].startswith("--defrag-thold is ignored")


# ---------------------------------------------------------------- variables


@pytest.mark.parametrize(("text", "value"), [("on", True), ("enabled", True), ("0", False), ("disabled", False)])
def test_boolean_variables(text: str, value: bool) -> None:
    assert config(LLAMA_ARG_CONT_BATCHING=text).engine.cont_batching is value
    assert config(LLAMA_ARG_ENDPOINT_METRICS=text).http.metrics is value


def test_negative_variable_works_with_any_value() -> None:
    assert config(LLAMA_ARG_NO_CONT_BATCHING="").engine.cont_batching is False


def test_bad_variable_is_named() -> None:
    assert refusal(LLAMA_ARG_PORT="x").startswith(
        'error while handling environment variable "LLAMA_ARG_PORT": expected int'
    )


def test_unsupported_variable_is_refused() -> None:
    assert refusal(LLAMA_ARG_RPC="x") == "LLAMA_ARG_RPC is not supported yet"
    assert refusal(LLAMA_ARG_AGENT="1") == "LLAMA_ARG_AGENT is not supported yet"
    assert config(LLAMA_ARG_AGENT="0") == Config()


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[model]\npath = 'x'\ncontext = 1\n", "unknown key model.context"),
        ("[engine]\nctx_sise = 1\n", "unknown key engine.ctx_sise (did you mean engine.ctx_size?)"),
        ("[modle]\n", "unknown section [modle] (did you mean model?)"),
        ("http = 3\n", "http: expected a table, got 3"),
        ("[engine]\nctx_size = 'big'\n", "engine.ctx_size: expected int, got 'big'"),
        ("[engine]\nctx_size = 1.5\n", "engine.ctx_size: expected int, got 1.5"),
        ("[engine]\nwarmup = 1\n", "engine.warmup: expected bool, got 1"),
        ("[http]\nhost = '0.0.0.0'\n", "http.host: expected a list of str, got '0.0.0.0'"),
        ("[http]\nport = -2\n", "http.port: expected a value from 0 to 65535, got -2"),
        ("[engine]\nflash_attn = 'maybe'\n", "engine.flash_attn: expected one of on, off, auto, got 'maybe'"),
        ("[engine]\nspm_infill = true\n", "engine.spm_infill is not supported yet"),
        ("[engine\n", ""),
    ],
)
def test_bad_file_is_refused_with_file_and_key(file, text: str, problem: str) -> None:
    path = file(text)
    assert refusal("--config", path).startswith(f"{path}: {problem}")


def test_missing_file_is_named() -> None:
    assert refusal("--config", "/nowhere/x.toml") == "/nowhere/x.toml: No such file or directory"


def test_file_values_have_their_types(file) -> None:
    got = config(
        "--config",
        file("[engine]\nparallel = -1\nn_gpu_layers = 'all'\n[sampling]\ntemperature = 1\nlogit_bias = [[5, -inf]]\n"),
    )
    assert got.engine.parallel is None and got.engine.n_gpu_layers is None
    assert type(got.sampling.temperature) is float
    assert got.sampling.logit_bias == ((5, float("-inf")),)


def test_demo_file_loads() -> None:
    assert config("--config", str(DEMO)).model.name == "smollm2"


# ---------------------------------------------------------------- options together


def test_template_file_is_read(file) -> None:
    path = file("{{ messages }}", "chat.jinja")
    resolved = resolve(["--chat-template-file", path], {})
    assert resolved.config.chat.template == "{{ messages }}"
    assert resolved.sources["chat.template"] == "command line --chat-template-file"


def test_text_on_the_command_line_wins_over_a_file_named_in_the_file(file) -> None:
    path = file(f"[chat]\ntemplate_file = '{file('from the file', 'chat.jinja')}'\n")
    assert config("--config", path).chat.template == "from the file"
    assert config("--config", path, "--chat-template", "chatml").chat.template == "chatml"


def test_text_and_file_at_once_are_refused(file) -> None:
    text = refusal("--chat-template", "a", "--chat-template-file", file("b", "b.jinja"))
    assert text == "--chat-template and --chat-template-file say the same thing: give one of them"


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--ssl-key-file", "/dev/null"], "TLS needs both, only one is given"),
        (["--port", "0", "--host", "127.0.0.1,::1"], "--port 0 is not supported with multiple TCP addresses"),
        (["--api-prefix", "v1"], "--api-prefix: expected /path"),
        (["--api-prefix", "/v1/"], "--api-prefix: expected /path"),
        (["--host", ","], "--host: expected at least one address"),
        (["--api-key-file", "/nowhere"], "--api-key-file: /nowhere: No such file or directory"),
        (["--chat-template-file", "/nowhere"], "--chat-template-file: /nowhere: No such file or directory"),
        (["--ipc-bind", "127.0.0.1:1"], "--ipc-bind: expected tcp://HOST:PORT"),
        (["--ipc-bind", "tcp://127.0.0.1:1"], "--ipc-bind needs --ipc-curve-key-file"),
        (["--run-dir", "/tmp/" + "x" * 100], "--run-dir: the path of a socket may have 107 bytes"),
    ],
)
def test_contradictions(argv: list[str], text: str) -> None:
    assert text in refusal(*argv)


def test_api_keys_come_from_flag_and_file(file) -> None:
    path = file("one\n# comment\n\ntwo \n", "keys")
    assert config("--api-key", 'a,"b,c"', "--api-key-file", path).http.keys() == {"a", "b,c", "one", "two "}


def test_api_key_from_its_own_variable() -> None:
    assert config(LLAMA_API_KEY="a,b").http.api_key == ("a", "b")


# ---------------------------------------------------------------- handing it on


def test_json_round_trip_keeps_everything() -> None:
    got = config("-l", "5-inf", "-np", "2", "--chat-template-kwargs", '{"a": [1, {"b": null}]}', "-r", "x")
    assert from_json(to_json(got)) == got


def test_json_round_trip_of_adapters() -> None:
    got = Config()
    got = from_json(to_json(got).replace(b'"lora": []', b'"lora": [{"path": "a", "scale": 0.5}]'))
    assert got.engine.lora == (Adapter(path="a", scale=0.5),)


def test_published_configuration_is_private_and_names_the_run_folder(tmp_path: Path) -> None:
    got = config("--run-dir", str(tmp_path / "run"), "--port", "1234")
    path = publish(got)
    assert path == publish(got), "the same process writes the same file"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert ambient({"LLAMARADA_CONFIG": str(path)}) == got


def test_default_run_folder_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    got = config("--port", "1234")
    published = ambient({"LLAMARADA_CONFIG": str(publish(got))})
    assert published.run_dir() == tmp_path / f"llamarada-{os.getuid()}" / "1234"
    assert published.engine_address() == got.engine_address() == f"ipc://{published.run_dir()}/engine.sock"
    assert published.slab_path() == got.slab_path()


def test_servers_with_other_folders_or_ports_share_no_slab(tmp_path: Path) -> None:
    paths = [
        config("--run-dir", str(tmp_path / name), "--port", port).slab_path() for name in "ab" for port in ("1", "2")
    ]
    assert len(set(paths)) == 4


def test_unix_sockets_have_a_run_folder_of_their_own() -> None:
    folders = {config("--host", host).run_dir() for host in ("/a.sock", "/b.sock", "127.0.0.1")}
    assert len(folders) == 3


def test_run_folder_open_to_others_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigError, match="must be a folder of this user with mode 0700"):
        make_run_dir(config("--run-dir", str(tmp_path)))


def test_run_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(ConfigError, match="must be a folder of this user"):
        make_run_dir(config("--run-dir", str(tmp_path / "link")))


def test_ambient_falls_back_to_the_demo() -> None:
    assert ambient({}).model.name == "smollm2"
    assert ambient({"LLAMA_ARG_PORT": "99"}).http.port == 99
    assert ambient({"LLAMA_ARG_MODEL": "x.gguf"}).engine.ctx_size == 0


def test_ambient_reads_the_named_file(file) -> None:
    assert ambient({"LLAMARADA_CONFIG_FILE": file("[http]\nport = 98\n")}).model.path is None


def test_free_port_is_pinned_once() -> None:
    pinned = pin_port(config("--port", "0"))
    assert pinned.http.port > 0
    assert pin_port(pinned) is pinned


def test_effective_configuration_reads_back(file) -> None:
    resolved = resolve(
        ["-m", "a.gguf", "-np", "3", "-r", 'say "x"\n', "-l", "5-inf", "--port", "9"], {"LLAMA_ARG_TOP_K": "7"}
    )
    text = effective(resolved.config, resolved.sources)
    again = config("--config", file(text))
    assert again == Config(
        **{**{name: getattr(resolved.config, name) for name in Config.__struct_fields__}, "given": again.given}
    )
    assert "port = 9                                     # command line --port" in text
    assert "# env LLAMA_ARG_TOP_K" in text


def test_effective_configuration_hides_secrets() -> None:
    resolved = resolve(["--api-key", "sk-0123456789,short"], {"HF_TOKEN": "hf_abcdefghijkl"})
    table = tomllib.loads(effective(resolved.config, resolved.sources))
    assert table["http"]["api_key"] == ["…6789", "…"]
    assert table["model"]["hf_token"] == "…ijkl"
