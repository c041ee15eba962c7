"""Builds an engine from the configuration: model, context, slots and everything between them."""

import logging
import os
import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine import llama
from engine.admission import Admission, Limits
from engine.batch import Batch
from engine.candidates import Candidates
from engine.compiler import Compiler
from engine.context import Context
from engine.controls import Controls
from engine.decoder import Decoder
from engine.emitter import Emitter
from engine.loop import Engine
from engine.memory import Memory
from engine.metrics import Metrics
from engine.model import Model
from engine.outbox import Outbox
from engine.placement import Placement
from engine.scheduler import Scheduler
from engine.sequences import Sequences
from engine.slot import Slot
from engine.speculation import Speculation, drafters
from engine.times import now_ms
from ipc.config import Config, EngineSection
from ipc.messages import PROTOCOL, Welcome
from ipc.server import Server
from ipc.slab import Slab

log = logging.getLogger(__name__)

_ROWS_PER_SLOT = 4  # logits rows a slot may have under way before they travel inside messages


@dataclass(slots=True)
class Parts:
    """What `close` must take apart again, in this order."""

    engine: Engine
    context: Context
    model: Model

    def close(self) -> None:
        self.context.close()
        self.model.close()


def open_context(model: Model, settings: EngineSection) -> Context:
    """The context for `settings`; ModelError says why it cannot be had."""
    threads = settings.threads or default_threads()
    return Context(
        model,
        n_ctx=context_size(model, settings),
        n_batch=settings.batch_size,
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


def row_count(settings: EngineSection) -> int:
    return settings.slab_rows if settings.slab_rows is not None else _ROWS_PER_SLOT * settings.n_slots


def warm_up(context: Context, model: Model) -> None:
    """One throw-away decode, so that the first request does not pay for page faults and graph building."""
    vocab = model.vocab
    token = next((t for t in (vocab.bos, vocab.eos) if t is not None), 0)
    batch = Batch(1)
    batch.add(np.array([token], np.int32), 0, 0, "last")
    if context.decode(batch) != 0:
        raise RuntimeError("the test decode failed: this model cannot be served with these settings")
    context.clear()


def assemble(config: Config, model: Model, context: Context, server: Server, slab: Slab) -> Engine:
    """Connect the parts; nothing runs yet."""
    settings = config.engine
    vocab = model.vocab
    n_slot = slot_context(model, context, settings)
    slots = [Slot(i, n_slot) for i in range(settings.n_slots)]
    memory = Memory(
        context,
        slots,
        unified=settings.unified,
        n_cells=context.n_ctx,
        n_swa=0 if settings.swa_full else model.n_swa,
        partial=not (model.is_recurrent or model.is_hybrid),
    )
    metrics, outbox, candidates = Metrics(), Outbox(server), Candidates(vocab.n_tokens)
    emitter = Emitter(vocab, slab, outbox, show_special=settings.special)
    sequences = Sequences(emitter, metrics)
    scheduler = Scheduler(context.n_ubatch, settings.target_gap_ms)
    make_drafters = drafters(config.speculative) if memory.can_cut else None
    speculation = Speculation(make_drafters, metrics, context.n_ubatch)
    limits = Limits(len(slots), n_slot, settings.max_queue)
    decoder = Decoder(
        context=context,
        batch=Batch(context.n_batch),
        slots=slots,
        memory=memory,
        speculation=speculation,
        sequences=sequences,
        emitter=emitter,
        metrics=metrics,
        cost=scheduler.cost,
        clock=now_ms,
        context_shift=settings.context_shift and context.can_shift,
    )
    return Engine(
        welcome=_welcome(model, context, slots, slab),
        server=server,
        slab=slab,
        slots=slots,
        admission=Admission(vocab, candidates, Compiler(vocab, candidates), limits, now_ms),
        sequences=sequences,
        placement=Placement(slots, memory, sequences, emitter, now_ms, settings.slot_similarity),
        scheduler=scheduler,
        speculation=speculation,
        decoder=decoder,
        controls=Controls(slots, memory, metrics, sequences, vocab, server),
        outbox=outbox,
    )


def _welcome(model: Model, context: Context, slots: list[Slot], slab: Slab) -> Welcome:
    info = model.info()
    info.can_shift = context.can_shift
    return Welcome(
        protocol=PROTOCOL,
        boot=secrets.token_hex(8),
        model=info,
        n_slots=len(slots),
        n_ctx=context.n_ctx,
        n_ctx_slot=slots[0].n_ctx,
        n_batch=context.n_batch,
        n_ubatch=context.n_ubatch,
        slab=slab.path,
        build=(llama.llama_version() or b"").decode(),
        pid=os.getpid(),
    )


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
