"""The prompt cache on disk. The loop's thread knows the index; files are read and written on threads of their own."""

import logging
import os
import queue
import re
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from engine import snapshotfile
from engine.hostcache import WORTH
from engine.identity import AdapterName, Identity
from engine.regime import Regime, common_validity
from engine.slot import common_prefix
from engine.snapshot import Blob, Snapshot, Tokens, reachable_positions
from engine.snapshotfile import Damaged, Head

log = logging.getLogger(__name__)

_SUFFIX = ".kv"
_FOLDER, _FILE = re.compile(r"[0-9a-f]{32}"), re.compile(r"[0-9a-f]{32}\.kv")
_SCRATCH = re.compile(r"\.[0-9a-f]{32}\.kv\.\d+\.tmp")
_HEAD = 4096  # bytes of a file, at most, beside what a snapshot counts
_MOST_WAITING = 4  # snapshots that wait to be written; a busy engine must not pile them up
_ABANDONED = 600.0  # s after which another process's half-written file is surely nobody's


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A file of the cache, as far as it is kept in memory."""

    path: Path
    tokens: Tokens
    adapters: tuple[AdapterName, int]
    positions: tuple[int, ...]  # of its checkpoints
    divisible: bool

    @classmethod
    def of(cls, path: Path, head: Head) -> "Entry":
        positions = tuple(n for n, _ in head.checkpoints)
        return cls(path, head.token_array, (head.adapters, head.adapters_start), positions, head.divisible)

    def usable(self, tokens: Tokens, adapters: tuple[AdapterName, int]) -> int:
        """As `Snapshot.usable`."""
        n = common_validity(self.adapters, adapters, common_prefix(self.tokens, tokens))
        return reachable_positions(n, len(self.tokens), self.divisible, self.positions)


@dataclass(frozen=True, slots=True)
class _Change:
    """What a background thread tells the loop: `entry` is at `path` now, or nothing is."""

    path: Path
    entry: Entry | None


class DiskCache:
    """Files of one model (and settings) in a folder that other engines may use too; `limit` bounds all of it."""

    def __init__(self, folder: str, limit: int, identity: Identity) -> None:
        """OSError when the folder cannot be used."""
        self._root = Path(folder)
        self._folder = self._root / identity.model
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._limit = limit
        self._identity = identity
        self._entries: dict[Path, Entry] = {}
        self._coming: dict[Path, tuple[Entry, Future[None]]] = {}
        self._changes: queue.SimpleQueue[_Change] = queue.SimpleQueue()
        self._writer = ThreadPoolExecutor(1, "cache-write")
        self._reader = ThreadPoolExecutor(1, "cache-read")
        self._known: set[Path] = set()  # the writer's view of the folder
        self._look()

    def __len__(self) -> int:
        self._update()
        return len(self._entries)

    def best(self, tokens: Tokens, adapters: Regime) -> tuple[Entry | None, int]:
        """The file that saves a prompt most, and how many of its leading tokens that is."""
        self._update()
        return self._best(list(self._entries.values()), tokens, adapters)

    def holds(self, tokens: Tokens, adapters: Regime) -> bool:
        """Whether (nearly) all of `tokens` is in one file, or on its way into one."""
        self._update()
        coming = [entry for entry, _ in self._coming.values()]
        return self._best([*self._entries.values(), *coming], tokens, adapters)[1] > len(tokens) - WORTH

    def write(self, snapshot: Snapshot) -> bool:
        """Write `snapshot` in the background. False when it adds nothing, is too large or others wait already."""
        self._update()
        full = len(self._coming) >= _MOST_WAITING or snapshot.n_bytes > self._limit
        if full or self.holds(snapshot.tokens, snapshot.adapters):
            return False
        head = Head.of(snapshot, self._identity.model, self._identity.name(snapshot.adapters[0]))
        entry = Entry.of(self._path(head), head)
        contained = [old.path for old in self._entries.values() if _supersedes(entry, old)]
        self._coming[entry.path] = entry, self._writer.submit(self._store, head, snapshot, entry, contained)
        return True

    def read(self, entry: Entry) -> "Future[Snapshot | None]":
        """The snapshot in `entry`'s file; None when it cannot be read any more."""
        return self._reader.submit(self._load, entry, self._identity.regime(*entry.adapters))

    def look(self) -> None:
        """Find out in the background what other engines have done in the folder."""
        self._writer.submit(self._look)

    def close(self, seconds: float) -> None:
        """Wait for the writes under way, `seconds` at most."""
        _, late = wait([future for _, future in self._coming.values()], seconds)
        if late:
            log.warning("%d prompts could not be saved in %g s", len(late), seconds)
        self._writer.shutdown(wait=False, cancel_futures=True)
        self._reader.shutdown(wait=False, cancel_futures=True)

    # The loop's thread.

    def _update(self) -> None:
        with suppress(queue.Empty):
            while True:
                change = self._changes.get_nowait()
                self._entries.pop(change.path, None)
                if change.entry is not None:
                    self._entries[change.path] = change.entry
        for path in [path for path, (_, future) in self._coming.items() if future.done()]:
            del self._coming[path]

    def _best(self, entries: list[Entry], tokens: Tokens, adapters: Regime) -> tuple[Entry | None, int]:
        best, most, named = None, 0, (self._identity.name(adapters[0]), adapters[1])
        for entry in entries:
            n = entry.usable(tokens, named)
            if n > most:
                best, most = entry, n
        return best, most

    def _path(self, head: Head) -> Path:
        key = repr((head.adapters, head.adapters_start)).encode() + head.tokens
        return self._folder / (blake2b(key, digest_size=16).hexdigest() + _SUFFIX)

    # Background threads.

    def _store(self, head: Head, snapshot: Snapshot, entry: Entry, contained: list[Path]) -> None:
        try:
            self._make_room(snapshot.n_bytes + _HEAD)
            snapshotfile.write(entry.path, head, snapshot)
            self._change(entry.path, entry)
            for path in contained:
                path.unlink(missing_ok=True)
            self._look()
        except (OSError, MemoryError) as problem:
            log.warning("the prompt cache cannot be written: %s", problem)

    def _load(self, entry: Entry, adapters: Regime) -> Snapshot | None:
        try:
            with open(entry.path, "rb") as file:
                head = self._checked(snapshotfile.read_head(file))
                payload: Blob = snapshotfile.read_payload(file, head)
            os.utime(entry.path)
            return head.snapshot(payload, adapters)
        except FileNotFoundError:
            pass  # another engine has made room
        except (OSError, MemoryError, Damaged) as problem:
            log.warning("%s is skipped: %s", entry.path, problem)
        self._changes.put(_Change(entry.path, None))
        return None

    def _look(self) -> None:
        """Compare what is known with what is there."""
        there = {path for path, _ in _files(self._folder)}
        for path in self._known - there:
            self._change(path, None)
        for path in there - self._known:
            self._change(path, self._entry(path))

    def _entry(self, path: Path) -> Entry | None:
        try:
            with open(path, "rb") as file:
                return Entry.of(path, self._checked(snapshotfile.read_head(file)))
        except FileNotFoundError:
            return None
        except (OSError, Damaged) as problem:
            log.warning("%s is skipped: %s", path, problem)
            return None

    def _checked(self, head: Head) -> Head:
        if head.identity != self._identity.model:
            raise Damaged("it belongs to another model")
        return head

    def _change(self, path: Path, entry: Entry | None) -> None:
        """Tell the loop; a file without entry is remembered as well, so that it is looked at once only."""
        if path.exists():
            self._known.add(path)
        else:
            self._known.discard(path)
        self._changes.put(_Change(path, entry))

    def _make_room(self, n_bytes: int) -> None:
        """Remove the files used least recently, of whatever model, until `n_bytes` more fit."""
        files = [item for folder in _folders(self._root) for item in _files(folder)]
        files.sort(key=lambda item: item[1].st_mtime_ns)
        size = n_bytes + sum(stat.st_size for _, stat in files)
        for path, stat in files:
            if size <= self._limit:
                break
            path.unlink(missing_ok=True)
            size -= stat.st_size


def _supersedes(new: Entry, old: Entry) -> bool:
    return new.path != old.path and new.usable(old.tokens, old.adapters) == len(old.tokens)


def _folders(root: Path) -> Iterator[Path]:
    with os.scandir(root) as entries:
        yield from (Path(entry.path) for entry in entries if _FOLDER.fullmatch(entry.name))


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The cache's files in `folder`. Half-written ones that nobody will finish are removed."""
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                stat = entry.stat(follow_symlinks=False)
                if _FILE.fullmatch(entry.name):
                    yield Path(entry.path), stat
                elif _SCRATCH.fullmatch(entry.name) and time.time() - stat.st_mtime > _ABANDONED:
                    os.unlink(entry.path)
