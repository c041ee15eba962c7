"""Every field of a completion request, in the order in which they are read; `spec/generation.md` §1.

Validation, server defaults, `generation_settings`, `/props` and `docs/parameters.md` come from this table.
"""

import math
from typing import Any

from api import readers
from api.fields import INT32_MAX, Field

POSITIVE = (0, INT32_MAX)
OR_MINUS_ONE = (-1, INT32_MAX)
UNIT = (0.0, 1.0)


def biases_shown(biases: list[tuple[int, float]]) -> list[dict[str, Any]]:
    """Biases as settings show them: null for a ban."""
    return [{"bias": bias if math.isfinite(bias) else None, "token": token} for token, bias in biases]


def scales_shown(scales: Any) -> list[dict[str, Any]]:
    """Adapter scales as settings show them."""
    return [{"id": scale.id, "scale": scale.scale} for scale in scales or ()]


def sampling(name: str, kind: str, help: str, **more: Any) -> Field:
    """A field that is stored in the task's `Sampling` and whose default is the server's."""
    more.setdefault("source", f"sampling.{name}")
    more.setdefault("settings", "reduced")
    return Field(name=name, kind=kind, into=f"task.sampling.{name}", help=help, **more)


def task(name: str, kind: str, help: str, into: str = "", **more: Any) -> Field:
    """A field that is stored in the task itself."""
    return Field(name=name, kind=kind, into=f"task.{into or name}", help=help, **more)


def answer(name: str, kind: str, help: str, into: str = "", **more: Any) -> Field:
    """A field that shapes the answer and never reaches the engine."""
    return Field(name=name, kind=kind, into=into or name, help=help, **more)


# fmt: off
REQUEST = (
    answer("verbose", "bool", "add `__verbose`, the native result, to OpenAI-shaped answers"),
    task("timings_per_token", "bool", "`timings` in every partial result", settings="reduced"),
    task("stream", "bool", "send the answer piece by piece as server-sent events", settings="reduced"),
    task("cache_prompt", "bool", "reuse what a slot already holds of the prompt", source="engine.cache_prompt"),
    answer("return_tokens", "bool", "token ids in the final native result"),
    task("return_progress", "bool", "`prompt_progress` events while the prompt is read (streams)", into="progress"),
    task("return_queue_position", "bool", "comments `: queue_position=N` while a stream waits: N are before it",
         into="queue_position"),
    answer("sse_ping_interval", "int", "seconds of silence before a comment is sent; -1 never", into="ping",
           hard=OR_MINUS_ONE, none=-1, source="http.sse_ping_interval"),
    task("n_predict", "int", "most tokens to generate; -1 up to the server's limit; 0 only reads the prompt",
         into="max_tokens", aliases=("max_completion_tokens", "max_tokens"), least=True, hard=OR_MINUS_ONE, none=-1,
         source="engine.predict", settings="reduced"),
    task("n_indent", "int", "stop when a new line is indented less than this", hard=POSITIVE),
    task("n_keep", "int", "prompt tokens that a context shift keeps; -1 all", hard=OR_MINUS_ONE, none=-1,
         source="engine.keep", settings="reduced"),
    task("n_discard", "int", "tokens that a context shift drops; 0 half", hard=POSITIVE, settings="reduced"),
    answer("n_cmpl", "int", "completions per prompt", into="n", aliases=("n",), hard=(1, INT32_MAX)),
    task("n_cache_reuse", "int", "shortest run reused by moving it", hard=POSITIVE, source="engine.cache_reuse"),
    task("t_max_predict_ms", "int", "time limit of the generation, checked at new lines; -1 none", into="max_ms",
         hard=(-1, 2**63 - 1), none=-1),
    task("t_max_prompt_ms", "int", "time limit of reading the prompt; -1 none", into="max_prompt_ms",
         hard=(-1, 2**63 - 1), none=-1),
    task("deadline_ms", "int", "time limit of queue and prompt together; -1 none", hard=(-1, 2**63 - 1), none=-1),
    answer("response_fields", "[str]", "only these members of the native result", read=readers.fields),
    task("id_slot", "int", "slot to use; -1 any", into="slot", hard=OR_MINUS_ONE, none=-1),
    task("priority", "int", "-100 to 100; higher is served first", read=readers.priority),
    task("lora", "[{id, scale}]", "adapter scales of this request", read=readers.lora, settings="reduced",
         show=scales_shown),
)

SAMPLING = (
    sampling("top_k", "int", "keep the k likeliest tokens; 0 off", clamp=POSITIVE),
    sampling("top_p", "float", "keep the likeliest tokens that together reach this; 1 off", clamp=UNIT),
    sampling("min_p", "float", "drop tokens less likely than this share of the best; 0 off", clamp=UNIT),
    sampling("top_n_sigma", "float", "keep logits within this many deviations of the best; <= 0 off"),
    sampling("xtc_probability", "float", "chance that XTC removes the likeliest tokens; 0 off", clamp=UNIT),
    sampling("xtc_threshold", "float", "how likely a token must be for XTC; > 0.5 off", clamp=UNIT),
    sampling("typical_p", "float", "locally typical sampling; 1 off"),
    sampling("temperature", "float", "0 takes the likeliest token", clamp=(0.0, 3.4e38)),
    sampling("dynatemp_range", "float", "width of the dynamic temperature; 0 off"),
    sampling("dynatemp_exponent", "float", "how entropy maps to temperature"),
    sampling("repeat_last_n", "int", "tokens that the penalties look back on; 0 off", hard=POSITIVE),
    sampling("repeat_penalty", "float", "divides the logits of seen tokens; 1 off"),
    sampling("frequency_penalty", "float", "taken from a logit per occurrence; 0 off"),
    sampling("presence_penalty", "float", "taken from the logit of a seen token; 0 off"),
    sampling("dry_multiplier", "float", "strength of DRY; 0 off"),
    sampling("dry_base", "float", "growth of DRY's penalty; below 1 the server's default"),
    sampling("dry_allowed_length", "int", "repetition length without penalty", hard=POSITIVE),
    sampling("dry_penalty_last_n", "int", "tokens that DRY looks back on; 0 off", hard=POSITIVE),
    sampling("mirostat", "int", "1 or 2; 0 off", clamp=(0, 2)),
    sampling("mirostat_tau", "float", "Mirostat's target surprise"),
    sampling("mirostat_eta", "float", "Mirostat's learning rate"),
    sampling("adaptive_target", "float", "adaptive-p's target probability; negative off", clamp=(-3.4e38, 1.0)),
    sampling("adaptive_decay", "float", "adaptive-p's memory", hard=(0.0, 0.99)),
    sampling("seed", "int", "uint32; -1 random", read=readers.seed, none=2**32 - 1),
    task("n_probs", "int", "alternatives listed per token; 0 off", aliases=("logprobs",), clamp=POSITIVE,
         settings="reduced"),
    answer("prompt_logprobs", "int", "alternatives listed per prompt token", hard=POSITIVE),
    sampling("min_keep", "int", "least tokens that truncating samplers leave", hard=POSITIVE),
    answer("backend_sampling", "bool", "accepted; sampling runs on the CPU", settings="reduced"),
    task("post_sampling_probs", "bool", "probabilities after the chain, not before", settings="reduced"),
    sampling("dry_sequence_breakers", "[str]", "strings across which DRY sees no repetition", read=readers.breakers,
             settings="full"),
)

TEXT = (
    answer("grammar_lazy", "bool", "the constraint sleeps until a trigger appears", into="lazy.lazy", settings="full"),
    task("preserved_tokens", "[str]", "special tokens that stay visible", read=readers.single_tokens, settings="full"),
    answer("grammar_triggers", "[{type, value, token}]", "what wakes a lazy constraint", into="lazy.triggers",
           read=readers.objects, settings="full"),
    answer("echo", "bool", "the prompt in front of the text (/v1/completions)"),
    answer("chat_format", "str", "set by the chat layer", settings="reduced"),
    answer("reasoning_format", "str", "set by the chat layer", source="chat.reasoning_format", settings="reduced"),
    answer("generation_prompt", "str", "set by the chat layer", settings="reduced"),
    answer("reasoning_control", "bool", "thinking can be ended by /v1/chat/completions/control",
           into="thinking.control"),
    answer("reasoning_budget_tokens", "int", "most thinking tokens; -1 no cap", into="thinking.tokens",
           hard=OR_MINUS_ONE, none=-1, source="chat.reasoning_budget"),
    answer("reasoning_budget_start_tag", "str", "begins a thinking block", into="thinking.start", read=readers.tag),
    answer("reasoning_budget_end_tags", "[str] or str", "end a thinking block; the first one is forced",
           aliases=("reasoning_budget_end_tag",), into="thinking.ends", read=readers.tags),
    answer("reasoning_budget_message", "str", "text forced before the end tag", into="thinking.message",
           read=readers.tag, source="chat.reasoning_budget_message"),
    sampling("logit_bias", "[[token, bias]] or {token: bias}", "added to logits; false bans", read=readers.logit_bias,
             show=biases_shown, settings="full"),
    sampling("ignore_eos", "bool", "go on after the end of generation"),
    task("stop", "str or [str]", "end the text before any of these", read=readers.stop,
         source="sampling.reverse_prompt", settings="full"),
    sampling("samplers", "[str] or str", "the chain, by names or by letters", read=readers.samplers),
)

# fmt: on

TABLE = (*REQUEST, *SAMPLING, *TEXT)

# Handled together by api.constraints: they exclude each other.
CONSTRAINTS = (
    ("grammar", "str", "GBNF with a rule `root`; wins over `json_schema`"),
    ("json_schema", "object", "JSON schema of the output; `{}` any object"),
    ("regex", "str", "regular expression that the whole output matches"),
    ("choice", "[str]", "one of these texts"),
    ("lark", "str", "grammar in Lark's notation with a rule `start`"),
    ("response_format", "object", "OpenAI's form of `json_schema`, or `json_object`"),
)

# The members of `generation_settings` in their order; those without a field of that name are derived.
SETTINGS = (
    "seed", "temperature", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p", "top_n_sigma",
    "xtc_probability", "xtc_threshold", "typical_p", "repeat_last_n", "repeat_penalty", "presence_penalty",
    "frequency_penalty", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
    "dry_sequence_breakers", "mirostat", "mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay", "stop",
    "max_tokens", "n_predict", "n_keep", "n_discard", "ignore_eos", "stream", "logit_bias", "n_probs", "min_keep",
    "grammar", "grammar_lazy", "grammar_triggers", "preserved_tokens", "chat_format", "reasoning_format",
    "reasoning_in_content", "generation_prompt", "samplers", "speculative.types", "timings_per_token",
    "post_sampling_probs", "backend_sampling", "lora",
)  # fmt: skip
