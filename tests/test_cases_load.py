"""Hundreds of requests at once all get their answer, and leave no memory behind."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server import Server, wait_for
from tests.test_api_whole import idle

MANY = 500
SPARE = 12 << 20  # bytes by which a process may grow: pools and caches that were not full yet


@pytest.fixture(scope="module")
def server(model_path: Path) -> Iterator[Server]:
    flags = ["-c", "1024", "-np", "4", "--no-kv-unified", "--cache-ram", "0", "--http-workers", "2"]
    with Server(["-m", str(model_path), *flags]) as started:
        yield started.wait_ready()


async def ask(client: httpx.AsyncClient, i: int) -> tuple[int, str]:
    """Status, and how it ended; every third is a stream, every fifth has a constraint."""
    body: dict[str, Any] = {"prompt": f"{i}", "n_predict": 1 + i % 2, "ignore_eos": True, "stream": i % 3 == 0}
    if i % 5 == 0:
        body |= {"choice": ["x", f"y{i % 7}"], "ignore_eos": False, "n_predict": 9}
    answer = await client.post("/completion", json=body)
    return answer.status_code, answer.text.rpartition('"stop_type":"')[2].partition('"')[0]


async def burst(url: str, n: int) -> Counter[tuple[int, str]]:
    """So many requests at the same time."""
    limits = httpx.Limits(max_connections=n)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=900) as client:
        return Counter(await asyncio.gather(*(ask(client, i) for i in range(n))))


def memory(server: Server) -> dict[int, int]:
    """Resident bytes that belong to each process alone."""
    return {pid: private(pid) for pid in (server.engine(), *server.workers())}


def private(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Private_Dirty", "Private_Clean")))


def test_500_requests_at_once_are_all_answered_and_leave_nothing_behind(server: Server) -> None:
    expected = {(200, "limit"): MANY * 4 // 5, (200, "eos"): MANY // 5}
    assert asyncio.run(burst(server.url, MANY)) == expected
    before = memory(server)
    asyncio.run(burst(server.url, MANY // 2))
    wait_for(lambda: idle(server), 20)
    after = memory(server)
    assert after.keys() == before.keys()
    assert {pid: after[pid] - before[pid] for pid in before if after[pid] - before[pid] > SPARE} == {}
