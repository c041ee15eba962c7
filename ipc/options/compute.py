"""Options of [engine] about threads, devices, number types and positions; most go straight to libllama."""

from ipc.options.option import IGNORED, LATER, Option
from ipc.options.text import SWITCH, floats, inverse

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")

THREADS = (
    Option(
        "engine.threads",
        ("-t", "--threads"),
        "LLAMA_ARG_THREADS",
        "threads that generate; -1: as many as there are cores",
        value="N",
        special={"-1": None, "0": None, "auto": None},
        low=1,
    ),
    Option(
        "engine.threads_batch",
        ("-tb", "--threads-batch"),
        "",
        "threads that read prompts (default: as --threads)",
        value="N",
        special={"-1": None, "0": None},
        low=1,
    ),
    Option(
        "engine.threads_adapt",
        ("--threads-adapt",),
        "",
        "compute with fewer threads while other programs want the cores (Linux)",
        no_flags=("--no-threads-adapt",),
    ),
    Option(
        "engine.library",
        ("--library",),
        "",
        "folder that holds libllama (default: the one LLAMARADA_LIB names, else the newest build in the cache)",
        value="DIR",
    ),
    Option(
        "engine.hang_seconds",
        ("--hang-seconds",),
        "LLAMARADA_HANG_SECONDS",
        "an engine silent for so long counts as hung and is restarted",
        value="S",
        low=1,
    ),
    Option(
        "engine.slab_rows",
        ("--slab-rows",),
        "LLAMARADA_SLAB_ROWS",
        "rows of the shared memory that carries vectors and logits (default: by vocabulary)",
        value="N",
        low=0,
    ),
)

DEVICES = (
    Option(
        "engine.n_gpu_layers",
        ("-ngl", "--gpu-layers", "--n-gpu-layers"),
        "LLAMA_ARG_N_GPU_LAYERS",
        "layers kept in GPU memory; auto and all: every one",
        value="N",
        special={"auto": None, "all": None, "-1": None, "-2": None},
        low=0,
    ),
    Option(
        "engine.split_mode",
        ("-sm", "--split-mode"),
        "LLAMA_ARG_SPLIT_MODE",
        "how several GPUs share the model",
        value="MODE",
        choices=("none", "layer", "row", "tensor"),
    ),
    Option(
        "engine.tensor_split",
        ("-ts", "--tensor-split"),
        "LLAMA_ARG_TENSOR_SPLIT",
        "share of each GPU",
        value="N,N,…",
        parse=floats,
        low=0,
    ),
    Option(
        "engine.main_gpu",
        ("-mg", "--main-gpu"),
        "LLAMA_ARG_MAIN_GPU",
        "the GPU used with split mode none, or for small tensors with row",
        value="N",
        low=0,
    ),
    Option(
        "engine.flash_attn",
        ("-fa", "--flash-attn"),
        "LLAMA_ARG_FLASH_ATTN",
        "flash attention: on, off or auto",
        value="MODE",
        special=SWITCH,
        choices=("on", "off", "auto"),
    ),
    Option(
        "engine.cache_type_k",
        ("-ctk", "--cache-type-k"),
        "LLAMA_ARG_CACHE_TYPE_K",
        f"number type of cached keys: {', '.join(KV_TYPES)}",
        value="TYPE",
        choices=KV_TYPES,
    ),
    Option(
        "engine.cache_type_v",
        ("-ctv", "--cache-type-v"),
        "LLAMA_ARG_CACHE_TYPE_V",
        "number type of cached values, as above",
        value="TYPE",
        choices=KV_TYPES,
    ),
    Option(
        "engine.kv_offload",
        ("-kvo", "--kv-offload"),
        "LLAMA_ARG_KV_OFFLOAD",
        "keep the KV cache on the GPU",
        no_flags=("-nkvo", "--no-kv-offload"),
    ),
    Option(
        "engine.op_offload",
        ("--op-offload",),
        "",
        "compute large host tensors on the GPU",
        no_flags=("--no-op-offload",),
    ),
    Option(
        "engine.load_mode",
        ("-lm", "--load-mode"),
        "LLAMA_ARG_LOAD_MODE",
        "how the file is read: auto, none, mmap, mlock, mmap+mlock, dio",
        value="MODE",
        choices=("auto", "none", "mmap", "mlock", "mmap+mlock", "dio"),
    ),
    Option("engine.load_mode", ("--mlock",), "", "same as --load-mode mmap+mlock", const="mmap+mlock"),
    Option("engine.load_mode", ("--no-mmap",), "", "same as --load-mode none", const="none"),
    Option(
        "engine.numa",
        ("--numa",),
        "LLAMA_ARG_NUMA",
        "placement on NUMA machines: distribute, isolate, numactl",
        value="TYPE",
        choices=("distribute", "isolate", "numactl"),
    ),
)

POSITIONS = (
    Option(
        "engine.rope_scaling",
        ("--rope-scaling",),
        "LLAMA_ARG_ROPE_SCALING_TYPE",
        "RoPE scaling: none, linear, yarn (default: as the model says)",
        value="TYPE",
        choices=("none", "linear", "yarn"),
    ),
    Option(
        "engine.rope_freq_base",
        ("--rope-freq-base",),
        "LLAMA_ARG_ROPE_FREQ_BASE",
        "RoPE base frequency (default: as the model says)",
        value="F",
        low=0,
    ),
    Option(
        "engine.rope_freq_scale",
        ("--rope-freq-scale",),
        "LLAMA_ARG_ROPE_FREQ_SCALE",
        "RoPE frequency factor; 1/N makes the context N times as long",
        value="F",
        low=0,
    ),
    Option(
        "engine.rope_freq_scale",
        ("--rope-scale",),
        "LLAMA_ARG_ROPE_SCALE",
        "how many times as long the context becomes: sets --rope-freq-scale to 1/N",
        value="N",
        parse=inverse,
    ),
    Option(
        "engine.yarn_orig_ctx",
        ("--yarn-orig-ctx",),
        "LLAMA_ARG_YARN_ORIG_CTX",
        "YaRN: context the model was trained with",
        value="N",
        low=0,
    ),
    Option(
        "engine.yarn_ext_factor",
        ("--yarn-ext-factor",),
        "LLAMA_ARG_YARN_EXT_FACTOR",
        "YaRN: mix of extrapolation",
        value="F",
        special={"-1": None, "-1.0": None},
    ),
    Option(
        "engine.yarn_attn_factor",
        ("--yarn-attn-factor",),
        "LLAMA_ARG_YARN_ATTN_FACTOR",
        "YaRN: scale of attention",
        value="F",
        special={"-1": None, "-1.0": None},
    ),
    Option(
        "engine.yarn_beta_slow",
        ("--yarn-beta-slow",),
        "LLAMA_ARG_YARN_BETA_SLOW",
        "YaRN: high correction dimension",
        value="F",
        special={"-1": None, "-1.0": None},
    ),
    Option(
        "engine.yarn_beta_fast",
        ("--yarn-beta-fast",),
        "LLAMA_ARG_YARN_BETA_FAST",
        "YaRN: low correction dimension",
        value="F",
        special={"-1": None, "-1.0": None},
    ),
)


def _later(*flags: str, env: str = "", n_values: int = 1) -> Option:
    return Option("", flags, env, mark=LATER, section="engine", n_values=n_values)


REFUSED = (
    *(
        _later(*flags)
        for flags in (
            ("-C", "--cpu-mask"),
            ("-Cr", "--cpu-range"),
            ("-Cb", "--cpu-mask-batch"),
            ("-Crb", "--cpu-range-batch"),
        )
    ),
    *(
        _later(flag)
        for flag in ("--cpu-strict", "--cpu-strict-batch", "--prio", "--prio-batch", "--poll", "--poll-batch")
    ),
    _later("-dev", "--device", env="LLAMA_ARG_DEVICE"),
    _later("-fitt", "--fit-target", env="LLAMA_ARG_FIT_TARGET"),
    _later("-fitc", "--fit-ctx", env="LLAMA_ARG_FIT_CTX"),
    _later("--repack", "-nr", "--no-repack", env="LLAMA_ARG_REPACK", n_values=0),
    _later("--no-host", env="LLAMA_ARG_NO_HOST", n_values=0),
    _later("-ot", "--override-tensor", env="LLAMA_ARG_OVERRIDE_TENSOR"),
    _later("-cmoe", "--cpu-moe", env="LLAMA_ARG_CPU_MOE", n_values=0),
    _later("-ncmoe", "--n-cpu-moe", env="LLAMA_ARG_N_CPU_MOE"),
    _later("-ncffn", "--n-cpu-ffn", env="LLAMA_ARG_N_CPU_FFN"),
    _later("--rpc", env="LLAMA_ARG_RPC"),
    _later("-lzm", "--lazy-mode", env="LLAMA_ARG_LAZY_MODE"),
    _later("--list-devices", n_values=0),
    Option(
        "",
        ("-fit", "--fit"),
        "LLAMA_ARG_FIT",
        mark=IGNORED,
        note="the context is never made smaller to fit",
        section="engine",
    ),
    Option(
        "",
        ("--perf", "--no-perf"),
        "LLAMA_ARG_PERF",
        mark=IGNORED,
        note="libllama's own timers are not used",
        section="engine",
        n_values=0,
    ),
)

OPTIONS = THREADS + DEVICES + POSITIONS + REFUSED
