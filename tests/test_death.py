"""kill -9, kill -STOP and SIGTERM of every process in turn, on whole servers."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server import Server, running, wait_for

FAKE = "tests.live_engine"
SLOTS = "3"
ENGINES = ["fake", "real"]
SHORT = {"prompt": "Once upon a time", "n_predict": 40, "stream": True, "ignore_eos": True}
LONG = SHORT | {"n_predict": 900}


class Start:
    """Starts servers of three slots, and sees them gone at the end."""

    def __init__(self, stack: ExitStack, lib: Path, model_path: Path) -> None:
        self.stack, self.lib, self.model_path = stack, lib, model_path

    def __call__(
        self, engine: str = "fake", *args: str, ready: bool = True, env: dict[str, str] | None = None, **how: Any
    ) -> Server:
        """A server on the fake engine or the real one, after it said 200 if `ready`."""
        module = FAKE if engine == "fake" else None
        own = {"FAKE_SLOTS": SLOTS, "LLAMARADA_LIB": str(self.lib), **(env or {})}
        flags = ["-m", str(self.model_path), "-np", SLOTS, "-c", "3072", "--http-workers", "2", *args]
        server = self.stack.enter_context(Server(flags, own, engine=module, **how))
        return server.wait_ready() if ready else server


@pytest.fixture
def start(lib: Path, model_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:
        yield Start(stack, lib, model_path)


@pytest.fixture(scope="module")
def living(lib: Path, model_path: Path) -> Iterator[dict[str, Server]]:
    """Servers by engine, for the tests that they survive."""
    with ExitStack() as stack:
        yield KeyedStart(Start(stack, lib, model_path))


class KeyedStart(dict[str, Server]):
    """Starts a server when one is asked for the first time."""

    def __init__(self, start: Start) -> None:
        self.start = start

    def __missing__(self, engine: str) -> Server:
        self[engine] = self.start(engine, "--metrics", "--hang-seconds", "5")
        return self[engine]


@pytest.fixture
def server(living: dict[str, Server], request: pytest.FixtureRequest) -> Server:
    """A server that other tests use too: nothing runs on it, all of its processes are there."""
    server = living[getattr(request, "param", "fake")]
    wait_for(lambda: idle_slots(server.wait_ready()) == int(SLOTS) and len(server.workers()) == 2, 20, server.log)
    return server


class Request:
    """A long streamed request on a thread of its own, and how it ended."""

    def __init__(self, server: Server) -> None:
        self.events: list[Any] = []
        self.status = 0
        self.failure = ""  # of the connection
        self._server = server
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._server.stream("/completion", LONG, timeout=30) as events:
                self.status = 200
                for event in events:
                    self.events.append(event)
        except AssertionError as error:
            self.status = int(str(error)[:3])
        except httpx.TransportError as error:
            self.failure = repr(error)

    @property
    def started(self) -> bool:
        return any(event.get("content") for event in self.events)

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    @property
    def error(self) -> Any:
        """The error that ended the stream, or the status it never got past."""
        if self.events and "error" in self.events[-1]:
            return self.events[-1]["error"]
        return self.status if self.status != 200 else None


def send(pid: int, number: int) -> None:
    assert pid > 1, "no such process"  # 0 would be our own process group
    os.kill(pid, number)


def busy(server: Server, running_requests: int, queued: int = 0) -> list[Request]:
    """As many requests that generate, and then as many that wait."""
    requests = [Request(server) for _ in range(running_requests)]
    wait_for(lambda: all(request.started for request in requests), 20, server.log)
    requests += [Request(server) for _ in range(queued)]
    if queued:
        wait_for(lambda: deferred(server) == queued, 5, server.log)
    return requests


def deferred(server: Server) -> int:
    lines = server.get("/metrics").text.splitlines()
    return int(float(next(line.split()[-1] for line in lines if line.startswith("llamacpp:requests_deferred"))))


def idle_slots(server: Server) -> int:
    return sum(not slot["is_processing"] for slot in server.get("/slots").json())


def answers(server: Server) -> bool:
    return server.post("/completion", {"prompt": "Hello", "n_predict": 4}).status_code == 200


@pytest.mark.parametrize("server", ENGINES, indirect=True)
def test_killed_engine_fails_its_requests_at_once_and_comes_back(server: Server) -> None:
    requests = busy(server, 3, queued=2)
    send(server.engine(), signal.SIGKILL)
    assert wait_for(lambda: all(request.ended for request in requests), 10) < 2
    assert [request.error is not None for request in requests] == [True] * 5
    assert server.health() == 503
    wait_for(lambda: server.health() == 200, 20, server.log)
    assert answers(server)


@pytest.mark.parametrize("server", ENGINES, indirect=True)
def test_frozen_engine_is_noticed_and_replaced(server: Server) -> None:
    requests = busy(server, 3)
    frozen = server.engine()
    send(frozen, signal.SIGSTOP)
    assert wait_for(lambda: server.health() == 503, 20) < 7
    wait_for(lambda: all(request.ended for request in requests), 2)
    assert all(request.error for request in requests)
    wait_for(lambda: server.health() == 200, 20, server.log)
    assert not running(frozen)
    assert answers(server)


@pytest.mark.parametrize("server", ENGINES, indirect=True)
def test_killed_worker_frees_its_slots_and_other_workers_go_on(server: Server) -> None:
    requests = busy(server, 3)
    victim = next(pid for pid in server.workers() if connections(pid, server.port))
    send(victim, signal.SIGKILL)
    wait_for(lambda: any(request.ended for request in requests), 2)
    lost = [request for request in requests if wait_ended(request, 0.3)]
    assert all(request.failure for request in lost)
    wait_for(lambda: idle_slots(server) >= len(lost), 2)
    others = [request for request in requests if request not in lost]
    counts = [len(request.events) for request in others]
    wait_for(lambda: all(len(r.events) > n for r, n in zip(others, counts, strict=True)), 2)
    wait_for(lambda: len(server.workers()) == 2, 5)
    assert answers(server)


def wait_ended(request: Request, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not request.ended and time.monotonic() < deadline:
        time.sleep(0.01)
    return request.ended


def connections(pid: int, port: int) -> int:
    """Open connections of `pid` to the server's port."""
    local = f":{port:04X}"
    inodes = {
        line.split()[9]
        for line in Path("/proc/net/tcp").read_text().splitlines()
        if line.split()[1].endswith(local) and line.split()[3] == "01"
    }
    links = [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()]
    return sum(link.removeprefix("socket:[").rstrip("]") in inodes for link in links)


@pytest.mark.parametrize("engine", ENGINES)
def test_killed_parent_leaves_nothing_behind(start: Start, engine: str) -> None:
    server = start(engine)
    requests = busy(server, 2)
    pids = server.pids()
    assert len(pids) >= 5
    server.signal(signal.SIGKILL)
    wait_for(lambda: not any(running(pid) for pid in pids), 3)
    assert server.files() == []
    wait_for(lambda: all(request.ended for request in requests), 2)
    again = start(engine, port=server.port, folder=str(server.folder))
    assert answers(again)


def test_killed_supervisor_takes_the_engine_along_and_is_replaced(server: Server) -> None:
    supervisor, engine = server.supervisor(), server.engine()
    send(supervisor, signal.SIGKILL)
    wait_for(lambda: not running(engine), 2)
    wait_for(lambda: server.engine() not in (0, engine) and server.health() == 200, 20, server.log)
    assert answers(server)


def test_engine_that_dies_again_and_again_is_started_again_and_again(server: Server) -> None:
    for _ in range(3):
        engine = server.engine()
        send(engine, signal.SIGKILL)
        wait_for(lambda engine=engine: server.engine() not in (0, engine) and server.health() == 200, 20, server.log)
    assert server.process.poll() is None


@pytest.mark.parametrize("engine", ENGINES)
def test_stop_lets_running_streams_end(start: Start, engine: str) -> None:
    server = start(engine, "--shutdown-timeout", "60", env={"FAKE_STEP": "0.05"})
    with server.stream("/completion", SHORT) as events:
        next(events)
        server.signal(signal.SIGTERM)
        wait_for(lambda: server.health() == 503, 2)
        refused = httpx.post(f"{server.url}/completion", json={"prompt": "Hello"})
        assert refused.status_code == 503
        assert [*events][-1]["stop"] is True
    assert server.wait(5) == 0
    assert server.files() == []


@pytest.mark.parametrize("engine", ENGINES)
def test_stop_ends_streams_with_an_error_when_the_time_is_over(start: Start, engine: str) -> None:
    server = start(engine, "--shutdown-timeout", "1", env={"FAKE_STEP": "0.1"})
    requests = busy(server, 2)
    server.signal(signal.SIGTERM)
    assert server.wait(6) == 0
    wait_for(lambda: all(request.ended for request in requests), 2)
    assert all(request.error or request.events[-1].get("stop") for request in requests)
    assert not any(request.failure for request in requests)


@pytest.mark.parametrize("engine", ENGINES)
def test_second_signal_stops_at_once(start: Start, engine: str) -> None:
    server = start(engine, env={"FAKE_STEP": "0.1"})
    busy(server, 2)
    pids = server.pids()
    server.signal(signal.SIGTERM)
    wait_for(lambda: server.health() == 503, 2)
    server.signal(signal.SIGTERM)
    assert server.wait(3) == 1
    assert "terminating immediately" in server.log()
    wait_for(lambda: not any(running(pid) for pid in pids), 1)
    assert server.files() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_idle_stop_is_prompt_and_clean(start: Start, number: int) -> None:
    server = start()
    pids = server.pids()
    server.signal(number)
    assert server.wait(4) == 0
    assert not any(running(pid) for pid in pids)
    assert server.files() == []


def test_stop_during_the_load(start: Start) -> None:
    server = start(ready=False, env={"FAKE_LOAD": "60"})
    wait_for(lambda: server.health() == 503 and server.engine(), 20, server.log)
    server.signal(signal.SIGTERM)
    assert server.wait(5) == 0
    assert server.files() == []


def test_stop_in_the_first_moments_waits_for_somebody_to_handle_it(start: Start) -> None:
    server = start(ready=False)
    wait_for(server.files, 20, server.log)
    time.sleep(0.05)  # between the command that published the configuration and gunicorn there is nothing to see
    server.signal(signal.SIGTERM)
    assert server.wait(10) == 0
    assert server.files() == []


def test_port_is_open_and_says_503_while_the_model_loads(start: Start) -> None:
    server = start(ready=False, env={"FAKE_LOAD": "60"})
    wait_for(lambda: server.health() == 503, 20, server.log)
    answer = server.get("/health")
    assert answer.json()["error"] == {"code": 503, "type": "unavailable_error", "message": "Loading model"}
    assert server.post("/completion", {"prompt": "Hello"}).status_code == 503


def test_load_failure_ends_the_server_and_says_why(start: Start) -> None:
    server = start(ready=False, env={"FAKE_FAIL": "no such tensor"})
    assert server.wait(30) == 1
    assert "no such tensor" in server.log()
    assert server.files() == []
    assert not any(running(pid) for pid in server.pids())


def test_bad_model_file_ends_the_server_and_says_why(start: Start, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    server = start("real", "-m", str(broken), ready=False)
    assert server.wait(20) not in (0, None)
    assert str(broken) in server.log()
    assert server.files() == []


def test_second_server_in_the_same_run_folder_is_refused_with_the_holder_named(start: Start, server: Server) -> None:
    second = start(ready=False, port=server.port, folder=str(server.folder))
    assert second.wait(10) == 1
    assert str(server.process.pid) in second.log()
    assert len(list(server.run_dir.glob("config-*.json"))) == 1
    assert answers(server)


def test_taken_port_is_refused_before_anything_is_loaded(start: Start, server: Server) -> None:
    second = start(ready=False, port=server.port)
    assert second.wait(10) == 1
    assert f"hostname: 127.0.0.1, port: {server.port}" in second.log()
    assert second.engine() == 0
    assert answers(server)


def test_gunicorn_alone_starts_everything(start: Start, model_path: Path, lib: Path) -> None:
    env = {"LLAMA_ARG_MODEL": str(model_path), "LLAMARADA_LIB": str(lib), "LLAMA_ARG_HOST": "127.0.0.1"}
    with Server(env=env, engine=FAKE, gunicorn=True) as server:
        server.wait_ready()
        assert answers(server)
        assert server.stop(5) == 0
        assert server.files() == []


def test_unix_socket_is_served_and_a_stale_one_replaced(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    flags = ["--host", f"127.0.0.1,{path}"]
    server = start("fake", *flags)
    server.signal(signal.SIGKILL)
    server.wait()
    assert path.is_socket()
    again = start("fake", *flags)
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://llamarada") as client:
        assert client.get("/health").status_code == 200
    assert again.stop(5) == 0
    assert not path.exists()


def test_unix_socket_of_a_live_server_is_not_taken(start: Start, tmp_path: Path) -> None:
    flags = ["--host", f"127.0.0.1,{tmp_path / 'http.sock'}"]
    start("fake", *flags)
    second = start("fake", *flags, ready=False)
    assert second.wait(10) == 1
    assert f"unix://{tmp_path / 'http.sock'}" in second.log()


def test_hangup_without_a_terminal_renews_the_workers_and_keeps_the_engine(server: Server) -> None:
    engine, workers = server.engine(), server.workers()
    server.signal(signal.SIGHUP)
    wait_for(lambda: len(server.workers()) == 2 and not set(server.workers()) & set(workers), 20, server.log)
    wait_for(lambda: server.health() == 200, 10)
    assert server.engine() == engine
    assert answers(server)


NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc"]


@pytest.mark.skipif(subprocess.run([*NAMESPACE, "true"], check=False).returncode != 0, reason="needs a pid namespace")
def test_process_1_of_a_container_stops_cleanly(start: Start) -> None:
    server = start(prefix=NAMESPACE)
    with server.stream("/completion", SHORT) as events:
        next(events)
        server.signal(signal.SIGTERM)
        assert [*events][-1]["stop"] is True
    assert server.wait(10) == 0
    assert server.files() == []
