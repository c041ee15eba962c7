"""libllama's C interface: one line per function, and the annotated Python signature is the C signature.

Names are those of `llama.h` and `ggml*.h`; read there what they do. Call through the module, `llama.llama_decode(…)`:
`library.load` binds them, until then each raises `NotLoaded`. `engine.abi` proves every line against the headers.
"""
# mypy: disable-error-code="empty-body"

from ctypes import (
    POINTER,
    Structure,
    Union,
    c_bool,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_void_p,
)
from enum import IntEnum, IntFlag

from engine.ctype import (
    Handle,
    adapter_p,
    c,
    char_p,
    chat_message_p,
    device_p,
    f32,
    f32_p,
    ggml_abort_callback,
    ggml_abort_callback_t,
    ggml_log_callback,
    i8_p,
    i32,
    i32_p,
    i32_pp,
    i64,
    llama_progress_callback,
    logit_bias_p,
    size_p,
    size_t,
    string,
    string_p,
    token_data_array_p,
    u8_p,
    u32,
    u64,
    void_p,
)

DEFAULT_SEED = 0xFFFFFFFF  # a random seed
TOKEN_NULL = -1
STATE_SEQ_MAGIC, STATE_SEQ_VERSION = 0x67677371, 3
STATE_SEQ_PARTIAL_ONLY, STATE_SEQ_ON_DEVICE = 1, 2


class VocabType(IntEnum):
    NONE, SPM, BPE, WPM, UGM, RWKV, PLAMO2 = range(7)


class PoolingType(IntEnum):
    UNSPECIFIED, NONE, MEAN, CLS, LAST, RANK = range(-1, 5)


class RopeScalingType(IntEnum):
    UNSPECIFIED, NONE, LINEAR, YARN, LONGROPE = range(-1, 4)


class AttentionType(IntEnum):
    UNSPECIFIED, CAUSAL, NON_CAUSAL = range(-1, 2)


class FlashAttnType(IntEnum):
    AUTO, DISABLED, ENABLED = range(-1, 2)


class SplitMode(IntEnum):
    NONE, LAYER, ROW, TENSOR = range(4)


class LoadMode(IntEnum):
    AUTO, NONE, MMAP, MLOCK, MMAP_MLOCK, DIRECT_IO = range(-1, 5)


class LazyMode(IntEnum):
    OFF, AUTO, ON = range(3)


class KvOverrideType(IntEnum):
    INT, FLOAT, BOOL, STR = range(4)


class TokenAttr(IntFlag):
    UNKNOWN, UNUSED, NORMAL, CONTROL, USER_DEFINED = 1, 2, 4, 8, 16
    BYTE, NORMALIZED, LSTRIP, RSTRIP, SINGLE_WORD = 32, 64, 128, 256, 512


class LogLevel(IntEnum):
    NONE, DEBUG, INFO, WARN, ERROR, CONT = range(6)


class DeviceType(IntEnum):
    CPU, GPU, IGPU, ACCEL, META = range(5)


class NumaStrategy(IntEnum):
    DISABLED, DISTRIBUTE, ISOLATE, NUMACTL, MIRROR = range(5)


class GgmlType(IntEnum):
    """Those a KV cache can have."""

    F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, BF16 = 0, 1, 2, 3, 6, 7, 8, 20, 30


class Vocab(Handle, struct="llama_vocab"): ...


class Model(Handle, struct="llama_model"): ...


class Context(Handle, struct="llama_context"): ...


class Sampler(Handle, struct="llama_sampler"): ...


class Adapter(Handle, struct="llama_adapter_lora"): ...


class Memory(Handle, struct="llama_memory_i"): ...


class Threadpool(Handle, struct="ggml_threadpool"): ...


class Device(Handle, struct="ggml_backend_device"): ...


class Backend(Handle, struct="ggml_backend_reg"): ...


class BufferType(Handle, struct="ggml_backend_buffer_type"): ...


class Gguf(Handle, struct="gguf_context"): ...


class llama_token_data(Structure):
    _fields_ = [("id", c_int32), ("logit", c_float), ("p", c_float)]


class llama_token_data_array(Structure):
    _fields_ = [("data", POINTER(llama_token_data)), ("size", c_size_t), ("selected", c_int64), ("sorted", c_bool)]


class llama_logit_bias(Structure):
    _fields_ = [("token", c_int32), ("bias", c_float)]


class llama_chat_message(Structure):
    _fields_ = [("role", c_char_p), ("content", c_char_p)]


class llama_batch(Structure):
    _fields_ = [
        ("n_tokens", c_int32),
        ("token", i32_p),
        ("embd", f32_p),
        ("pos", i32_p),
        ("n_seq_id", i32_p),
        ("seq_id", i32_pp),
        ("logits", i8_p),
    ]


class _KvOverrideValue(Union):
    _fields_ = [("val_i64", c_int64), ("val_f64", c_double), ("val_bool", c_bool), ("val_str", c_char * 128)]


class llama_model_kv_override(Structure):
    _anonymous_ = ("value",)
    _fields_ = [("tag", c_int32), ("key", c_char * 128), ("value", _KvOverrideValue)]


class llama_model_tensor_buft_override(Structure):
    _fields_ = [("pattern", c_char_p), ("buft", BufferType)]


class llama_model_params(Structure):
    _fields_ = [
        ("devices", device_p),
        ("tensor_buft_overrides", POINTER(llama_model_tensor_buft_override)),
        ("n_gpu_layers", c_int32),
        ("split_mode", c_int32),
        ("load_mode", c_int32),
        ("lazy_mode", c_int32),
        ("main_gpu", c_int32),
        ("tensor_split", f32_p),
        ("progress_callback", llama_progress_callback),
        ("progress_callback_user_data", c_void_p),
        ("kv_overrides", POINTER(llama_model_kv_override)),
        ("vocab_only", c_bool),
        ("check_tensors", c_bool),
        ("use_extra_bufts", c_bool),
        ("no_host", c_bool),
        ("no_alloc", c_bool),
        ("load_mtp", c_bool),
    ]


class llama_context_params(Structure):
    _fields_ = [
        ("n_ctx", c_uint32),
        ("n_batch", c_uint32),
        ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32),
        ("n_rs_seq", c_uint32),
        ("n_outputs_max", c_uint32),
        ("n_outputs_max_per_seq", c_uint32),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("ctx_type", c_int32),
        ("rope_scaling_type", c_int32),
        ("pooling_type", c_int32),
        ("attention_type", c_int32),
        ("flash_attn_type", c_int32),
        ("rope_freq_base", c_float),
        ("rope_freq_scale", c_float),
        ("yarn_ext_factor", c_float),
        ("yarn_attn_factor", c_float),
        ("yarn_beta_fast", c_float),
        ("yarn_beta_slow", c_float),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        ("cb_eval", c_void_p),
        ("cb_eval_user_data", c_void_p),
        ("type_k", c_int32),
        ("type_v", c_int32),
        ("abort_callback", ggml_abort_callback),
        ("abort_callback_data", c_void_p),
        ("embeddings", c_bool),
        ("offload_kqv", c_bool),
        ("no_perf", c_bool),
        ("op_offload", c_bool),
        ("swa_full", c_bool),
        ("kv_unified", c_bool),
        ("samplers", c_void_p),
        ("n_samplers", c_size_t),
        ("ctx_other", Context),
    ]


class gguf_init_params(Structure):
    _fields_ = [("no_alloc", c_bool), ("ctx", c_void_p)]


class llama_sampler_chain_params(Structure):
    _fields_ = [("no_perf", c_bool)]


class llama_perf_context_data(Structure):
    _fields_ = [
        ("t_start_ms", c_double),
        ("t_load_ms", c_double),
        ("t_p_eval_ms", c_double),
        ("t_eval_ms", c_double),
        ("n_p_eval", c_int32),
        ("n_eval", c_int32),
        ("n_reused", c_int32),
    ]


# fmt: off
# the library and its backends
@c
def llama_version() -> string: ...
@c
def llama_backend_init() -> None: ...
@c
def llama_backend_free() -> None: ...
@c
def llama_numa_init(numa: i32) -> None: ...
@c
def llama_time_us() -> i64: ...
@c
def llama_max_devices() -> size_t: ...
@c
def llama_max_parallel_sequences() -> size_t: ...
@c
def llama_max_tensor_buft_overrides() -> size_t: ...
@c
def llama_supports_mmap() -> bool: ...
@c
def llama_supports_mlock() -> bool: ...
@c
def llama_supports_gpu_offload() -> bool: ...
@c
def llama_supports_rpc() -> bool: ...
@c
def llama_print_system_info() -> string: ...
@c
def llama_log_set(log_callback: ggml_log_callback, user_data: void_p) -> None: ...
@c
def ggml_set_abort_callback(callback: ggml_abort_callback_t) -> ggml_abort_callback_t: ...
@c
def ggml_backend_load(path: string) -> Backend: ...
@c
def ggml_backend_load_all() -> None: ...
@c
def ggml_backend_load_all_from_path(dir_path: string) -> None: ...
@c
def ggml_backend_reg_count() -> size_t: ...
@c
def ggml_backend_reg_get(index: size_t) -> Backend: ...
@c
def ggml_backend_reg_by_name(name: string) -> Backend: ...
@c
def ggml_backend_reg_name(reg: Backend) -> string: ...
@c
def ggml_backend_reg_get_proc_address(reg: Backend, name: string) -> void_p: ...
@c
def ggml_backend_register(reg: Backend) -> None: ...
@c
def ggml_backend_dev_count() -> size_t: ...
@c
def ggml_backend_dev_get(index: size_t) -> Device: ...
@c
def ggml_backend_dev_by_name(name: string) -> Device: ...
@c
def ggml_backend_dev_name(device: Device) -> string: ...
@c
def ggml_backend_dev_description(device: Device) -> string: ...
@c
def ggml_backend_dev_memory(device: Device, free: size_p, total: size_p) -> None: ...
@c
def ggml_backend_dev_type(device: Device) -> i32: ...
@c
def ggml_backend_dev_buffer_type(device: Device) -> BufferType: ...
@c
def ggml_backend_buft_name(buft: BufferType) -> string: ...

# model files
@c
def gguf_init_from_file(fname: string, params: gguf_init_params) -> Gguf: ...
@c
def gguf_free(ctx: Gguf) -> None: ...
@c
def gguf_find_tensor(ctx: Gguf, name: string) -> i64: ...

# the model
@c
def llama_model_default_params() -> llama_model_params: ...
@c
def llama_model_load_from_file(path_model: string, params: llama_model_params) -> Model: ...
@c
def llama_model_load_from_splits(paths: string_p, n_paths: size_t, params: llama_model_params) -> Model: ...
@c
def llama_model_free(model: Model) -> None: ...
@c
def llama_model_get_vocab(model: Model) -> Vocab: ...
@c
def llama_model_rope_type(model: Model) -> i32: ...
@c
def llama_model_n_ctx_train(model: Model) -> i32: ...
@c
def llama_model_n_embd(model: Model) -> i32: ...
@c
def llama_model_n_embd_inp(model: Model) -> i32: ...
@c
def llama_model_n_embd_out(model: Model) -> i32: ...
@c
def llama_model_n_layer(model: Model) -> i32: ...
@c
def llama_model_n_layer_nextn(model: Model) -> i32: ...
@c
def llama_model_n_head(model: Model) -> i32: ...
@c
def llama_model_n_head_kv(model: Model) -> i32: ...
@c
def llama_model_n_swa(model: Model) -> i32: ...
@c
def llama_model_n_cls_out(model: Model) -> u32: ...
@c
def llama_model_cls_label(model: Model, i: u32) -> string: ...
@c
def llama_model_meta_val_str(model: Model, key: string, buf: char_p, buf_size: size_t) -> i32: ...
@c
def llama_model_meta_count(model: Model) -> i32: ...
@c
def llama_model_meta_key_by_index(model: Model, i: i32, buf: char_p, buf_size: size_t) -> i32: ...
@c
def llama_model_meta_val_str_by_index(model: Model, i: i32, buf: char_p, buf_size: size_t) -> i32: ...
@c
def llama_model_desc(model: Model, buf: char_p, buf_size: size_t) -> i32: ...
@c
def llama_model_ftype(model: Model) -> i32: ...
@c
def llama_ftype_name(ftype: i32) -> string: ...
@c
def llama_model_size(model: Model) -> u64: ...
@c
def llama_model_n_params(model: Model) -> u64: ...
@c
def llama_model_chat_template(model: Model, name: string) -> string: ...
@c
def llama_model_has_encoder(model: Model) -> bool: ...
@c
def llama_model_has_decoder(model: Model) -> bool: ...
@c
def llama_model_decoder_start_token(model: Model) -> i32: ...
@c
def llama_model_is_recurrent(model: Model) -> bool: ...
@c
def llama_model_is_hybrid(model: Model) -> bool: ...
@c
def llama_model_is_diffusion(model: Model) -> bool: ...

# adapters
@c
def llama_adapter_lora_init(model: Model, path_lora: string) -> Adapter: ...
@c
def llama_adapter_lora_free(adapter: Adapter) -> None: ...
@c
def llama_adapter_meta_val_str(adapter: Adapter, key: string, buf: char_p, buf_size: size_t) -> i32: ...
@c
def llama_adapter_meta_count(adapter: Adapter) -> i32: ...
@c
def llama_adapter_meta_key_by_index(adapter: Adapter, i: i32, buf: char_p, buf_size: size_t) -> i32: ...
@c
def llama_adapter_meta_val_str_by_index(adapter: Adapter, i: i32, buf: char_p, buf_size: size_t) -> i32: ...
@c
def llama_adapter_get_alora_n_invocation_tokens(adapter: Adapter) -> u64: ...
@c
def llama_adapter_get_alora_invocation_tokens(adapter: Adapter) -> i32_p: ...
@c
def llama_set_adapters_lora(ctx: Context, adapters: adapter_p, n_adapters: size_t, scales: f32_p) -> i32: ...
@c
def llama_set_adapter_cvec(ctx: Context, data: f32_p, len: size_t, n_embd: i32, il_start: i32, il_end: i32) -> i32: ...

# the context
@c
def llama_context_default_params() -> llama_context_params: ...
@c
def llama_init_from_model(model: Model, params: llama_context_params) -> Context: ...
@c
def llama_free(ctx: Context) -> None: ...
@c
def llama_n_ctx(ctx: Context) -> u32: ...
@c
def llama_n_ctx_seq(ctx: Context) -> u32: ...
@c
def llama_n_batch(ctx: Context) -> u32: ...
@c
def llama_n_ubatch(ctx: Context) -> u32: ...
@c
def llama_n_seq_max(ctx: Context) -> u32: ...
@c
def llama_n_rs_seq(ctx: Context) -> u32: ...
@c
def llama_get_memory(ctx: Context) -> Memory: ...
@c
def llama_pooling_type(ctx: Context) -> i32: ...
@c
def llama_set_n_threads(ctx: Context, n_threads: i32, n_threads_batch: i32) -> None: ...
@c
def llama_n_threads(ctx: Context) -> i32: ...
@c
def llama_n_threads_batch(ctx: Context) -> i32: ...
@c
def llama_attach_threadpool(ctx: Context, threadpool: Threadpool, threadpool_batch: Threadpool) -> None: ...
@c
def llama_detach_threadpool(ctx: Context) -> None: ...
@c
def llama_set_embeddings(ctx: Context, embeddings: bool) -> None: ...
@c
def llama_set_causal_attn(ctx: Context, causal_attn: bool) -> None: ...
@c
def llama_get_causal_attn(ctx: Context) -> bool: ...
@c
def llama_set_warmup(ctx: Context, warmup: bool) -> None: ...
@c
def llama_set_abort_callback(ctx: Context, abort_callback: ggml_abort_callback, data: void_p) -> None: ...
@c
def llama_encode(ctx: Context, batch: llama_batch) -> i32: ...
@c
def llama_decode(ctx: Context, batch: llama_batch) -> i32: ...
@c
def llama_synchronize(ctx: Context) -> None: ...
@c
def llama_get_logits(ctx: Context) -> f32_p: ...
@c
def llama_get_logits_ith(ctx: Context, i: i32) -> f32_p: ...
@c
def llama_get_embeddings(ctx: Context) -> f32_p: ...
@c
def llama_get_embeddings_ith(ctx: Context, i: i32) -> f32_p: ...
@c
def llama_get_embeddings_seq(ctx: Context, seq_id: i32) -> f32_p: ...
@c
def llama_perf_context(ctx: Context) -> llama_perf_context_data: ...
@c
def llama_perf_context_reset(ctx: Context) -> None: ...

# memory and state
@c
def llama_memory_clear(mem: Memory, data: bool) -> None: ...
@c
def llama_memory_seq_rm(mem: Memory, seq_id: i32, p0: i32, p1: i32) -> bool: ...
@c
def llama_memory_seq_cp(mem: Memory, seq_id_src: i32, seq_id_dst: i32, p0: i32, p1: i32) -> None: ...
@c
def llama_memory_seq_keep(mem: Memory, seq_id: i32) -> None: ...
@c
def llama_memory_seq_add(mem: Memory, seq_id: i32, p0: i32, p1: i32, delta: i32) -> None: ...
@c
def llama_memory_seq_div(mem: Memory, seq_id: i32, p0: i32, p1: i32, d: i32) -> None: ...
@c
def llama_memory_seq_pos_min(mem: Memory, seq_id: i32) -> i32: ...
@c
def llama_memory_seq_pos_max(mem: Memory, seq_id: i32) -> i32: ...
@c
def llama_memory_can_shift(mem: Memory) -> bool: ...
@c
def llama_state_seq_get_size_ext(ctx: Context, seq_id: i32, flags: u32) -> size_t: ...
@c
def llama_state_seq_get_data_ext(ctx: Context, dst: u8_p, size: size_t, seq_id: i32, flags: u32) -> size_t: ...
@c
def llama_state_seq_set_data_ext(ctx: Context, src: u8_p, size: size_t, dest_seq_id: i32, flags: u32) -> size_t: ...
@c
def llama_state_seq_save_file(ctx: Context, filepath: string, seq_id: i32, tokens: i32_p, n_token_count: size_t) -> size_t: ...  # noqa: E501
@c
def llama_state_seq_load_file(ctx: Context, filepath: string, dest_seq_id: i32, tokens_out: i32_p, n_token_capacity: size_t, n_token_count_out: size_p) -> size_t: ...  # noqa: E501

# the vocabulary
@c
def llama_vocab_type(vocab: Vocab) -> i32: ...
@c
def llama_vocab_n_tokens(vocab: Vocab) -> i32: ...
@c
def llama_vocab_get_text(vocab: Vocab, token: i32) -> string: ...
@c
def llama_vocab_get_score(vocab: Vocab, token: i32) -> f32: ...
@c
def llama_vocab_get_attr(vocab: Vocab, token: i32) -> i32: ...
@c
def llama_vocab_is_eog(vocab: Vocab, token: i32) -> bool: ...
@c
def llama_vocab_is_control(vocab: Vocab, token: i32) -> bool: ...
@c
def llama_vocab_bos(vocab: Vocab) -> i32: ...
@c
def llama_vocab_eos(vocab: Vocab) -> i32: ...
@c
def llama_vocab_eot(vocab: Vocab) -> i32: ...
@c
def llama_vocab_sep(vocab: Vocab) -> i32: ...
@c
def llama_vocab_nl(vocab: Vocab) -> i32: ...
@c
def llama_vocab_pad(vocab: Vocab) -> i32: ...
@c
def llama_vocab_mask(vocab: Vocab) -> i32: ...
@c
def llama_vocab_get_add_bos(vocab: Vocab) -> bool: ...
@c
def llama_vocab_get_add_eos(vocab: Vocab) -> bool: ...
@c
def llama_vocab_get_add_sep(vocab: Vocab) -> bool: ...
@c
def llama_vocab_get_suppress_tokens(vocab: Vocab, n_suppress_tokens: i32_p) -> i32_p: ...
@c
def llama_vocab_fim_pre(vocab: Vocab) -> i32: ...
@c
def llama_vocab_fim_suf(vocab: Vocab) -> i32: ...
@c
def llama_vocab_fim_mid(vocab: Vocab) -> i32: ...
@c
def llama_vocab_fim_pad(vocab: Vocab) -> i32: ...
@c
def llama_vocab_fim_rep(vocab: Vocab) -> i32: ...
@c
def llama_vocab_fim_sep(vocab: Vocab) -> i32: ...
@c
def llama_tokenize(vocab: Vocab, text: string, text_len: i32, tokens: i32_p, n_tokens_max: i32, add_special: bool, parse_special: bool) -> i32: ...  # noqa: E501
@c
def llama_token_to_piece(vocab: Vocab, token: i32, buf: char_p, length: i32, lstrip: i32, special: bool) -> i32: ...
@c
def llama_detokenize(vocab: Vocab, tokens: i32_p, n_tokens: i32, text: char_p, text_len_max: i32, remove_special: bool, unparse_special: bool) -> i32: ...  # noqa: E501
@c
def llama_chat_apply_template(tmpl: string, chat: chat_message_p, n_msg: size_t, add_ass: bool, buf: char_p, length: i32) -> i32: ...  # noqa: E501

# samplers
@c
def llama_sampler_chain_default_params() -> llama_sampler_chain_params: ...
@c
def llama_sampler_chain_init(params: llama_sampler_chain_params) -> Sampler: ...
@c
def llama_sampler_chain_add(chain: Sampler, smpl: Sampler) -> None: ...
@c
def llama_sampler_chain_get(chain: Sampler, i: i32) -> Sampler: ...
@c
def llama_sampler_chain_n(chain: Sampler) -> i32: ...
@c
def llama_sampler_chain_remove(chain: Sampler, i: i32) -> Sampler: ...
@c
def llama_sampler_name(smpl: Sampler) -> string: ...
@c
def llama_sampler_accept(smpl: Sampler, token: i32) -> None: ...
@c
def llama_sampler_apply(smpl: Sampler, cur_p: token_data_array_p) -> None: ...
@c
def llama_sampler_sample(smpl: Sampler, ctx: Context, idx: i32) -> i32: ...
@c
def llama_sampler_reset(smpl: Sampler) -> None: ...
@c
def llama_sampler_clone(smpl: Sampler) -> Sampler: ...
@c
def llama_sampler_copy(src: Sampler, dst: Sampler) -> None: ...
@c
def llama_sampler_free(smpl: Sampler) -> None: ...
@c
def llama_sampler_get_seed(smpl: Sampler) -> u32: ...
@c
def llama_sampler_init_greedy() -> Sampler: ...
@c
def llama_sampler_init_dist(seed: u32) -> Sampler: ...
@c
def llama_sampler_init_top_k(k: i32) -> Sampler: ...
@c
def llama_sampler_init_top_p(p: f32, min_keep: size_t) -> Sampler: ...
@c
def llama_sampler_init_min_p(p: f32, min_keep: size_t) -> Sampler: ...
@c
def llama_sampler_init_typical(p: f32, min_keep: size_t) -> Sampler: ...
@c
def llama_sampler_init_temp(t: f32) -> Sampler: ...
@c
def llama_sampler_init_temp_ext(t: f32, delta: f32, exponent: f32) -> Sampler: ...
@c
def llama_sampler_init_xtc(p: f32, t: f32, min_keep: size_t, seed: u32) -> Sampler: ...
@c
def llama_sampler_init_top_n_sigma(n: f32) -> Sampler: ...
@c
def llama_sampler_init_mirostat(n_vocab: i32, seed: u32, tau: f32, eta: f32, m: i32) -> Sampler: ...
@c
def llama_sampler_init_mirostat_v2(seed: u32, tau: f32, eta: f32) -> Sampler: ...
@c
def llama_sampler_init_grammar(vocab: Vocab, grammar_str: string, grammar_root: string) -> Sampler: ...
@c
def llama_sampler_init_grammar_lazy_patterns(vocab: Vocab, grammar_str: string, grammar_root: string, trigger_patterns: string_p, num_trigger_patterns: size_t, trigger_tokens: i32_p, num_trigger_tokens: size_t) -> Sampler: ...  # noqa: E501
@c
def llama_sampler_init_penalties(n_vocab: i32, penalty_last_n: i32, penalty_repeat: f32, penalty_freq: f32, penalty_present: f32) -> Sampler: ...  # noqa: E501
@c
def llama_sampler_init_dry(vocab: Vocab, dry_multiplier: f32, dry_base: f32, dry_allowed_length: i32, dry_penalty_last_n: i32, seq_breakers: string_p, num_breakers: size_t) -> Sampler: ...  # noqa: E501
@c
def llama_sampler_init_adaptive_p(target: f32, decay: f32, seed: u32) -> Sampler: ...
@c
def llama_sampler_init_logit_bias(n_vocab: i32, n_logit_bias: i32, logit_bias: logit_bias_p) -> Sampler: ...
@c
def llama_sampler_init_infill(vocab: Vocab) -> Sampler: ...
