"""Builds an engine from the configuration: model, context, slots and everything between them."""

import logging
import os
import secrets

from engine import control_vector, draft_model, llama
from engine.adapters import Adapters
from engine.admission import Admission, Limits
from engine.archive import Archive
from engine.batch import Batch
from engine.caching import identify, open_archive, open_checkpoints
from engine.candidates import Candidates
from engine.compiler import Compiler
from engine.context import Context
from engine.contexts import default_threads, embedding_batch, embedding_threads, slot_context
from engine.controls import Controls
from engine.decoder import Decoder
from engine.embedder import Embedder
from engine.emitter import Emitter
from engine.loop import Engine
from engine.lora_controls import LoraControls
from engine.memory import Memory
from engine.metrics import Metrics
from engine.model import Model
from engine.outbox import Outbox
from engine.placement import Placement
from engine.reuse import Reuse
from engine.scheduler import Scheduler
from engine.sequences import Sequences
from engine.slot import Slot
from engine.slot_actions import SlotActions
from engine.speculation import Speculation, drafters
from engine.threads import Threads
from engine.threads import available as threads_are_observable
from engine.times import now_ms
from ipc.config import Config, EngineSection
from ipc.messages import PROTOCOL, Welcome
from ipc.server import Server
from ipc.slab import Slab

log = logging.getLogger(__name__)

_ROWS_PER_SLOT = 4  # logits rows a slot may have under way before they travel inside messages


def row_count(settings: EngineSection) -> int:
    return settings.slab_rows if settings.slab_rows is not None else _ROWS_PER_SLOT * settings.n_slots


def assemble(
    config: Config, model: Model, context: Context, embedding: list[Context], server: Server, slab: Slab
) -> Engine:
    """Connect the parts; nothing runs yet. `embedding` begins with `context` itself for a model that makes no text."""
    settings = config.engine
    vocab = model.vocab
    n_slot = slot_context(model, context, settings)
    slots = [Slot(i, n_slot) for i in range(settings.n_slots)]
    memory = _memory(model, context, settings, slots)
    adapters = load_adapters(model, context, settings)
    identity = identify(config.model, settings, adapters)
    text = context not in embedding
    archive = open_archive(settings, slots, memory, identity) if text else Archive(slots, memory, None, None, now_ms)
    checkpoints = open_checkpoints(settings, memory, context.n_ubatch)
    reuse = Reuse(slots, memory, archive, checkpoints)
    metrics, outbox, candidates = Metrics(), Outbox(server), Candidates(vocab.n_tokens)
    emitter = Emitter(vocab, slab, outbox, show_special=settings.special)
    sequences = Sequences(emitter, metrics)
    lora = LoraControls(adapters, sequences, server, model.load_adapter)
    actions = SlotActions(settings.slot_save_path, slots, memory, archive, identity, vocab.n_tokens, server, now_ms)
    scheduler = Scheduler(max(context.n_ubatch, settings.n_slots), settings.target_gap_ms, _tile_from(model))
    speculation = _speculation(config, model, context, memory, metrics)
    shifts = settings.context_shift and context.can_shift
    n_endless = model.n_ctx_train if shifts else None
    limits = Limits(len(slots), n_slot, settings.max_queue, text=text, n_endless=n_endless)
    decoder = Decoder(
        context=context,
        batch=Batch(context.n_batch),
        slots=slots,
        memory=memory,
        archive=archive,
        speculation=speculation,
        adapters=adapters,
        sequences=sequences,
        emitter=emitter,
        metrics=metrics,
        cost=scheduler.cost,
        clock=now_ms,
        context_shift=shifts,
    )
    return Engine(
        welcome=_welcome(model, context, embedding, slots, slab),
        server=server,
        slab=slab,
        slots=slots,
        admission=Admission(vocab, candidates, Compiler(vocab), adapters, limits, now_ms),
        sequences=sequences,
        placement=Placement(slots, memory, reuse, sequences, emitter, now_ms, settings.slot_similarity),
        archive=archive,
        checkpoints=checkpoints,
        scheduler=scheduler,
        speculation=speculation,
        decoder=decoder,
        embedder=_embedder(embedding, settings, slab, outbox, metrics),
        controls=Controls(slots, memory, metrics, sequences, vocab, server, lora, actions),
        outbox=outbox,
        threads=_threads(context, settings),
    )


def _embedder(
    contexts: list[Context], settings: EngineSection, slab: Slab, outbox: Outbox, metrics: Metrics
) -> Embedder | None:
    if not contexts:
        return None
    return Embedder(
        contexts,
        n_threads=embedding_threads(settings),
        n_vocab=contexts[0].model.vocab.n_tokens,
        slab=slab,
        outbox=outbox,
        metrics=metrics,
        target=embedding_batch(contexts, settings),
        max_queue=settings.max_queue,
    )


def _threads(context: Context, settings: EngineSection) -> Threads | None:
    n = settings.threads or default_threads()
    if not settings.threads_adapt or not threads_are_observable():
        return None
    return Threads(context, n, settings.threads_batch or n)


def _memory(model: Model, context: Context, settings: EngineSection, slots: list[Slot]) -> Memory:
    return Memory(
        context,
        slots,
        unified=settings.unified,
        n_cells=context.n_ctx,
        n_swa=model.n_swa,
        partial=not (model.is_recurrent or model.is_hybrid),
    )


def load_adapters(model: Model, context: Context, settings: EngineSection) -> Adapters:
    """The adapters of the configuration, with their scales (0 with `lora_init_without_apply`), and control vectors."""
    adapters = Adapters(context)
    if settings.control_vector:
        directions = control_vector.load(settings.control_vector, model.n_embd, model.n_layer)
        context.set_control_vector(directions, settings.control_vector_layers)
    for entry in settings.lora:
        adapters.add(model.load_adapter(entry.path), 0.0 if settings.lora_init_without_apply else entry.scale)
    return adapters


def _speculation(config: Config, model: Model, context: Context, memory: Memory, metrics: Metrics) -> Speculation:
    """Drafting as configured; off where the memory cannot be cut behind a wrong guess."""
    if not memory.can_cut:
        return Speculation(None, metrics, context.n_ubatch)
    settings, n_slots = config.engine, config.engine.n_slots
    threads = settings.threads or default_threads()
    draft = draft_model.load(config.speculative, model, context, n_slots, threads)
    return Speculation(drafters(config.speculative), metrics, context.n_ubatch, draft)


def _welcome(model: Model, context: Context, embedding: list[Context], slots: list[Slot], slab: Slab) -> Welcome:
    info = model.info()
    info.can_shift = context.can_shift
    if embedding:
        info.pooling = embedding[0].pooling.name.lower()
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
        text=context not in embedding,
        n_embed_tokens=embedding[0].n_ubatch if embedding else None,
        n_scores=model.n_cls_out,
    )


def _tile_from(model: Model) -> int:
    """The position from which attention is a tenth of a token's work.

    Attention multiplies 4 x n_embd x n_layer times for each earlier position, all else 2 x n_params times.
    """
    return model.info().n_params // (20 * model.n_embd * model.n_layer)
