"""Builds the prompt caches that the configuration asks for."""

import logging

from engine.adapters import Adapters
from engine.archive import Archive
from engine.checkpoints import Checkpoints
from engine.diskcache import DiskCache
from engine.hostcache import MIB, HostCache, automatic_limit
from engine.identity import Identity, model_digest
from engine.memory import Memory
from engine.slot import Slot
from engine.times import now_ms
from ipc.config import ConfigError, EngineSection, ModelSection

log = logging.getLogger(__name__)

_NO_LIMIT = 1 << 50  # bytes
_CHECKPOINTS_WITHOUT_CACHE = 1 << 30  # bytes for the checkpoints of all slots when there is no host cache


def open_archive(settings: EngineSection, slots: list[Slot], memory: Memory, identity: Identity) -> Archive:
    """Host and disk cache as configured. ConfigError when the folder cannot be used."""
    limit = host_limit(settings)
    host = HostCache(limit) if limit else None
    disk, where = None, _size(limit) + " of host memory"
    if settings.cache_disk is not None:
        disk = _open_disk(settings.cache_disk, settings.cache_disk_limit * MIB, identity)
        where += (
            f", {_size(settings.cache_disk_limit * MIB)} in {settings.cache_disk}: {len(disk)} prompts of this model"
        )
    log.info("prompt cache: %s", where)
    return Archive(slots, memory, host, disk, now_ms, move_idle=settings.cache_idle_slots and settings.unified)


def open_checkpoints(settings: EngineSection, memory: Memory, n_ubatch: int) -> Checkpoints:
    """Checkpoints as configured; together they may use half of what the host cache may."""
    n_bytes = (host_limit(settings) // 2 or _CHECKPOINTS_WITHOUT_CACHE) // settings.n_slots
    limit = 0 if settings.swa_full else settings.ctx_checkpoints
    step = settings.checkpoint_min_step
    return Checkpoints(memory, limit=limit, min_step=step, n_ubatch=n_ubatch, n_bytes=n_bytes)


def host_limit(settings: EngineSection) -> int:
    """Bytes of the host cache."""
    return automatic_limit() if settings.cache_ram is None else settings.cache_ram * MIB


def _size(n_bytes: int) -> str:
    return "any amount" if n_bytes >= _NO_LIMIT else f"{n_bytes // MIB} MiB" if n_bytes else "nothing"


def _open_disk(folder: str, limit: int, identity: Identity) -> DiskCache:
    try:
        return DiskCache(folder, limit, identity)
    except OSError as problem:
        raise ConfigError(f"engine.cache_disk: {problem}") from problem


def identify(model: ModelSection, settings: EngineSection, adapters: Adapters) -> Identity:
    """What KV that is kept in files belongs to."""
    return Identity(model_digest(model.path or "", settings, model.override_kv), adapters)
