"""Options of [sampling]: what a request gets when it does not ask otherwise."""

from ipc.options.option import LATER, Option
from ipc.options.text import breaker, json_text, logit_bias, one, sampler_letters, sampler_names


def _number(
    name: str, flags: tuple[str, ...], help: str, env: str = "", low: float | None = None, high: float | None = None
) -> Option:
    return Option(f"sampling.{name}", flags, env, help, value="N", low=low, high=high)


OPTIONS = (
    Option(
        "sampling.samplers",
        ("--samplers",),
        "",
        "samplers in the order they act, between semicolons",
        value="A;B;…",
        parse=sampler_names,
    ),
    Option(
        "sampling.samplers",
        ("--sampler-seq", "--sampling-seq"),
        "",
        "the same by letters: edskypmxt",
        value="LETTERS",
        parse=sampler_letters,
    ),
    Option(
        "sampling.seed",
        ("-s", "--seed"),
        "",
        "seed of the random draw; -1: another one each time",
        value="N",
        special={"-1": None, "4294967295": None},
        low=0,
        high=0xFFFFFFFE,
    ),
    Option("sampling.ignore_eos", ("--ignore-eos",), "", "never end at an end-of-generation token"),
    _number(
        "temperature",
        ("--temp", "--temperature"),
        "temperature; 0 takes the likeliest token",
        "LLAMA_ARG_TEMPERATURE",
        low=0,
    ),
    _number("top_k", ("--top-k",), "keep the K likeliest tokens; 0: off", "LLAMA_ARG_TOP_K", low=0),
    _number(
        "top_p", ("--top-p",), "keep the likeliest tokens that add up to P; 1: off", "LLAMA_ARG_TOP_P", low=0, high=1
    ),
    _number(
        "min_p", ("--min-p",), "drop tokens less likely than P times the best; 0: off", "LLAMA_ARG_MIN_P", low=0, high=1
    ),
    _number(
        "top_n_sigma",
        ("--top-nsigma", "--top-n-sigma"),
        "drop tokens more than N standard deviations below the best; -1: off",
    ),
    _number(
        "xtc_probability", ("--xtc-probability",), "chance that XTC removes the likeliest tokens; 0: off", low=0, high=1
    ),
    _number(
        "xtc_threshold",
        ("--xtc-threshold",),
        "probability from which XTC counts a token as likely; above 0.5: off",
        low=0,
        high=1,
    ),
    _number("typical_p", ("--typical", "--typical-p"), "locally typical sampling; 1: off", low=0),
    _number("repeat_last_n", ("--repeat-last-n",), "tokens that penalties look back at; 0: off", low=0),
    _number(
        "repeat_penalty", ("--repeat-penalty",), "penalty of repeated tokens; 1: off", "LLAMA_ARG_REPEAT_PENALTY", low=0
    ),
    _number(
        "presence_penalty",
        ("--presence-penalty",),
        "penalty of tokens that occurred; 0: off",
        "LLAMA_ARG_PRESENCE_PENALTY",
    ),
    _number(
        "frequency_penalty",
        ("--frequency-penalty",),
        "penalty by how often a token occurred; 0: off",
        "LLAMA_ARG_FREQUENCY_PENALTY",
    ),
    _number("dry_multiplier", ("--dry-multiplier",), "strength of the DRY penalty of repeated passages; 0: off", low=0),
    _number("dry_base", ("--dry-base",), "growth of the DRY penalty per token", low=0),
    _number("dry_allowed_length", ("--dry-allowed-length",), "longest repetition that DRY lets pass", low=0),
    _number("dry_penalty_last_n", ("--dry-penalty-last-n",), "tokens that DRY looks back at; 0: off", low=0),
    Option(
        "sampling.dry_sequence_breakers",
        ("--dry-sequence-breaker",),
        "",
        "text at which DRY stops looking back; the first use clears the defaults, none leaves no breaker",
        value="S",
        parse=breaker,
        repeat=True,
        escapes=True,
    ),
    _number("adaptive_target", ("--adaptive-target",), "adaptive-p: probability to aim at; -1: off", high=1),
    _number("adaptive_decay", ("--adaptive-decay",), "adaptive-p: how slowly it adapts", low=0, high=0.99),
    _number("dynatemp_range", ("--dynatemp-range",), "temperature varies by entropy within this range; 0: off", low=0),
    _number("dynatemp_exponent", ("--dynatemp-exp",), "exponent of the entropy"),
    _number("mirostat", ("--mirostat",), "mirostat version; 0: off", low=0, high=2),
    _number("mirostat_eta", ("--mirostat-lr",), "mirostat's learning rate"),
    _number("mirostat_tau", ("--mirostat-ent",), "mirostat's target entropy"),
    _number("min_keep", ("--min-keep",), "tokens that truncating samplers leave at least", low=0),
    Option(
        "sampling.logit_bias",
        ("-l", "--logit-bias"),
        "",
        "make a token likelier or unlikelier: 15043+1, 15043-1",
        value="ID(+|-)B",
        parse=logit_bias,
        repeat=True,
    ),
    Option(
        "sampling.reverse_prompt",
        ("-r", "--reverse-prompt"),
        "",
        "stop string of requests that name none",
        value="S",
        parse=one,
        repeat=True,
        escapes=True,
    ),
    Option(
        "sampling.escape",
        ("-e", "--escape"),
        "",
        "read \\n, \\t and the like in reverse prompts and DRY breakers given as flags",
        no_flags=("--no-escape",),
    ),
    Option("sampling.grammar", ("--grammar",), "", "GBNF grammar of requests that name none", value="G"),
    Option("sampling.grammar_file", ("--grammar-file",), "", "file with that grammar", value="FILE"),
    Option(
        "sampling.json_schema",
        ("-j", "--json-schema"),
        "",
        "JSON schema of requests that name none",
        value="S",
        parse=json_text,
    ),
    Option(
        "sampling.json_schema_file",
        ("-jf", "--json-schema-file"),
        "",
        "file with that schema",
        value="FILE",
    ),
    Option(
        "", ("-bs", "--backend-sampling"), "LLAMA_ARG_BACKEND_SAMPLING", "", mark=LATER, section="sampling", n_values=0
    ),
)
