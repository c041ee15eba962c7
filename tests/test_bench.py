import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import processes, table
from bench.load import Load, LoadError, Measured, drive, quantile

EVENTS = (
    b'data: {"content":"a","stop":false}\n\ndata: {"content":"b"}\n\n'
    b': ping\n\ndata: {"stop":true,"tokens_predicted":2}\n\n'
)
ROOT = Path(__file__).parent.parent


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[i : i + size] for i in range(0, len(body), size)]
    framed = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"


async def driven(answer: bytes, load: Load) -> Measured:
    """What `drive` measures on a server that always gives `answer`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]))
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        return await drive(server.sockets[0].getsockname()[1], load)


@pytest.mark.parametrize("frame", [lambda body: chunked(body, 7), lambda body: b"HTTP/1.1 200 OK\r\n\r\n" + body])
def test_load_counts_tokens_and_gaps_of_every_request(frame: Callable[[bytes], bytes]) -> None:
    measured = asyncio.run(driven(frame(EVENTS), Load(clients=2, requests=3)))
    assert (measured.requests, measured.tokens, len(measured.first), len(measured.gaps)) == (6, 12, 6, 6)


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 503 No\r\n\r\nloading", chunked(EVENTS[:30], 30), chunked(b"error: {}\n", 99)]
)
def test_load_fails_when_an_answer_is_not_a_whole_stream(answer: bytes) -> None:
    with pytest.RaisesGroup(LoadError):
        asyncio.run(driven(answer, Load()))


def test_quantiles_are_values_that_occurred() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([1.0], 0.99) == 1.0
    assert quantile([], 0.5) == 0.0


def test_a_family_is_found_with_its_cost() -> None:
    held = "import os, sys; held = os.urandom(20 << 20); print(os.getpid(), flush=True); sys.stdin.read()"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {held!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as top:
        assert top.stdout is not None
        pid = int(top.stdout.readline())
        assert {top.pid, pid} <= processes.family(top.pid)
        assert os.getpid() not in processes.family(top.pid)
        assert 20 << 20 < processes.memory(top.pid) < 200 << 20
        assert processes.cpu_seconds(top.pid) > 0


def test_tables_align_and_divide() -> None:
    rows = [
        ["1", "tokens/s", table.number(123.456), table.ratio(1, 2)],
        ["32", "gap", table.number(0.5), table.ratio(1, 0)],
    ]
    text = table.render(("clients", "measure", "ours", "ratio"), rows, markdown=True)
    assert text.splitlines()[2:] == ["| 1       | tokens/s | 123.5 | 0.500 |", "| 32      | gap      | 0.500 |     - |"]


def test_build_script_refuses_unknown_arguments() -> None:
    done = subprocess.run([ROOT / "build_llama.sh", "--nonsense"], capture_output=True, text=True, timeout=30)
    assert done.returncode != 0 and "unknown argument: --nonsense" in done.stderr


def test_a_terminated_measurement_leaves_no_server(tmp_path: Path) -> None:
    serve = "import http.server; http.server.HTTPServer(('127.0.0.1', {port}), http.server.BaseHTTPRequestHandler)"
    script = f"""
import sys, time
from pathlib import Path
from bench.servers import Server, end_on_terminate
end_on_terminate()
Server._healthy = lambda self: True
with Server("one", [sys.executable, "-c", {serve!r} + ".serve_forever()"], Path({str(tmp_path / "log")!r})) as server:
    print(server.pid, flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) as bench:
        assert bench.stdout is not None
        pid = int(bench.stdout.readline())
        bench.terminate()
        assert bench.wait(30) == 128 + 15
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
