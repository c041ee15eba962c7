"""Starts and stops the servers that are compared."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from engine.paths import home

START_SECONDS = 120
STOP_SECONDS = 20


@dataclass(slots=True)
class Settings:
    """What both servers are started with."""

    model: Path
    threads: int
    slots: int
    context: int  # tokens of all slots

    def flags(self) -> list[str]:
        """As llama-server's flags, which both understand."""
        values = {"-m": self.model, "-t": self.threads, "-np": self.slots, "-c": self.context}
        return [word for flag, value in values.items() for word in (flag, str(value))]


def peer_dir() -> Path:
    """The folder of llama-server: LLAMARADA_PEER, else the newest one that bench/build_peer.sh made."""
    chosen = os.environ.get("LLAMARADA_PEER")
    builds = [Path(chosen)] if chosen else [binary.parent for binary in home().glob("peer/*/llama-server")]
    if not builds:
        raise FileNotFoundError("no llama-server: run bench/build_peer.sh, or set LLAMARADA_PEER to its folder")
    return max(builds, key=lambda folder: folder.stat().st_mtime)


def ours(settings: Settings, extra: str) -> list[str]:
    """The command line of this server, its port left as "{port}"."""
    return [str(Path(sys.executable).with_name("llamarada")), "serve", *_command(settings, extra)]


def peer(settings: Settings, extra: str) -> list[str]:
    """The command line of llama-server, its port left as "{port}"."""
    return [str(peer_dir() / "llama-server"), "--no-ui", *_command(settings, extra)]


def _command(settings: Settings, extra: str) -> list[str]:
    return [*settings.flags(), "--host", "127.0.0.1", "--port", "{port}", *shlex.split(extra)]


class Server:
    """A running server on a port of its own; `with` starts it and waits until it is ready."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name = name
        self.port = _free_port()
        self._command = [word.replace("{port}", str(self.port)) for word in command]
        self._log = log
        self._output: IO[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the first process, the leader of its own session."""
        assert self._process is not None, "the server is started by `with`"
        return self._process.pid

    def __enter__(self) -> Self:
        self._output = self._log.open("wb")
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            self._wait_until_ready(self._process)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        if self._output is not None:
            self._output.close()

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if process.poll() is not None:
                last = "\n".join(self._log.read_text(errors="replace").splitlines()[-10:])
                raise RuntimeError(f"{self.name} ended with code {process.returncode}; {self._log} ends:\n{last}")
            if self._healthy():
                return
            time.sleep(0.1)
        raise TimeoutError(f"{self.name} was not ready within {START_SECONDS} s; its output: {self._log}")

    def _healthy(self) -> bool:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()


def warn_if_busy() -> None:
    """Say so when other programs use the cores: both sides then lose several times over, and not evenly."""
    load = os.getloadavg()[0]
    if load > 0.5:
        print(
            f"the load average is {load:.1f}: the numbers will mean little; measure on an idle machine", file=sys.stderr
        )


def end_on_terminate() -> None:
    """Make SIGTERM an exception in this process, so that `with` stops the servers: no signal reaches them."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
