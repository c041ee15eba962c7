"""Every message that crosses the engine's socket. `docs/zeromq.md` describes the exchange.

Structs are msgpack arrays whose first element is the tag. New fields go last, with a default: an older
peer ignores what it does not know, a newer one fills in what is missing.
"""

from typing import Any

import msgspec
from msgspec import Struct, field

PROTOCOL = 1
SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
DRY_BREAKERS = ("\n", ":", '"', "*")


class Message(Struct, array_like=True, omit_defaults=True, gc=False, frozen=False):
    """Base of all messages: a compact array, invisible to the garbage collector."""


# ---------------------------------------------------------------- parts of a task


class Sampling(Message):
    """How a token is chosen from logits; `spec/generation.md` §1.2. None means "off" or "not set"."""

    samplers: list[str] = field(default_factory=lambda: list(SAMPLERS))
    seed: int | None = None  # uint32; None draws a random one
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
    dry_sequence_breakers: list[str] = field(default_factory=lambda: list(DRY_BREAKERS))
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9
    min_keep: int = 0
    logit_bias: list[tuple[int, float]] = []  # token id, bias; -inf bans
    ignore_eos: bool = False


class Trigger(Message):
    """Wakes a lazy constraint: `kind` is "token", "word", "pattern" or "pattern_full"."""

    kind: str
    value: str
    token: int | None = None


class Constraint(Message):
    """Structured output. `kind` is "gbnf", "json_schema", "regex" or "lark"; `text` its source."""

    kind: str
    text: str
    lazy: bool = False
    triggers: list[Trigger] = []
    prefix: list[int] = []  # tokens of the generation prompt the constraint has already passed


class ReasoningBudget(Message):
    """Ends a thinking block after `tokens` (None: no cap) by forcing `forced`; `spec/generation.md` §10."""

    start: list[int]
    ends: list[list[int]]
    forced: list[int]
    tokens: int | None = None
    control: bool = False
    prefix: list[int] = []  # generation-prompt tokens, fed first


class LoraScale(Message):
    """One adapter of a request's `lora` list."""

    id: int
    scale: float


# ---------------------------------------------------------------- to the engine


class Hello(Message, tag="hello"):
    """First message on every connection; answered by `Welcome`. Work of an earlier connection is forgotten."""

    protocol: int = PROTOCOL
    slab: bool = True  # False: the client cannot map the slab, its rows travel inline


class Task(Message, tag="task"):
    """One sequence to generate. `id` counts up per client; ends in exactly one `Final`."""

    id: int
    tokens: bytes  # prompt, little-endian int32
    sampling: Sampling
    stream: bool = True  # False: text and tokens arrive together, just before the Final
    max_tokens: int | None = None  # None: until the context is full
    max_ms: int | None = None  # of generation; checked at new lines
    max_prompt_ms: int | None = None
    deadline_ms: int | None = None  # queue and prompt included
    stop: list[str] = []
    n_probs: int = 0
    post_sampling_probs: bool = False
    prompt_probs: bool = False  # logits rows of the prompt's tokens too
    n_keep: int | None = 0  # None: the whole prompt
    n_discard: int = 0
    n_indent: int = 0
    n_cache_reuse: int = 0
    cache_prompt: bool = True
    slot: int | None = None
    preserved_tokens: list[int] = []  # special tokens that stay visible
    timings_per_token: bool = False
    progress: bool = False  # Progress messages while the prompt is read
    priority: int = 0
    constraint: Constraint | None = None
    reasoning: ReasoningBudget | None = None
    lora: list[LoraScale] | None = None
    message_starts: list[int] = []  # prompt positions where a user message begins (checkpoints)
    label: str = ""  # the caller's own name for it, by which other clients may call it
    queue_position: bool = False  # Queued messages while it waits


class Embed(Message, tag="embed"):
    """Inputs to turn into vectors (or, with a rank head, scores), all in one task."""

    id: int
    tokens: bytes  # all inputs one after the other, little-endian int32
    lengths: bytes  # tokens of each input, little-endian int32
    priority: int = 0
    deadline_ms: int | None = None


class Abort(Message, tag="abort"):
    """Stop task `id`, whatever its phase. Idempotent; no reply of its own."""

    id: int


class Bye(Message, tag="bye"):
    """The client leaves: abort all it has. `Server` also makes one for a client that it finds gone or frozen."""


class Free(Message, tag="free"):
    """Slab rows the client has copied out, as (row, generation)."""

    rows: list[tuple[int, int]]


class GetSlots(Message, tag="get_slots"):
    """Ask for `SlotsReply`."""

    id: int
    debug: bool = False  # with prompt and generated text


class GetMetrics(Message, tag="get_metrics"):
    """Ask for `MetricsReply`; `reset` starts a new rate window."""

    id: int
    reset: bool = True


class SlotAction(Message, tag="slot_action"):
    """`action` is "save", "restore" or "erase"; answered by `SlotReply` or `Failure` once the slot is idle."""

    id: int
    slot: int
    action: str
    path: str = ""


class GetLora(Message, tag="get_lora"):
    """Ask for `LoraReply`."""

    id: int


class SetLora(Message, tag="set_lora"):
    """Set the server-wide scales; adapters not listed get 0. Answered by `LoraReply`."""

    id: int
    scales: list[LoraScale]


class LoadLora(Message, tag="load_lora"):
    """Load an adapter file at run time; answered by `LoraReply` or `Failure`."""

    id: int
    path: str
    scale: float = 1.0


class DropLora(Message, tag="drop_lora"):
    """Unload an adapter; answered by `LoraReply` or `Failure`."""

    id: int
    adapter: int


class EndReasoning(Message, tag="end_reasoning"):
    """End the thinking of this client's task `task`, or of every task labelled so; gets `Done` or `Failure`."""

    id: int
    task: int
    label: str = ""


# ---------------------------------------------------------------- from the engine


class ModelInfo(Message):
    """What `/props` and `/v1/models` tell about the loaded model."""

    path: str
    desc: str
    architecture: str
    n_params: int
    size: int  # bytes of all tensors
    ftype: str
    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_embd_out: int
    n_layer: int
    vocab_type: int
    pooling: str = "none"
    has_encoder: bool = False
    has_decoder: bool = True
    can_shift: bool = True
    n_swa: int = 0


class Welcome(Message, tag="welcome"):
    """Answer to `Hello`: the engine is ready and this is what it serves."""

    protocol: int
    boot: str  # nonce of this engine process
    model: ModelInfo
    n_slots: int
    n_ctx: int  # of all slots
    n_ctx_slot: int
    n_batch: int
    n_ubatch: int
    slab: str  # path of the slab file, "" when rows travel inline
    build: str = ""  # libllama's version text
    pid: int = 0
    text: bool = True  # False: the model only makes vectors
    n_embed_tokens: int | None = None  # longest input of an Embed; None: embeddings are not enabled
    n_scores: int = 0  # outputs of a rank head


class RowRef(Message):
    """A float32 vector: row `row` of the slab in generation `generation`, or `inline` when that is 0."""

    row: int
    generation: int
    inline: bytes = b""  # little-endian float32
    floats: int | None = None  # length of the vector; None: the whole row


class TokenProbs(Message):
    """Source of one token's probabilities: raw logits, or candidates that were left after sampling."""

    token: int
    logits: RowRef | None = None
    candidates: list[tuple[int, float]] | None = None  # token id, probability; best first


class Timings(Message):
    """Counts and milliseconds of one task, `spec/generation.md` §8.1."""

    queue_ms: float = 0.0
    cache_n: int = 0
    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0
    draft_n: int = 0
    draft_n_accepted: int = 0


class Error(Message):
    """`code` is the HTTP status, `type` a name of `spec/endpoints.md` §1."""

    code: int
    type: str
    message: str
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None
    index: int | None = None  # of the bad input of an Embed


class Admitted(Message, tag="admitted"):
    """First result of a task that was taken; it may still wait in the queue."""

    id: int
    queue_position: int = 0


class Queued(Message, tag="queued"):
    """The task's place in the queue has changed: so many are before it."""

    id: int
    position: int


class Progress(Message, tag="progress"):
    """How much of the prompt has been read; `processed` includes `cached`."""

    id: int
    total: int
    cached: int
    processed: int
    ms: float


class Delta(Message, tag="delta"):
    """New text of a task and the tokens it came from. Text never ends inside a character."""

    id: int
    text: str
    tokens: list[int]
    probs: list[TokenProbs] = []
    timings: Timings | None = None


class PromptProbs(Message, tag="prompt_probs"):
    """Logits that predict prompt tokens `first`, `first`+1, … of the prompt."""

    id: int
    first: int
    rows: list[RowRef]


class Vectors(Message, tag="vectors"):
    """Vectors of the inputs named by `indices` of an `Embed`; pooling "none" gives one row per token."""

    id: int
    indices: list[int]
    rows: list[RowRef]
    n_rows: list[int] = []  # rows of each input; empty: one each


class Final(Message, tag="final"):
    """The one last result of a task. `reason`: "eos", "word", "limit", "abort", "done" (embeddings) or "error"."""

    id: int
    reason: str
    error: Error | None = None
    stopping_word: str = ""
    truncated: bool = False
    has_new_line: bool = False
    slot: int = 0
    n_prompt: int = 0
    n_past: int = 0  # tokens now held by the slot
    timings: Timings = field(default_factory=Timings)
    seed: int = 0  # the seed really used


Result = Admitted | Queued | Progress | Delta | PromptProbs | Vectors | Final


class Step(Message, tag="step"):
    """All results of one decode step for one client."""

    results: list[Result]


class SlotState(Message):
    """One entry of `/slots`."""

    id: int
    n_ctx: int
    is_processing: bool
    speculative: bool = False
    has_task: bool = False
    task: int = 0
    n_prompt: int = 0
    n_prompt_processed: int = 0
    n_prompt_cached: int = 0
    n_decoded: int = 0
    n_remain: int | None = None
    has_next_token: bool = False
    has_new_line: bool = False
    params: Task | None = None  # without its tokens
    prompt: str = ""
    generated: str = ""
    state: str = "idle"
    n_past: int = 0  # with `debug`: tokens that the slot counts in the KV memory
    pos_min: int = -1  # with `debug`: first and last position that libllama holds for it; -1: none
    pos_max: int = -1


class SlotsReply(Message, tag="slots"):
    id: int
    slots: list[SlotState]
    n_deferred: int = 0


class MetricsReply(Message, tag="metrics"):
    """Values by name as in `spec/engine.md` §11, without the prefix."""

    id: int
    values: dict[str, float]
    accepted_per_position: list[int] = []


class SlotReply(Message, tag="slot"):
    id: int
    slot: int
    n_tokens: int
    n_bytes: int = 0
    ms: float = 0.0


class LoraState(Message):
    id: int
    path: str
    scale: float
    task_name: str = ""
    prompt_prefix: str = ""
    alora_invocation_tokens: list[int] = []


class LoraReply(Message, tag="lora"):
    id: int
    adapters: list[LoraState]


class Done(Message, tag="done"):
    id: int


class Failure(Message, tag="failure"):
    """A control request that could not be carried out."""

    id: int
    error: Error


Control = GetSlots | GetMetrics | SlotAction | GetLora | SetLora | LoadLora | DropLora | EndReasoning
Reply = SlotsReply | MetricsReply | SlotReply | LoraReply | Done | Failure

ToEngine = Hello | Task | Embed | Abort | Bye | Free | Control
ToClient = Welcome | Step | Reply

encode = msgspec.msgpack.Encoder().encode
decode_to_engine: Any = msgspec.msgpack.Decoder(ToEngine).decode
decode_to_client: Any = msgspec.msgpack.Decoder(ToClient).decode
