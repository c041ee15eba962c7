"""Files of saved slots (spec/engine.md §8), with an identity check and a checksum behind what the contract asks for.

u32 magic, u32 version, u32 N, N int32 words with the packed tokens, libllama's sequence state, checkpoints; then ours:
the packed `Trailer`, its length as u32, a digest of all before, and a magic of its own.
"""

from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from engine.identity import AdapterName
from engine.snapshot import Blob, Checkpoint, Snapshot, Tokens
from engine.snapshotfile import write_atomically

MAGIC, VERSION = 0x67677371, 4
_MARKER, _TOKENS_VERSION = -1, 1
_TRAILER_MAGIC = b"LRDSLOT1"
_DIGEST = 32
_TAIL = 4 + _DIGEST + len(_TRAILER_MAGIC)

NO_SPACE = "No available space in KV cache or invalid slot save file"
DOES_NOT_FIT = "Restored prompt does not fit in the slot context"
INVALID_TOKENS = "Invalid tokens in slot save file"
UNKNOWN_VERSION = "Unsupported server tokens state version"
ENDS_EARLY = "Unexpected end of server tokens state"
HAS_MEDIA = "Cannot restore media tokens without an mmproj"
TRAILING = "Trailing data in server tokens state"


class SlotFileError(ValueError):
    """The file cannot be restored; the text is the contract's."""


class Trailer(msgspec.Struct, frozen=True, array_like=True):
    """Whose state the file holds, and how it is divided."""

    identity: str
    adapters: AdapterName
    adapters_start: int
    n_exact: int
    n_state: int
    checkpoints: list[tuple[int, int]]  # tokens, bytes
    divisible: bool


class SlotFile(msgspec.Struct, frozen=True):
    """What a file holds. `n_exact` tokens were evaluated in exactly this context, see `Slot`."""

    snapshot: Snapshot
    identity: str
    adapters: AdapterName
    n_exact: int
    n_bytes: int = 0


def write(path: Path, file: SlotFile) -> int:
    """Write the file, whole or not at all; returns its size in bytes."""
    snapshot = file.snapshot
    trailer = msgspec.msgpack.encode(
        Trailer(
            file.identity,
            file.adapters,
            snapshot.adapters[1],
            file.n_exact,
            len(snapshot.state),
            [(checkpoint.n, len(checkpoint.data)) for checkpoint in snapshot.checkpoints],
            snapshot.divisible,
        )
    )
    blobs = [snapshot.state, *(checkpoint.data for checkpoint in snapshot.checkpoints)]
    parts: list[Any] = [_head(snapshot.tokens), *blobs, trailer, np.uint32(len(trailer)).tobytes()]
    digest = blake2b(digest_size=_DIGEST)
    for part in parts:
        digest.update(part)
    return write_atomically(path, [*parts, digest.digest(), _TRAILER_MAGIC])


def read(path: Path) -> SlotFile:
    """What is in the file. Raises SlotFileError, or OSError when it cannot be read at all."""
    content = np.fromfile(path, np.uint8)
    tokens, start = _tokens(content)
    trailer, end = _trailer(content)
    blobs, sizes = [], [trailer.n_state, *(size for _, size in trailer.checkpoints)]
    if start + sum(sizes) != end:
        raise SlotFileError(NO_SPACE)
    for size in sizes:
        blobs.append(content[start : start + size])
        start += size
    checkpoints = (Checkpoint(n, data) for (n, _), data in zip(trailer.checkpoints, blobs[1:], strict=True))
    snapshot = Snapshot(tokens, ((), trailer.adapters_start), blobs[0], tuple(checkpoints), trailer.divisible)
    return SlotFile(snapshot, trailer.identity, trailer.adapters, trailer.n_exact, len(content))


def _head(tokens: Tokens) -> bytes:
    words = np.concatenate([[_MARKER, _TOKENS_VERSION, len(tokens)], tokens, [0]]).astype(np.int32)
    return np.array([MAGIC, VERSION, len(words)], np.uint32).tobytes() + words.tobytes()


def _tokens(content: Blob) -> tuple[Tokens, int]:
    """The tokens, and where the state begins."""
    head = content[:12].tobytes()
    if len(head) < 12:
        raise SlotFileError(NO_SPACE)
    magic, version, n = np.frombuffer(head, np.uint32).tolist()
    if magic != MAGIC or version != VERSION or 12 + 4 * n > len(content):
        raise SlotFileError(NO_SPACE)
    return unpack(np.frombuffer(content[12 : 12 + 4 * n].tobytes(), np.int32)), 12 + 4 * n


def unpack(words: npt.NDArray[np.int32]) -> Tokens:
    """The tokens in the words of the head; a list without the marker is one of plain tokens."""
    if not len(words) or words[0] != _MARKER:
        return words.copy()
    if len(words) < 3:
        raise SlotFileError(ENDS_EARLY)
    if words[1] != _TOKENS_VERSION:
        raise SlotFileError(UNKNOWN_VERSION)
    n = int(words[2])
    if n < 0 or len(words) < 3 + n + 1:
        raise SlotFileError(ENDS_EARLY)
    if words[3 + n] != 0:
        raise SlotFileError(HAS_MEDIA)
    if len(words) > 3 + n + 1:
        raise SlotFileError(TRAILING)
    return words[3 : 3 + n].copy()


def _trailer(content: Blob) -> tuple[Trailer, int]:
    """The trailer, and where it begins."""
    tail = content[-_TAIL:].tobytes()
    if len(tail) < _TAIL or not tail.endswith(_TRAILER_MAGIC):
        raise SlotFileError(NO_SPACE)
    end = len(content) - _TAIL
    size = int(np.frombuffer(tail[:4], np.uint32)[0])
    digest = blake2b(content[: end + 4].tobytes(), digest_size=_DIGEST).digest()
    if size > end or digest != tail[4 : 4 + _DIGEST]:
        raise SlotFileError(NO_SPACE)
    try:
        return msgspec.msgpack.decode(content[end - size : end].tobytes(), type=Trailer), end - size
    except msgspec.MsgspecError:
        raise SlotFileError(NO_SPACE) from None
