"""Saves, restores and erases slots on request. Files are read and written on another thread."""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine import slotfile
from engine.archive import Archive
from engine.identity import Identity
from engine.memory import Memory
from engine.slot import Slot
from engine.slotfile import SlotFile, SlotFileError
from engine.snapshot import Snapshot
from ipc.messages import Error, Failure, SlotAction, SlotReply
from ipc.server import Server

log = logging.getLogger(__name__)

_DISABLED = "This server does not support slots action. Start it with `--slot-save-path`"


@dataclass(slots=True, eq=False)
class _Job:
    """An action on its way. It waits for its slot to be idle, and for its file."""

    client: bytes
    action: SlotAction
    since: float
    path: Path = Path()
    n_tokens: int = 0
    writing: "Future[int] | None" = None
    reading: "Future[SlotFile] | None" = None

    @property
    def waits_for_file(self) -> bool:
        future = self.writing or self.reading
        return future is not None and not future.done()


@dataclass(eq=False)
class SlotActions:
    """A restore that fails leaves the slot as it was."""

    folder: str | None
    slots: list[Slot]
    memory: Memory
    archive: Archive
    identity: Identity
    n_vocab: int
    server: Server
    clock: Callable[[], float]
    _jobs: list[_Job] = field(default_factory=list)
    _files: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "slot-files"))

    @property
    def busy(self) -> bool:
        """Whether a file is being read or written."""
        return any(job.waits_for_file for job in self._jobs)

    def take(self, client: bytes, action: SlotAction) -> None:
        """Begin an action; it is answered by `run`, now or later."""
        job = _Job(client, action, self.clock())
        asked = Path(action.path)
        if not 0 <= action.slot < len(self.slots):
            self._fail(job, 400, "invalid_request_error", "Invalid slot ID")
        elif action.action not in ("save", "restore", "erase"):
            self._fail(job, 400, "invalid_request_error", "Invalid action")
        elif self.folder is None and action.action != "erase":
            self._fail(job, 501, "not_supported_error", _DISABLED)
        elif action.action != "erase" and (not asked.name or asked.parent not in (Path(), Path(self.folder or ""))):
            self._fail(job, 400, "invalid_request_error", "Invalid filename")
        else:
            job.path = Path(self.folder or "", asked.name)
            if action.action == "restore":
                job.reading = self._files.submit(slotfile.read, job.path)
            self._jobs.append(job)

    def run(self) -> None:
        """Go on with every action that can: its file is read or written, its slot is idle."""
        self._jobs = [job for job in self._jobs if not self._is_done(job)]

    def close(self) -> None:
        """Finish what is being written."""
        self._files.shutdown(wait=True)

    def _is_done(self, job: _Job) -> bool:
        """Do the next part of an action; whether it is answered now."""
        slot = self.slots[job.action.slot]
        if job.waits_for_file or not (job.writing or slot.idle):
            return False
        if job.writing is not None:
            self._written(job, job.writing)
        elif job.reading is not None:
            self._restore(job, job.reading, slot)
        elif job.action.action == "save":
            return self._save(job, slot)
        else:
            n = slot.n_past
            self.memory.clear(slot)
            self._reply(job, n, 0)
        return True

    def _save(self, job: _Job, slot: Slot) -> bool:
        try:
            snapshot = self.memory.snapshot(slot)
        except MemoryError:
            self._fail(job, 500, "server_error", "Unable to save slot")
            return True
        if snapshot is None:
            self._fail(job, 501, "not_supported_error", "the state of this slot cannot be saved")
            return True
        name = self.identity.name(snapshot.adapters[0])
        file = SlotFile(snapshot, self.identity.model, name, slot.n_exact)
        job.n_tokens = slot.n_past
        job.writing = self._files.submit(slotfile.write, job.path, file)
        return False

    def _written(self, job: _Job, writing: "Future[int]") -> None:
        try:
            self._reply(job, job.n_tokens, writing.result())
        except (OSError, MemoryError) as problem:
            log.error("slot %d could not be saved: %s", job.action.slot, problem)
            self._fail(job, 500, "server_error", "Unable to save slot")

    def _restore(self, job: _Job, reading: "Future[SlotFile]", slot: Slot) -> None:
        try:
            file = reading.result()
            self._put(slot, self._checked(slot, file))
            slot.limit_exact(file.n_exact)
            self._reply(job, slot.n_past, file.n_bytes)
        except (SlotFileError, OSError, MemoryError) as problem:
            text = str(problem) if isinstance(problem, SlotFileError) else slotfile.NO_SPACE
            log.warning("%s is not restored: %s", job.path, problem)
            self._fail(job, 400, "invalid_request_error", f"Unable to restore slot: {text}")

    def _checked(self, slot: Slot, file: SlotFile) -> Snapshot:
        """The file's snapshot under the adapters of this process."""
        tokens = file.snapshot.tokens
        if len(tokens) and (int(tokens.min()) < 0 or int(tokens.max()) >= self.n_vocab):
            raise SlotFileError(slotfile.INVALID_TOKENS)
        if len(tokens) > slot.n_ctx:
            raise SlotFileError(slotfile.DOES_NOT_FIT)
        key = self.identity.key(file.adapters)
        room = self.memory.available([other for other in self.slots if not other.idle])
        if file.identity != self.identity.model or key is None or len(tokens) > room:
            raise SlotFileError(slotfile.NO_SPACE)
        return replace(file.snapshot, adapters=(key, file.snapshot.adapters[1]))

    def _put(self, slot: Slot, snapshot: Snapshot) -> None:
        """Replace what the slot holds; if that fails, put it back."""
        before = self.memory.snapshot(slot) if slot.n_past else None
        n_exact = slot.n_exact
        if not len(snapshot.tokens):
            self.memory.clear(slot)
        elif not self.archive.restore(snapshot, slot):
            if before is not None and self.archive.restore(before, slot):
                slot.limit_exact(n_exact)
            raise SlotFileError(slotfile.NO_SPACE)
        if before is not None and n_exact == len(before.tokens):
            self.archive.add(before)

    def _reply(self, job: _Job, n_tokens: int, n_bytes: int) -> None:
        ms = self.clock() - job.since
        self.server.send(job.client, SlotReply(job.action.id, job.action.slot, n_tokens, n_bytes, ms))

    def _fail(self, job: _Job, code: int, kind: str, text: str) -> None:
        self.server.send(job.client, Failure(job.action.id, Error(code, kind, text)))
