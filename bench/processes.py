"""CPU time and memory of a server with all its processes, read from /proc."""

import asyncio
import os
import re
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def family(root: int) -> set[int]:
    """`root`, its descendants, and all processes of its session."""
    parents: dict[int, int] = {}
    found = {root}
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        stat = _stat(pid)
        if stat is None:
            continue
        parents[pid] = int(stat[1])
        if int(stat[3]) == root:
            found.add(pid)
    grown = True
    while grown:
        children = {pid for pid, parent in parents.items() if parent in found}
        grown = not children <= found
        found |= children
    return found


def cpu_seconds(root: int) -> float:
    """User and system time of the whole family so far."""
    stats = (_stat(pid) for pid in family(root))
    return sum(int(stat[11]) + int(stat[12]) for stat in stats if stat) / TICKS


def memory(root: int) -> int:
    """Bytes held by the family now; a page shared by n processes counts once (as n times 1/n)."""
    return sum(_proportional_size(pid) for pid in family(root))


async def peak_memory(root: int, stop: asyncio.Event, every_s: float = 0.5) -> int:
    """The highest `memory` seen until `stop` is set."""
    peak = 0
    while True:
        peak = max(peak, await asyncio.to_thread(memory, root))
        try:
            await asyncio.wait_for(stop.wait(), every_s)
        except TimeoutError:
            continue
        return peak


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the command's name (state, parent, group, session, …); None when it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _proportional_size(pid: int) -> int:
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    kilobytes = re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)
    return int(kilobytes[1]) * 1024 if kilobytes else 0
