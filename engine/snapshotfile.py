"""A snapshot as a file: written whole or not at all, and read only when every byte of it is as it was written."""

import os
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from engine.identity import AdapterName
from engine.regime import Regime
from engine.snapshot import Blob, Checkpoint, Snapshot, Tokens

MAGIC = b"LRDKV\x00\x00\x01"
_DIGEST = 32
_LARGEST_HEAD = 64 << 20


class Damaged(ValueError):
    """The file is not what was written."""


class Head(msgspec.Struct, frozen=True, array_like=True):
    """Everything about a snapshot but its bytes."""

    identity: str
    adapters: AdapterName
    adapters_start: int
    tokens: bytes  # little-endian int32
    n_state: int
    checkpoints: list[tuple[int, int]]  # tokens, bytes
    divisible: bool
    payload: bytes = b""  # digest of state and checkpoints

    @classmethod
    def of(cls, snapshot: Snapshot, identity: str, adapters: AdapterName) -> "Head":
        sizes = [(checkpoint.n, len(checkpoint.data)) for checkpoint in snapshot.checkpoints]
        tokens = snapshot.tokens.astype("<i4").tobytes()
        start = snapshot.adapters[1]
        return cls(identity, adapters, start, tokens, len(snapshot.state), sizes, snapshot.divisible)

    @property
    def token_array(self) -> Tokens:
        return np.frombuffer(self.tokens, "<i4").astype(np.int32)

    @property
    def n_payload(self) -> int:
        return self.n_state + sum(size for _, size in self.checkpoints)

    def snapshot(self, payload: Blob, adapters: Regime) -> Snapshot:
        """The snapshot whose bytes are `payload`."""
        checkpoints, start = [], self.n_state
        for n, size in self.checkpoints:
            checkpoints.append(Checkpoint(n, payload[start : start + size]))
            start += size
        state = payload[: self.n_state]
        return Snapshot(self.token_array, adapters, state, tuple(checkpoints), self.divisible)


def blobs(snapshot: Snapshot) -> list[Blob]:
    """The bytes behind the head."""
    return [snapshot.state, *(checkpoint.data for checkpoint in snapshot.checkpoints)]


def digest_of(parts: Iterable[Any]) -> bytes:
    digest = blake2b(digest_size=_DIGEST)
    for part in parts:
        digest.update(part)
    return digest.digest()


def write(path: Path, head: Head, snapshot: Snapshot) -> int:
    """Write the file `path`; returns its size in bytes."""
    payload = blobs(snapshot)
    packed = msgspec.msgpack.encode(msgspec.structs.replace(head, payload=digest_of(payload)))
    start = [MAGIC, len(packed).to_bytes(4, "little"), digest_of([packed]), packed]
    return write_atomically(path, [*start, *payload])


def read_head(file: BinaryIO) -> Head:
    """The head of an open file, whose position then is at the payload. Raises Damaged."""
    if file.read(len(MAGIC)) != MAGIC:
        raise Damaged("it is no snapshot of this version")
    size = int.from_bytes(file.read(4), "little")
    digest = file.read(_DIGEST)
    packed = file.read(size) if size <= _LARGEST_HEAD else b""
    if len(packed) != size or digest_of([packed]) != digest:
        raise Damaged("its head is damaged")
    try:
        head = msgspec.msgpack.decode(packed, type=Head)
    except msgspec.MsgspecError as problem:
        raise Damaged(f"its head cannot be read: {problem}") from problem
    if os.fstat(file.fileno()).st_size != file.tell() + head.n_payload:
        raise Damaged("it is not complete")
    return head


def read_payload(file: BinaryIO, head: Head) -> Blob:
    """The bytes that follow `head`. Raises Damaged."""
    payload = np.empty(head.n_payload, np.uint8)
    view, n = payload.data, 0
    while n < len(payload) and (got := file.readinto(view[n:])):  # type: ignore[attr-defined]
        n += got
    if n != len(payload) or digest_of([payload]) != head.payload:
        raise Damaged("its data is damaged")
    return payload


def write_atomically(path: Path, parts: Iterable[Any]) -> int:
    """Put `parts` into the file `path`, which others see complete or not at all; returns the size in bytes."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    n = 0
    try:
        with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            for part in parts:
                n += file.write(part)
            file.flush()
            os.fsync(file.fileno())
        scratch.rename(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)
    return n


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power failure."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
