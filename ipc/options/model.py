"""Options of [model]: what is served and where it comes from."""

from ipc.options.option import LATER, Option
from ipc.options.text import names

OPTIONS = (
    Option(
        "model.path",
        ("-m", "--model"),
        "LLAMA_ARG_MODEL",
        "GGUF file (of a split model the first part), or the name of a model that `llamarada model` fetches: smollm2",
        value="FILE",
    ),
    Option(
        "model.alias",
        ("-a", "--alias"),
        "LLAMA_ARG_ALIAS",
        "names for the APIs, the first is the model's id; a flag's are sorted (default: the file's name)",
        value="A,B",
        parse=names,
    ),
    Option(
        "model.tags", ("--tags",), "LLAMA_ARG_TAGS", "tags shown by /v1/models; informational", value="T,…", parse=names
    ),
    Option(
        "model.url",
        ("-mu", "--model-url"),
        "LLAMA_ARG_MODEL_URL",
        "download the model from this address",
        value="URL",
        mark=LATER,
    ),
    Option(
        "model.hf_repo",
        ("-hf", "-hfr", "--hf-repo"),
        "LLAMA_ARG_HF_REPO",
        "Hugging Face repository, with an optional quantisation",
        value="USER/MODEL[:QUANT]",
        mark=LATER,
    ),
    Option(
        "model.hf_file",
        ("-hff", "--hf-file"),
        "LLAMA_ARG_HF_FILE",
        "file inside the repository, instead of a quantisation",
        value="FILE",
        mark=LATER,
    ),
    Option(
        "model.hf_token", ("-hft", "--hf-token"), "HF_TOKEN", "Hugging Face access token", value="TOKEN", secret=True
    ),
    Option(
        "model.offline",
        ("--offline",),
        "LLAMA_ARG_OFFLINE",
        "use what is cached, never the network",
        mark=LATER,
        off=False,
    ),
    Option(
        "model.mmproj", ("-mm", "--mmproj"), "LLAMA_ARG_MMPROJ", "multimodal projector file", value="FILE", mark=LATER
    ),
    Option(
        "model.mmproj_url",
        ("-mmu", "--mmproj-url"),
        "LLAMA_ARG_MMPROJ_URL",
        "download the projector from this address",
        value="URL",
        mark=LATER,
    ),
    Option(
        "model.mmproj_auto",
        ("--mmproj-auto",),
        "LLAMA_ARG_MMPROJ_AUTO",
        "use the projector that comes with a downloaded model",
        no_flags=("--no-mmproj", "--no-mmproj-auto"),
        mark=LATER,
        off=False,
    ),
    Option(
        "model.override_kv",
        ("--override-kv",),
        "",
        "override metadata of the model: KEY=TYPE:VALUE, types int, float, bool, str",
        value="K=T:V,…",
        mark=LATER,
    ),
    Option(
        "model.check_tensors",
        ("--check-tensors",),
        "",
        "look for invalid values in the model's tensors",
    ),
    Option(
        "",
        ("-dr", "--docker-repo"),
        "LLAMA_ARG_DOCKER_REPO",
        "model from a Docker registry",
        mark=LATER,
        section="model",
    ),
    Option(
        "",
        ("--mmproj-offload", "--no-mmproj-offload"),
        "LLAMA_ARG_MMPROJ_OFFLOAD",
        "",
        mark=LATER,
        section="model",
        n_values=0,
    ),
    Option("", ("-mmdev", "--mmproj-device"), "MTMD_BACKEND_DEVICE", "", mark=LATER, section="model"),
    Option("", ("--image-min-tokens",), "LLAMA_ARG_IMAGE_MIN_TOKENS", "", mark=LATER, section="model"),
    Option("", ("--image-max-tokens",), "LLAMA_ARG_IMAGE_MAX_TOKENS", "", mark=LATER, section="model"),
    Option("", ("--mtmd-batch-max-tokens",), "LLAMA_ARG_MTMD_BATCH_MAX_TOKENS", "", mark=LATER, section="model"),
    Option("", ("--video-fps",), "LLAMA_ARG_VIDEO_FPS", "", mark=LATER, section="model"),
    Option("", ("--video-timestamp-interval",), "LLAMA_ARG_VIDEO_TIMESTAMP_INTERVAL", "", mark=LATER, section="model"),
    Option("", ("--video-ffmpeg-dir",), "LLAMA_ARG_VIDEO_FFMPEG_DIR", "", mark=LATER, section="model"),
)
