"""Hours of mixed random load with aborts, and what must hold afterwards.

    python -m bench.soak --minutes 30

Starts this server, sends it what `bench.mixed_load` makes up, and checks at the end: each request had exactly one end,
no process grew or was replaced, all slots are idle, and the engine's account of the KV memory is libllama's own.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from msgspec.structs import replace

from bench.mixed_load import Client, Tally
from bench.processes import family
from bench.servers import Server, Settings, end_on_terminate, ours
from engine.download import fetch_model
from ipc.client import Client as EngineClient
from ipc.config import Config
from ipc.messages import GetSlots, SlotsReply

MEBI = 1 << 20
SAMPLE_SECONDS = 5.0
IDLE_SECONDS = 60.0  # for the last work to end once the load has
EXTRA = "--metrics --cache-ram 64 --context-shift --http-workers 2 --slot-save-path {folder} {more}"


@dataclass(slots=True)
class Use:
    """What one process holds."""

    memory: int  # bytes of its own
    files: int  # open


@dataclass(slots=True)
class Record:
    """What the processes held over time, by process."""

    samples: list[dict[int, Use]] = field(default_factory=list)

    @property
    def early(self) -> dict[int, Use]:
        """The sample that later ones are compared with."""
        return self.samples[len(self.samples) // 3]

    def growth(self, spare: int) -> list[str]:
        """Processes that hold more than `spare` bytes, or files, above what they held after a third of the time.

        Until then caches fill: a half hour's load reaches its plateau after nine minutes.
        """
        early, late = self.early, self.samples[-1]
        found = [f"process {pid} is gone" for pid in early if pid not in late]
        for pid, use in late.items():
            before = early.get(pid, use)
            if use.memory - before.memory > spare:
                found.append(f"process {pid} grew from {before.memory // MEBI} to {use.memory // MEBI} MiB")
            if use.files > before.files + 32:
                found.append(f"process {pid} has {use.files} files open, after {before.files}")
        return found


def main() -> int:
    """0 when everything held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--slots", type=int, default=6)
    parser.add_argument("--context", type=int, default=6144, help="tokens of all slots (%(default)s)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--spare-mib", type=float, default=32, help="growth of a process that is no leak (%(default)s)")
    parser.add_argument("--model", type=Path, help="the demo model, unless given")
    parser.add_argument("--extra", default="", help="more options of the server, for example --no-kv-unified")
    options = parser.parse_args()
    end_on_terminate()
    with tempfile.TemporaryDirectory(prefix="soak") as folder:
        settings = Settings(options.model or fetch_model("smollm2"), options.threads, options.slots, options.context)
        command = ours(settings, EXTRA.format(folder=folder, more=options.extra))
        with Server("llamarada", command, Path(folder) / "log") as server:
            tally, record = asyncio.run(load(server, options))
            problems = [*tally.faults[:20], *record.growth(int(options.spare_mib * MEBI))]
            problems += ["a request was lost"] * tally.lost + at_rest(server)
            problems += errors_in(Path(folder) / "log")
    report(tally, record, problems)
    return 1 if problems else 0


async def load(server: Server, options: argparse.Namespace) -> tuple[Tally, Record]:
    """Run all clients for the given time; what came of it, and what the processes held meanwhile."""
    tally, record = Tally(), Record()
    until = time.monotonic() + 60 * options.minutes
    limits = httpx.Limits(max_connections=None)
    url = f"http://127.0.0.1:{server.port}"
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as http, asyncio.TaskGroup() as group:
        watching = group.create_task(sample(server.pid, record, tally))
        clients = [Client(http, f"{options.seed}/{i}", options.slots, tally) for i in range(options.clients)]
        await asyncio.gather(*(client.run(until) for client in clients))
        watching.cancel()
    await asyncio.to_thread(wait_until_idle, url)
    record.samples.append(held(server.pid))
    return tally, record


async def sample(root: int, record: Record, tally: Tally) -> None:
    """Note what the processes hold, again and again."""
    while True:
        record.samples.append(await asyncio.to_thread(held, root))
        total = sum(use.memory for use in record.samples[-1].values()) // MEBI
        print(f"\r{tally.sent.total()} sent, {len(tally.faults)} faults, {total} MiB ", end="", file=sys.stderr)
        await asyncio.sleep(SAMPLE_SECONDS)


def held(root: int) -> dict[int, Use]:
    """What each process of the server's family holds."""
    found = {}
    for pid in family(root):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        except OSError:
            continue  # it has ended meanwhile
        own = sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Private_Dirty", "Private_Clean")))
        found[pid] = Use(own, files)
    return found


def wait_until_idle(url: str) -> None:
    """Until no slot works any more, or the time for that is over."""
    deadline = time.monotonic() + IDLE_SECONDS
    while time.monotonic() < deadline:
        if not any(slot["is_processing"] for slot in httpx.get(f"{url}/slots").json()):
            return
        time.sleep(0.1)


def at_rest(server: Server) -> list[str]:
    """What is wrong with an engine that has nothing to do."""
    config = replace(Config(), http=replace(Config().http, port=server.port))
    with EngineClient(config.engine_address(), str(config.slab_path())) as client:
        client.ready()
        reply = client.call(GetSlots(0, debug=True))
    assert isinstance(reply, SlotsReply)
    problems = [f"{reply.n_deferred} tasks still wait"] if reply.n_deferred else []
    for slot in reply.slots:
        if slot.is_processing:
            problems.append(f"slot {slot.id} still works")
        if (slot.pos_min, slot.pos_max) != ((0, slot.n_past - 1) if slot.n_past else (-1, -1)):
            problems.append(f"slot {slot.id} counts {slot.n_past} tokens, libllama {slot.pos_min} to {slot.pos_max}")
    return problems


def errors_in(log: Path) -> list[str]:
    """Lines of the server's log that tell of a fault of its own."""
    marks = (" E ", "Traceback", "Task exception", "never awaited")
    return [line[:300] for line in log.read_text(errors="replace").splitlines() if any(mark in line for mark in marks)][
        :20
    ]


def report(tally: Tally, record: Record, problems: list[str]) -> None:
    """What was sent, what was held, and what is wrong."""
    print("\n\n| request | sent | ended | left |\n|---|---|---|---|")
    for kind, n in sorted(tally.sent.items()):
        print(f"| {kind} | {n} | {tally.ended[kind]} | {tally.left[kind]} |")
    print("\n| process | MiB after a third | at the end | files |\n|---|---|---|---|")
    for pid, use in record.samples[-1].items():
        before = record.early[pid].memory // MEBI if pid in record.early else "-"
        print(f"| {pid} | {before} | {use.memory // MEBI} | {use.files} |")
    print("\n" + ("\n".join(problems) if problems else "everything held"))
    print(json.dumps({"sent": tally.sent.total(), "faults": len(tally.faults), "lost": tally.lost}))


if __name__ == "__main__":
    sys.exit(main())
