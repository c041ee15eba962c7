"""The prompt cache in host memory: snapshots of slots, the least recently used ones give way. Pure policy."""

import logging
import os
from pathlib import Path

from engine.regime import Regime
from engine.snapshot import Snapshot, Tokens

log = logging.getLogger(__name__)

MIB = 1 << 20
LARGEST_AUTOMATIC = 8 << 30
WORTH = 64  # tokens that a snapshot must save beyond what is there already
_NEARLY = 16  # tokens that may be missing where a state has to be continued at a checkpoint
_AFTER_FAILURE = 0.4  # of what was held when the memory ran out


class HostCache:
    """Holds at most `limit` bytes. The last snapshot in the list is the one used last."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._snapshots: list[Snapshot] = []

    def __len__(self) -> int:
        return len(self._snapshots)

    @property
    def n_bytes(self) -> int:
        return sum(snapshot.n_bytes for snapshot in self._snapshots)

    def holds(self, tokens: Tokens, adapters: Regime) -> bool:
        """Whether (nearly) all of `tokens` is in one snapshot, so that another would add nothing."""
        return self.best(tokens, adapters)[1] > len(tokens) - WORTH

    def best(self, tokens: Tokens, adapters: Regime) -> tuple[Snapshot | None, int]:
        """The snapshot that saves a prompt most, and how many of its leading tokens that is."""
        best, most = None, 0
        for snapshot in self._snapshots:
            n = snapshot.usable(tokens, adapters)
            if n >= max(most, 1):
                best, most = snapshot, n
        return best, most

    def use(self, snapshot: Snapshot) -> None:
        """`snapshot` was needed just now."""
        if snapshot in self._snapshots:
            self._snapshots.remove(snapshot)
            self._snapshots.append(snapshot)

    def add(self, snapshot: Snapshot) -> bool:
        """Take `snapshot`, unless it adds nothing or is too large; what it contains and the oldest go."""
        if snapshot.n_bytes > self.limit or self.holds(snapshot.tokens, snapshot.adapters):
            return False
        self._snapshots = [old for old in self._snapshots if not supersedes(snapshot, old)]
        self._snapshots.append(snapshot)
        self._shrink_to(self.limit)
        return True

    def out_of_memory(self) -> None:
        """An allocation failed: use less from now on."""
        self.limit = int(self.n_bytes * _AFTER_FAILURE)
        self._shrink_to(self.limit)
        log.warning("out of memory: the prompt cache is limited to %d MiB from now on", self.limit // MIB)

    def _shrink_to(self, limit: int) -> None:
        n_bytes = self.n_bytes
        while n_bytes > limit:
            n_bytes -= self._snapshots.pop(0).n_bytes


def supersedes(new: Snapshot, old: Snapshot) -> bool:
    """Whether `new` saves a prompt (nearly) as much as `old` does."""
    slack = 0 if new.divisible else _NEARLY
    return new.usable(old.tokens, old.adapters) >= max(1, len(old.tokens) - slack)


def automatic_limit() -> int:
    """Bytes for the cache when the configuration leaves it open: a quarter of the memory, at most 8 GiB."""
    return min(LARGEST_AUTOMATIC, _memory() // 4)


def _memory() -> int:
    """Bytes of memory this process may use."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(installed, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no control group, or "max"
        return installed
