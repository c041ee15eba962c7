"""Options of [speculative]: drafts by n-gram look-up or by a smaller model."""

from ipc.options.option import LATER, REMOVED, Option

TYPES = ("none", "draft-simple", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod")


def _size(kind: str, field: str, what: str, low: int = 1, high: int | None = 1024) -> Option:
    flag = f"--spec-{kind}-{field}"
    return Option(
        "speculative." + flag[7:].replace("-", "_"),
        (flag,),
        "",
        f"{kind}: {what}",
        value="N",
        low=low,
        high=high,
    )


def _refused(*flags: str, env: str = "", n_values: int = 1) -> Option:
    return Option("", flags, env, mark=LATER, section="speculative", n_values=n_values)


def _removed(*flags: str, env: str = "", note: str) -> Option:
    return Option("", flags, env, mark=REMOVED, section="speculative", note=note)


OPTIONS = (
    Option(
        "speculative.types",
        ("--spec-type",),
        "LLAMA_ARG_SPEC_TYPE",
        f"kinds of drafts: {', '.join(TYPES)}",
        value="T,…",
        choices=TYPES,
        repeat=True,
        special={"none": ()},
    ),
    Option("speculative.types", ("--spec-default",), "", "same as --spec-type ngram-mod", const=("ngram-mod",)),
    Option(
        "speculative.draft_model",
        ("-md", "--spec-draft-model", "--model-draft"),
        "LLAMA_ARG_SPEC_DRAFT_MODEL",
        "GGUF file of the draft model",
        value="FILE",
    ),
    Option(
        "speculative.draft_hf_repo",
        ("-hfd", "-hfrd", "--spec-draft-hf", "--hf-repo-draft"),
        "LLAMA_ARG_SPEC_DRAFT_HF_REPO",
        "Hugging Face repository of the draft model",
        value="REPO",
        mark=LATER,
    ),
    Option(
        "speculative.draft_n_max",
        ("--spec-draft-n-max",),
        "LLAMA_ARG_SPEC_DRAFT_N_MAX",
        "tokens drafted at most",
        value="N",
        low=0,
    ),
    Option(
        "speculative.draft_n_min",
        ("--spec-draft-n-min",),
        "LLAMA_ARG_SPEC_DRAFT_N_MIN",
        "shorter drafts are dropped",
        value="N",
        low=0,
    ),
    Option(
        "speculative.draft_p_min",
        ("--spec-draft-p-min", "--draft-p-min"),
        "LLAMA_ARG_SPEC_DRAFT_P_MIN",
        "least probability of a drafted token",
        value="F",
        low=0,
        high=1,
    ),
    Option(
        "speculative.draft_p_split",
        ("--spec-draft-p-split", "--draft-p-split"),
        "LLAMA_ARG_SPEC_DRAFT_P_SPLIT",
        "probability from which a draft branches",
        value="F",
        low=0,
        high=1,
        mark=LATER,
    ),
    Option(
        "speculative.draft_sampling",
        ("--spec-draft-sampling",),
        "LLAMA_ARG_SPEC_DRAFT_SAMPLING",
        "how drafts are accepted: greedy or probabilistic",
        value="HOW",
        choices=("greedy", "probabilistic"),
        mark=LATER,
    ),
    *(
        _size(kind, field, what, high=high)
        for kind in ("ngram-simple", "ngram-map-k", "ngram-map-k4v")
        for field, what, high in (
            ("size-n", "tokens looked up", 1024),
            ("size-m", "tokens drafted", 1024),
            ("min-hits", "finds needed", None),
        )
    ),
    _size("ngram-mod", "n-match", "tokens looked up"),
    _size("ngram-mod", "n-min", "tokens drafted at least", low=0),
    _size("ngram-mod", "n-max", "tokens drafted at most", low=0),
    _refused("-lcs", "--lookup-cache-static"),
    _refused("-lcd", "--lookup-cache-dynamic"),
    _refused("--spec-synth-len", env="LLAMA_ARG_SPEC_SYNTH_LEN"),
    _refused("--spec-synth-rates", env="LLAMA_ARG_SPEC_SYNTH_RATES"),
    _refused("-td", "--threads-draft", "--spec-draft-threads"),
    _refused("-tbd", "--threads-batch-draft", "--spec-draft-threads-batch"),
    _refused("-ctkd", "--cache-type-k-draft", "--spec-draft-type-k", env="LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K"),
    _refused("-ctvd", "--cache-type-v-draft", "--spec-draft-type-v", env="LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V"),
    _refused("-otd", "--override-tensor-draft", "--spec-draft-override-tensor"),
    _refused("-cmoed", "--cpu-moe-draft", "--spec-draft-cpu-moe", env="LLAMA_ARG_SPEC_DRAFT_CPU_MOE", n_values=0),
    _refused(
        "-ncmoed",
        "--n-cpu-moe-draft",
        "--spec-draft-n-cpu-moe",
        "--spec-draft-ncmoe",
        env="LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE",
    ),
    _refused("-devd", "--device-draft", "--spec-draft-device"),
    _refused(
        "-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl", env="LLAMA_ARG_N_GPU_LAYERS_DRAFT"
    ),
    _refused(
        "--spec-draft-backend-sampling",
        "--no-spec-draft-backend-sampling",
        env="LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING",
        n_values=0,
    ),
    _refused("-Cd", "--cpu-mask-draft", "--spec-draft-cpu-mask"),
    _refused("-Crd", "--cpu-range-draft", "--spec-draft-cpu-range"),
    _removed(
        "--draft",
        "--draft-n",
        "--draft-max",
        env="LLAMA_ARG_DRAFT_MAX",
        note="--spec-draft-n-max or --spec-ngram-mod-n-max",
    ),
    _removed(
        "--draft-min", "--draft-n-min", env="LLAMA_ARG_DRAFT_MIN", note="--spec-draft-n-min or --spec-ngram-mod-n-min"
    ),
    _removed(
        "--spec-ngram-size-n", note="--spec-ngram-simple-size-n, …-map-k-…, …-map-k4v-… or --spec-ngram-mod-n-match"
    ),
    _removed("--spec-ngram-size-m", note="--spec-ngram-simple-size-m, …-map-k-… or …-map-k4v-…"),
    _removed("--spec-ngram-min-hits", note="--spec-ngram-simple-min-hits, …-map-k-… or …-map-k4v-…"),
)
