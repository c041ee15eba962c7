"""The effective configuration: one frozen Struct per section of the TOML file.

Types and defaults of options are stated here and nowhere else; `ipc.options` adds flags, variables and help.
None means "not set": automatic, unlimited or off, as the option's help says. Struct and table always match (a test).
"""

import os
import zlib
from pathlib import Path
from typing import Any

from msgspec import Struct

from ipc.messages import DRY_BREAKERS, SAMPLERS


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the sections: unknown fields are refused, values never change."""


class Adapter(Section, frozen=True, kw_only=True):
    """A LoRA adapter or control vector file and the scale it starts with."""

    path: str
    scale: float = 1.0


class ModelSection(Section, frozen=True, kw_only=True):
    """Which model is served and under which names."""

    path: str | None = None
    url: str | None = None
    hf_repo: str | None = None
    hf_file: str | None = None
    hf_token: str | None = None
    offline: bool = False
    alias: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    mmproj: str | None = None
    mmproj_url: str | None = None
    mmproj_auto: bool = True
    override_kv: tuple[str, ...] = ()
    check_tensors: bool = False

    @property
    def name(self) -> str:
        """The id that the APIs report: the first alias, else the file's name."""
        if self.alias:
            return self.alias[0]
        source = self.path or self.hf_file or self.hf_repo or self.url or ""
        return source.rstrip("/").rsplit("/", 1)[-1]


class EngineSection(Section, frozen=True, kw_only=True):
    """The engine process: context, slots, batches, caches, threads and devices."""

    library: str | None = None
    ctx_size: int = 0
    parallel: int | None = None
    kv_unified: bool | None = None
    kv_unified_per_slot: int | None = None
    batch_size: int = 2048
    ubatch_size: int = 512
    threads: int | None = None
    threads_batch: int | None = None
    threads_adapt: bool = True
    cont_batching: bool = True
    keep: int | None = 0
    predict: int | None = None
    context_shift: bool = False
    warmup: bool = True
    special: bool = False
    spm_infill: bool = False

    cache_prompt: bool = True
    cache_reuse: int = 0
    cache_ram: int | None = None
    cache_idle_slots: bool = True
    cache_disk: str | None = None
    cache_disk_limit: int = 8192
    ctx_checkpoints: int = 32
    checkpoint_min_step: int = 8192
    slot_similarity: float = 0.1
    slot_save_path: str | None = None
    swa_full: bool = False

    max_queue: int | None = None
    target_gap_ms: float | None = None
    hang_seconds: float = 30.0
    slab_rows: int | None = None

    embeddings: bool = False
    reranking: bool = False
    pooling: str | None = None
    embd_normalize: int = 2

    lora: tuple[Adapter, ...] = ()
    lora_init_without_apply: bool = False
    control_vector: tuple[Adapter, ...] = ()
    control_vector_layers: tuple[int, int] | None = None

    n_gpu_layers: int | None = None
    split_mode: str = "layer"
    tensor_split: tuple[float, ...] = ()
    main_gpu: int = 0
    flash_attn: str = "auto"
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    kv_offload: bool = True
    op_offload: bool = True
    load_mode: str = "auto"
    numa: str | None = None
    rope_scaling: str | None = None
    rope_freq_base: float | None = None
    rope_freq_scale: float | None = None
    yarn_orig_ctx: int | None = None
    yarn_ext_factor: float | None = None
    yarn_attn_factor: float | None = None
    yarn_beta_slow: float | None = None
    yarn_beta_fast: float | None = None

    @property
    def n_slots(self) -> int:
        """Sequences served at once; four when `parallel` is automatic."""
        return 4 if self.parallel is None else self.parallel

    @property
    def unified(self) -> bool:
        """Whether all slots share one pool of KV cells: as given, else only with automatic slots."""
        return self.parallel is None if self.kv_unified is None else self.kv_unified


class SamplingSection(Section, frozen=True, kw_only=True):
    """What a request gets when it does not ask otherwise; names as in `ipc.messages.Sampling`."""

    samplers: tuple[str, ...] = SAMPLERS
    seed: int | None = None
    temperature: float = 0.8
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    typical_p: float = 1.0
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: tuple[str, ...] = DRY_BREAKERS
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9
    min_keep: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    ignore_eos: bool = False
    reverse_prompt: tuple[str, ...] = ()
    escape: bool = True
    grammar: str | None = None
    grammar_file: str | None = None
    json_schema: str | None = None
    json_schema_file: str | None = None


class SpeculativeSection(Section, frozen=True, kw_only=True):
    """Drafting ahead of the model: n-gram look-up or a smaller model."""

    types: tuple[str, ...] = ()
    draft_model: str | None = None
    draft_hf_repo: str | None = None
    draft_n_max: int = 3
    draft_n_min: int = 0
    draft_p_min: float = 0.0
    draft_p_split: float = 0.1
    draft_sampling: str = "greedy"
    ngram_simple_size_n: int = 12
    ngram_simple_size_m: int = 48
    ngram_simple_min_hits: int = 1
    ngram_map_k_size_n: int = 12
    ngram_map_k_size_m: int = 48
    ngram_map_k_min_hits: int = 1
    ngram_map_k4v_size_n: int = 12
    ngram_map_k4v_size_m: int = 48
    ngram_map_k4v_min_hits: int = 1
    ngram_mod_n_match: int = 24
    ngram_mod_n_min: int = 48
    ngram_mod_n_max: int = 64


class HttpSection(Section, frozen=True, kw_only=True):
    """Addresses, workers, access and limits of the HTTP side."""

    host: tuple[str, ...] = ("127.0.0.1",)
    port: int = 8080
    workers: int | None = None
    worker_connections: int = 1000
    reuse_port: bool = False
    api_prefix: str = ""
    static_path: str | None = None
    ui: bool = True
    ui_config: dict[str, Any] = {}
    ui_config_file: str | None = None
    api_key: tuple[str, ...] = ()
    api_key_file: str | None = None
    ssl_key_file: str | None = None
    ssl_cert_file: str | None = None
    cors_origins: str = "*"
    cors_methods: str = "GET, POST, DELETE, OPTIONS"
    cors_headers: str = "*"
    cors_credentials: bool = False
    timeout: int = 3600
    sse_ping_interval: int | None = 30
    shutdown_timeout: float = 30.0
    max_body_mib: int = 100
    metrics: bool = False
    props: bool = False
    slots: bool = True
    media_path: str | None = None
    sleep_idle_seconds: int | None = None
    responses_db: str | None = None

    def keys(self) -> frozenset[str]:
        """Every valid API key: `api_key` and the lines of `api_key_file` (not empty, no leading #, not trimmed)."""
        keys = set(self.api_key)
        if self.api_key_file is not None:
            with open(self.api_key_file, encoding="utf-8", newline="\n") as file:
                lines = (line.removesuffix("\n") for line in file)
                keys.update(line for line in lines if line and not line.startswith("#"))
        return frozenset(keys)


class ChatSection(Section, frozen=True, kw_only=True):
    """Templates, tools and reasoning of the chat APIs."""

    jinja: bool = True
    template: str | None = None
    template_file: str | None = None
    template_kwargs: dict[str, Any] = {}
    reasoning_format: str = "auto"
    reasoning: str = "auto"
    reasoning_effort: str | None = None
    reasoning_budget: int | None = None
    reasoning_budget_message: str = ""
    reasoning_preserve: bool = True
    skip_parsing: bool = False
    prefill_assistant: bool = True
    parse_special_content: bool = False


class IpcSection(Section, frozen=True, kw_only=True):
    """Sockets and shared files between the processes."""

    run_dir: str | None = None
    bind: str | None = None
    curve_key_file: str | None = None
    curve_clients_dir: str | None = None


class LogSection(Section, frozen=True, kw_only=True):
    """What is logged, where and how."""

    verbosity: int = 3
    file: str | None = None
    jsonl: bool = False
    colors: str = "auto"
    prefix: bool = True
    timestamps: bool = True
    disable: bool = False


class Config(Section, frozen=True, kw_only=True):
    """The whole effective configuration of one server."""

    model: ModelSection = ModelSection()
    engine: EngineSection = EngineSection()
    sampling: SamplingSection = SamplingSection()
    speculative: SpeculativeSection = SpeculativeSection()
    http: HttpSection = HttpSection()
    chat: ChatSection = ChatSection()
    ipc: IpcSection = IpcSection()
    log: LogSection = LogSection()
    given: frozenset[str] = frozenset()  # keys that somebody set; the model's own metadata does not override these

    def run_dir(self) -> Path:
        """Folder of this server's sockets, lock and effective configuration; `ipc.config.make_run_dir` makes it."""
        if self.ipc.run_dir is not None:
            return Path(self.ipc.run_dir)
        return Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp") / f"llamarada-{os.getuid()}" / self.instance

    def engine_address(self, name: str = "engine") -> str:
        """Address of an engine's ROUTER socket for clients on this machine."""
        return f"ipc://{self.run_dir().absolute()}/{name}.sock"

    def slab_path(self, name: str = "engine") -> str:
        """File of an engine's shared memory; apart for servers whose run folders are apart."""
        folder = zlib.crc32(str(self.run_dir().absolute()).encode())
        return f"/dev/shm/llamarada-{os.getuid()}-{self.instance}-{folder:08x}-{name}.slab"

    @property
    def instance(self) -> str:
        """What tells this server from others of the same user: the port, or a mark of the Unix sockets' paths."""
        hosts = self.http.host
        if all(host.endswith(".sock") for host in hosts):
            return f"unix-{zlib.crc32(','.join(hosts).encode()):08x}"
        return str(self.http.port)
