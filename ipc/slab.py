"""Large float32 rows in shared memory. The engine owns the rows, clients map the file and copy out.

The file is a header of 8-byte words, one generation per row, then the rows; `docs/zeromq.md` gives the offsets.
The header also carries the engine's state and clock, so that a health check is a read of memory.
"""

import errno
import logging
import mmap
import os
import secrets
import struct
import time
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from ipc.messages import RowRef

log = logging.getLogger(__name__)

MAGIC = b"LRDSLAB\0"
VERSION = 1
HEADER = struct.Struct("<8s5Qd4Q")  # see `docs/zeromq.md`
HEADER_BYTES = 128
ALIGN = 64
STATE, BEAT, STEPS, LOAD_PROGRESS, ACTIVE, DRAIN = 2, 4, 5, 6, 11, 12  # indices of the words that change


class State(IntEnum):
    """What the engine is doing."""

    LOADING = 0
    READY = 1
    DRAINING = 2
    STOPPING = 3
    FAILED = 4


class SlabError(Exception):
    """The slab file is missing or is not one."""


class StaleRow(SlabError):
    """The row was given to another vector before it was read."""


class Slab:
    """A mapped slab file; made by `create` (the engine, writes) or `attach` (a client, reads)."""

    def __init__(self, path: str, file: int, writable: bool) -> None:
        """Map the open `file`, whose header must be valid."""
        self.path = path
        status = os.fstat(file)
        self.inode = status.st_ino
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._map = mmap.mmap(file, status.st_size, access=access)
        self.pid, self.n_rows, self.row_floats, rows_at, stride = _check_header(path, self._map)
        view = memoryview(self._map)
        self._words = view[:HEADER_BYTES].cast("Q")
        self._doubles = view[:HEADER_BYTES].cast("d")
        self._generations = view[HEADER_BYTES : HEADER_BYTES + 8 * self.n_rows].cast("Q")
        floats = np.frombuffer(self._map, "<f4", self.n_rows * stride // 4, rows_at)
        self._rows: np.ndarray[Any, np.dtype[np.float32]] = floats.reshape(self.n_rows, stride // 4)
        self._writable = writable
        self._free_rows = list(range(self.n_rows - 1, -1, -1)) if writable else []
        self._owners: list[bytes | None] = [None] * self.n_rows if writable else []
        self._inline_only: set[bytes] = set()

    @classmethod
    def create(cls, path: str, n_rows: int, row_floats: int) -> "Slab":
        """Make the file (mode 0600), replacing a stale one. With too little shared memory it has fewer rows."""
        fresh = f"{path}.{os.getpid()}"
        file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            n_rows = _reserve(fresh, file, n_rows, row_floats)
            os.pwrite(file, _header(n_rows, row_floats), 0)
            slab = cls(path, file, writable=True)
            os.replace(fresh, path)
        except BaseException:
            os.unlink(fresh)
            raise
        finally:
            os.close(file)
        return slab

    @classmethod
    def attach(cls, path: str) -> "Slab":
        """Map the slab of a running engine for reading; raises `SlabError` when there is none."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SlabError(f"slab {path}: {error.strerror}; is the engine running on this machine?") from None
        try:
            if os.fstat(file).st_size < HEADER_BYTES:
                raise SlabError(f"slab {path}: too short to be a slab")
            return cls(path, file, writable=False)
        finally:
            os.close(file)

    def close(self) -> None:
        """Unmap; the engine's side also removes the file, if it is still its own."""
        self._words.release()
        self._doubles.release()
        self._generations.release()
        del self._rows
        self._map.close()
        if self._writable and inode(self.path) == self.inode:
            os.unlink(self.path)

    # header

    @property
    def state(self) -> State:
        """State the engine last wrote; DRAINING instead of READY once the supervisor has announced a stop."""
        state = State(self._words[STATE])
        return State.DRAINING if state is State.READY and self._words[DRAIN] else state

    @state.setter
    def state(self, state: State) -> None:
        self._words[STATE] = state

    @property
    def steps(self) -> int:
        """Decode steps since the engine started."""
        return self._words[STEPS]

    @steps.setter
    def steps(self, steps: int) -> None:
        self._words[STEPS] = steps

    @property
    def load_progress(self) -> float:
        """Share of the model that is loaded, 0 to 1."""
        return self._doubles[LOAD_PROGRESS]

    @load_progress.setter
    def load_progress(self, progress: float) -> None:
        self._doubles[LOAD_PROGRESS] = progress

    @property
    def active(self) -> int:
        """Tasks that have not had their Final yet; a stop waits for them."""
        return self._words[ACTIVE]

    @active.setter
    def active(self, active: int) -> None:
        self._words[ACTIVE] = active

    @property
    def beats(self) -> int:
        """Clock value of the last beat; a value that no longer changes tells of a hang."""
        return self._words[BEAT]

    def beat(self) -> None:
        """Note that the engine is alive now."""
        self._words[BEAT] = time.monotonic_ns()

    def age(self) -> float:
        """Seconds since the last beat."""
        return (time.monotonic_ns() - self._words[BEAT]) / 1e9

    # rows, engine's side

    def put(self, vector: np.ndarray[Any, Any], owner: bytes) -> RowRef:
        """Copy a float32 `vector` into a free row of `owner`; inline when there is none or it does not fit."""
        return self._put([vector], vector.size, owner)

    def put_joined(self, vectors: Sequence[np.ndarray[Any, Any]], owner: bytes) -> list[RowRef]:
        """Copy `vectors`, one after the other, into as few rows as hold them; a vector may go on in the next row."""
        refs: list[RowRef] = []
        group: list[np.ndarray[Any, Any]] = []
        room = self.row_floats
        for rest in vectors:
            while rest.size > room:
                refs.append(self._put([*group, rest[:room]], self.row_floats, owner))
                rest, group, room = rest[room:], [], self.row_floats
            group.append(rest)
            room -= rest.size
        refs.append(self._put(group, self.row_floats - room, owner))
        return refs

    def _put(self, parts: Sequence[np.ndarray[Any, Any]], size: int, owner: bytes) -> RowRef:
        """One row, or an inline one, of `size` floats in `parts`."""
        if not self._free_rows or size > self.row_floats or owner in self._inline_only:
            return RowRef(0, 0, b"".join([part.astype("<f4", copy=False).tobytes() for part in parts]))
        row = self._free_rows.pop()
        generation = self._generations[row] + 1
        self._generations[row] = generation  # before the copy: a late reader of the old vector must see the change
        np.concatenate(parts, out=self._rows[row, :size])
        self._owners[row] = owner
        return RowRef(row, generation, b"", None if size == self.row_floats else size)

    def free(self, row: int, generation: int) -> None:
        """Take a row back. A row that is free or was reused since is left alone."""
        if 0 <= row < self.n_rows and self._owners[row] is not None and self._generations[row] == generation:
            self._owners[row] = None
            self._free_rows.append(row)

    def free_owner(self, owner: bytes) -> None:
        """Take back all rows of a client that is gone."""
        for row, holder in enumerate(self._owners):
            if holder == owner:
                self._owners[row] = None
                self._free_rows.append(row)

    def set_inline(self, owner: bytes, inline: bool) -> None:
        """Let all vectors of `owner` travel inline, because it cannot map the file."""
        (self._inline_only.add if inline else self._inline_only.discard)(owner)

    @property
    def n_used(self) -> int:
        """Rows that wait for their Free."""
        return self.n_rows - len(self._free_rows)

    def owners(self) -> set[bytes]:
        """Clients that hold rows."""
        return {owner for owner in self._owners if owner is not None}

    # rows, client's side

    def get(self, ref: RowRef) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Copy a vector out; raises `StaleRow` when its row was reused."""
        if ref.generation == 0:
            return np.frombuffer(ref.inline, "<f4")
        if not 0 <= ref.row < self.n_rows:
            raise SlabError(f"slab {self.path}: row {ref.row} of {self.n_rows}")
        size = self.row_floats if ref.floats is None else ref.floats
        vector = self._rows[ref.row, :size].copy()
        if self._generations[ref.row] != ref.generation:
            raise StaleRow(f"slab {self.path}: row {ref.row} was reused before it was read")
        return vector


def announce_drain(path: str) -> None:
    """Let everybody who reads the slab at `path` see that the server is about to stop."""
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(file, struct.pack("<Q", 1), 8 * DRAIN)
    finally:
        os.close(file)


def inode(path: str) -> int | None:
    """Inode of `path`, None when there is no such file."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def _layout(n_rows: int, row_floats: int) -> tuple[int, int, int]:
    """Offset of the rows, bytes from row to row, size of the file."""
    rows_at = _align(HEADER_BYTES + 8 * n_rows)
    stride = _align(4 * row_floats)
    return rows_at, stride, rows_at + n_rows * stride


def _align(n_bytes: int) -> int:
    return -(-n_bytes // ALIGN) * ALIGN


def _reserve(path: str, file: int, n_rows: int, row_floats: int) -> int:
    """Reserve the file's memory now, since a full /dev/shm would kill the writer later; returns the rows that fit."""
    wanted = n_rows
    while True:
        try:
            os.posix_fallocate(file, 0, _layout(n_rows, row_floats)[2])
            break
        except OSError as error:
            if error.errno != errno.ENOSPC or n_rows == 0:
                raise SlabError(f"slab {path}: {error.strerror}") from None
        os.ftruncate(file, 0)
        n_rows //= 2
    if n_rows < wanted:
        log.warning("%s: room for %d rows, not %d; others travel inside messages", path, n_rows, wanted)
    return n_rows


def _header(n_rows: int, row_floats: int) -> bytes:
    """The header and the first generations. These start at random, so that a row of a former engine never matches."""
    rows_at, stride, _ = _layout(n_rows, row_floats)
    now = time.monotonic_ns()
    words = HEADER.pack(MAGIC, VERSION, State.LOADING, os.getpid(), now, 0, 0.0, n_rows, row_floats, rows_at, stride)
    start = secrets.randbits(32) + 1
    return words.ljust(HEADER_BYTES, b"\0") + struct.pack("<Q", start) * n_rows


def _check_header(path: str, data: mmap.mmap) -> tuple[int, int, int, int, int]:
    """pid, n_rows, row_floats, rows_at and stride of a slab file; raises `SlabError` for anything else."""
    magic, version, state, pid, _, _, _, n_rows, row_floats, rows_at, stride = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise SlabError(f"slab {path}: not a slab file")
    if version != VERSION:
        raise SlabError(f"slab {path}: version {version}, expected {VERSION}; engine and client differ")
    if state not in list(State) or _layout(n_rows, row_floats) != (rows_at, stride, len(data)):
        raise SlabError(f"slab {path}: damaged header")
    return pid, n_rows, row_floats, rows_at, stride
