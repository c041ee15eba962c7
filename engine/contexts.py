"""Opens a model's contexts: one for text generation, and one of its own for embeddings."""

import os
from typing import Any

import numpy as np

from engine import library, llama
from engine.batch import Batch
from engine.context import Context
from engine.gguf import ModelError, has_tensor
from engine.model import Model
from ipc.config import EngineSection

_MAX_INPUTS = 64  # in one embedding batch
_BATCH_TOKENS, _THREAD_TOKENS = 128, 64  # of an embedding batch on a CPU: at least, and for each thread
_MAX_INPUT_TOKENS, _MIN_INPUT_TOKENS = 8192, 512  # for one embedding input, unless the physical batch is set
_MAX_LANES = 16  # contexts of an encoder, each of which has buffers for the longest input
_MAX_LOGITS = 1 << 28  # floats
_HEADS = ("cls.output.weight", "cls.weight")
_HEADLESS = "A reranker that answers yes or no as text must be converted so that it has one (cls.output)"


def open_contexts(model: Model, settings: EngineSection, *, ubatch_given: bool) -> tuple[Context, list[Context]]:
    """The context for text and those for embeddings; the same one is first for a model that keeps no memory.

    Such a model can do nothing else, so it gets embeddings without being asked, and several contexts on a CPU (see
    `engine.lanes`). ModelError says what failed.
    """
    if settings.embeddings:
        first = open_embedding_context(model, settings, ubatch_given=ubatch_given)
        if first.has_memory:
            return open_context(model, settings), [first]
    else:
        text = open_context(model, settings)
        if text.has_memory:
            return text, []
        text.close()
        first = open_embedding_context(model, settings, ubatch_given=ubatch_given)
    n = 1 if _offloaded(settings) else min(embedding_threads(settings), _MAX_LANES)
    others = [open_embedding_context(model, settings, ubatch_given=ubatch_given) for _ in range(n - 1)]
    return first, [first, *others]


def open_context(model: Model, settings: EngineSection) -> Context:
    """The context for `settings`; ModelError says why it cannot be had."""
    threads = settings.threads or default_threads()
    return Context(
        model,
        n_ctx=context_size(model, settings),
        n_batch=max(settings.batch_size, settings.n_slots),  # every slot's token goes into every step
        n_ubatch=min(settings.ubatch_size, settings.batch_size),
        n_seq_max=settings.n_slots,
        n_threads=threads,
        n_threads_batch=settings.threads_batch or threads,
        kv_unified=settings.unified,
        flash_attn=settings.flash_attn,
        type_k=settings.cache_type_k,
        type_v=settings.cache_type_v,
        swa_full=settings.swa_full,
        offload_kqv=settings.kv_offload,
        op_offload=settings.op_offload,
        **_rope(settings),
    )


def context_size(model: Model, settings: EngineSection) -> int:
    """Cells of the KV memory (spec/engine.md §2); 0 in the settings means what the model was trained for."""
    per_slot = settings.kv_unified_per_slot
    if not settings.ctx_size and per_slot:
        return per_slot * settings.n_slots
    return settings.ctx_size or model.n_ctx_train


def slot_context(model: Model, context: Context, settings: EngineSection) -> int:
    """Tokens one slot may hold."""
    bounds = [context.n_ctx_seq, model.n_ctx_train]
    if settings.kv_unified_per_slot:
        bounds.append(settings.kv_unified_per_slot)
    return min(bounds)


def default_threads() -> int:
    """One thread per core this process may use."""
    return max(1, len(os.sched_getaffinity(0)))


def open_embedding_context(model: Model, settings: EngineSection, *, ubatch_given: bool) -> Context:
    """A context whose batches are read whole and forgotten. ModelError when it cannot be had.

    Its memory is unified: with a stream per sequence libllama's mean and cls pooling is right for the first sequence
    of a batch only.
    """
    threads = embedding_threads(settings)
    n = min(settings.ubatch_size if ubatch_given else _longest_input(model), model.n_ctx_train)
    context = Context(
        model,
        n_ctx=n,
        n_batch=n,
        n_ubatch=n,
        n_seq_max=_MAX_INPUTS,
        n_threads=threads,
        n_threads_batch=threads,
        kv_unified=True,
        embeddings=True,
        pooling=settings.pooling,
        flash_attn=settings.flash_attn,
        offload_kqv=settings.kv_offload,
        op_offload=settings.op_offload,
        **_rope(settings),
    )
    if context.pooling is llama.PoolingType.RANK and not has_tensor(model.path, _HEADS):
        context.close()
        raise ModelError(f"{model.path}: the model has no classification head, so it cannot rank. {_HEADLESS}")
    return context


def _longest_input(model: Model) -> int:
    """What the model was trained for, unless that takes very much memory: logits are reserved for every token."""
    architecture = model.meta.get("general.architecture", "")
    has_logits = model.meta.get(f"{architecture}.attention.causal") != "false"
    bound = _MAX_LOGITS // model.vocab.n_tokens if has_logits else _MAX_INPUT_TOKENS
    return max(min(bound, _MAX_INPUT_TOKENS), _MIN_INPUT_TOKENS)


def embedding_threads(settings: EngineSection) -> int:
    """Threads that read embeddings, in all contexts together."""
    return settings.threads_batch or settings.threads or default_threads()


def embedding_batch(contexts: list[Context], settings: EngineSection) -> int:
    """Tokens that an embedding batch should have: as many as it takes to keep the processor busy, not more."""
    if _offloaded(settings):
        return contexts[0].n_ubatch
    threads = max(1, embedding_threads(settings) // len(contexts))
    return max(_BATCH_TOKENS, _THREAD_TOKENS * threads)


def _offloaded(settings: EngineSection) -> bool:
    return settings.n_gpu_layers != 0 and library.has_gpu()


def warm_up(context: Context, model: Model) -> None:
    """One throw-away decode, so that the first request does not pay for page faults and graph building."""
    vocab = model.vocab
    token = next((t for t in (vocab.bos, vocab.eos) if t is not None), 0)
    batch = Batch(1)
    batch.add(np.array([token], np.int32), 0, 0, "last")
    code = context.decode(batch) if context.has_memory else context.encode(batch)
    if code != 0:
        raise RuntimeError("the test decode failed: this model cannot be served with these settings")
    if context.has_memory:
        context.clear()


def _rope(settings: EngineSection) -> dict[str, Any]:
    scaling = settings.rope_scaling
    return {
        "rope_scaling_type": llama.RopeScalingType[scaling.upper()] if scaling else None,
        "rope_freq_base": settings.rope_freq_base,
        "rope_freq_scale": settings.rope_freq_scale,
        "yarn_orig_ctx": settings.yarn_orig_ctx,
        "yarn_ext_factor": settings.yarn_ext_factor,
        "yarn_attn_factor": settings.yarn_attn_factor,
        "yarn_beta_slow": settings.yarn_beta_slow,
        "yarn_beta_fast": settings.yarn_beta_fast,
    }
