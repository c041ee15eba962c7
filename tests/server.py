"""A whole server for tests: real processes, a free port, a private run folder."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import httpx

ROOT = Path(__file__).parent.parent
DEADLINE = 60.0  # s for a start; waits end as soon as what they wait for is there


class Server:
    """`llamarada serve ARGS` with its own port and run folder; use it in a `with`.

    `engine` names a module that runs in the engine's place. `gunicorn=True` starts `gunicorn -c configs/gunicorn.py`
    instead, which takes its settings from `env` alone. `prefix` is a command that runs the server as its only child.
    """

    def __init__(
        self,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        *,
        engine: str | None = None,
        gunicorn: bool = False,
        prefix: Sequence[str] = (),
        port: int | None = None,
        folder: str | None = None,
    ) -> None:
        self.port = free_port() if port is None else port
        self.url = f"http://127.0.0.1:{self.port}"
        self.folder = Path(folder or tempfile.mkdtemp(prefix="lrd-", dir="/tmp"))
        self.run_dir = self.folder / "run"
        self.log_path = self.folder / f"log-{time.monotonic_ns()}"
        self.http = httpx.Client(base_url=self.url, timeout=DEADLINE)
        self._own_folder = folder is None
        self._prefix = list(prefix)
        self._seen: set[int] = set()
        self.process = self._start(args, self._environment(env or {}, engine), gunicorn)

    def _environment(self, env: Mapping[str, str], engine: str | None) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("LLAMA_ARG_")}
        own = {
            "LLAMA_ARG_PORT": str(self.port),
            "LLAMARADA_RUN_DIR": str(self.run_dir),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PYTHONUNBUFFERED": "1",
        }
        return inherited | own | ({"LLAMARADA_ENGINE_MODULE": engine} if engine else {}) | dict(env)

    def _start(self, args: Sequence[str], env: Mapping[str, str], gunicorn: bool) -> subprocess.Popen[bytes]:
        command = ["gunicorn", "-c", "configs/gunicorn.py", "api.app:app"] if gunicorn else ["api", "serve"]
        with self.log_path.open("wb") as log:
            return subprocess.Popen(
                [*self._prefix, sys.executable, "-m", *command, *args],
                cwd=ROOT,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    # ------------------------------------------------ requests

    def get(self, path: str, **options: Any) -> httpx.Response:
        """GET `path`."""
        return self.http.get(path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        """POST `body` as JSON."""
        return self.http.post(path, json=body, **options)

    @contextlib.contextmanager
    def stream(self, path: str, body: Any, timeout: float = DEADLINE) -> Iterator[Iterator[Any]]:
        """POST `body` over a connection of its own; yields the decoded events of the answer."""
        with (
            httpx.Client(base_url=self.url, timeout=timeout) as client,
            client.stream("POST", path, json=body) as response,
        ):
            yield _events(response)

    def health(self) -> int:
        """Status of `/health`; 0 when nobody answers."""
        try:
            return httpx.get(f"{self.url}/health", timeout=5).status_code
        except httpx.TransportError:
            return 0

    def wait_ready(self, deadline: float = DEADLINE) -> Self:
        """Until `/health` says 200, whichever worker answers; fails with the log when the server ends instead."""
        ready = lambda: all(self.health() == 200 for _ in range(8))  # noqa: E731
        wait_for(lambda: self.process.poll() is not None or ready(), deadline, self.log)
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log()}")
        return self

    # ------------------------------------------------ processes

    def log(self) -> str:
        """Everything the processes have printed so far."""
        return self.log_path.read_text(errors="replace")

    @property
    def top(self) -> int:
        """Process id of the gunicorn master."""
        return next(iter(children(self.process.pid)), 0) if self._prefix else self.process.pid

    def supervisor(self) -> int:
        """Process id of the supervisor, 0 when there is none."""
        return next((pid for pid in children(self.top) if "engine.supervisor" in command_line(pid)), 0)

    def engine(self) -> int:
        """Process id of the engine, 0 when there is none."""
        found = children(self.supervisor()) if self.supervisor() else []
        self._seen.update(found)
        return next((pid for pid in found if "engine.supervisor" not in command_line(pid)), 0)

    def workers(self) -> list[int]:
        """Process ids of the HTTP workers."""
        return [pid for pid in children(self.top) if pid != self.supervisor()]

    def pids(self) -> set[int]:
        """Every process of the server that ever was seen."""
        self._seen.update({self.process.pid, self.top, self.supervisor(), self.engine(), *self.workers()} - {0})
        return set(self._seen)

    def signal(self, number: int) -> None:
        """Send a signal to the top process."""
        assert self.top, "the server is gone"  # 0 would be our own process group
        os.kill(self.top, number)

    def wait(self, deadline: float = DEADLINE) -> int:
        """Exit code of the top process."""
        try:
            return self.process.wait(deadline)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the server still runs after {deadline} s:\n{self.log()}") from None

    def stop(self, deadline: float = DEADLINE) -> int:
        """SIGTERM and wait; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(deadline)

    def kill(self) -> None:
        """Kill the top process, which takes the others along, and remove whatever is left."""
        pids = self.pids()
        if self.top and self.process.poll() is None:
            os.kill(self.top, signal.SIGKILL)
        with contextlib.suppress(AssertionError):
            wait_for(lambda: not any(running(pid) for pid in pids - {self.process.pid}), 5)
        for pid in filter(running, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(DEADLINE)
        self.http.close()
        if self._own_folder:
            for path in self.files():
                Path(path).unlink(missing_ok=True)
            shutil.rmtree(self.folder, ignore_errors=True)

    def files(self) -> list[str]:
        """Files that the server has in its run folder and in shared memory, the lock aside."""
        mark = zlib.crc32(str(self.run_dir).encode())
        found = [*self.run_dir.glob("*"), *Path("/dev/shm").glob(f"llamarada-{os.getuid()}-{self.port}-{mark:08x}-*")]
        return sorted(str(path) for path in found if path.name != "lock")


def _events(response: httpx.Response) -> Iterator[Any]:
    if response.status_code != 200:
        response.read()
        raise AssertionError(f"{response.status_code}: {response.text}")
    for line in response.iter_lines():
        kind, _, value = line.partition(": ")
        if kind == "error":
            yield {"error": json.loads(value)}
        elif kind == "data" and value != "[DONE]":
            yield json.loads(value)


def wait_for(condition: Callable[[], Any], deadline: float, explain: Callable[[], str] | None = None) -> float:
    """Poll until `condition` holds; returns the seconds that took. Fails after `deadline` seconds."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > deadline:
            raise AssertionError(f"not within {deadline} s" + (f":\n{explain()}" if explain else ""))
        time.sleep(0.02)
    return time.monotonic() - start


def free_port() -> int:
    """A TCP port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def children(pid: int) -> list[int]:
    """Child processes of `pid`'s main thread."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def command_line(pid: int) -> str:
    """Command line of `pid`, "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def running(pid: int) -> bool:
    """Whether `pid` exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()[0] not in (b"Z", b"X")
    except OSError:
        return False
