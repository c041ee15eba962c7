"""CPU time and memory of a server with all its processes, read from /proc."""

import os
import re
from pathlib import Path
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")

# addresses, permissions, offset, device, inode, path; then one line a value
MAPPING = re.compile(
    r"^[0-9a-f]+-[0-9a-f]+ \S+ ([0-9a-f]+) \S+ (\d+) *(.*)\n"
    r"(?:[A-Z].*\n)*?Rss: +(\d+) kB\n(?:[A-Z].*\n)*?Pss: +(\d+) kB$",
    re.MULTILINE,
)


class Mapping(NamedTuple):
    """One line of a process's memory map; sizes in bytes."""

    file: str  # path and offset; "" for memory of no file
    resident: int
    share: int  # `resident`, each page divided by the number of processes that have it


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
    """Bytes in RAM held by the family now, each page once: of a mapped file (the weights) what one process has of it,
    of other memory each process's share. Other programs that map the same file change nothing."""
    files: dict[str, int] = {}
    rest = 0
    for pid in family(root):
        for mapping in _mappings(pid):
            if mapping.file:
                files[mapping.file] = max(files.get(mapping.file, 0), mapping.resident)
            else:
                rest += mapping.share
    return sum(files.values()) + rest


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the command's name (state, parent, group, session, …); None when it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _mappings(pid: int) -> list[Mapping]:
    try:
        smaps = Path(f"/proc/{pid}/smaps").read_text()
    except OSError:
        return []
    found = []
    for offset, inode, path, rss, pss in MAPPING.findall(smaps):
        mapped = inode != "0" and not path.startswith("/dev/shm/")
        found.append(Mapping(f"{path} {offset}" if mapped else "", int(rss) * 1024, int(pss) * 1024))
    return found
