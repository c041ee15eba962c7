"""Child processes that die with their parent, and locks that free themselves with their holder."""

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

PR_SET_PDEATHSIG = 1
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
LIBC = ctypes.CDLL(None, use_errno=True)  # loaded before any fork


class Busy(RuntimeError):
    """The lock is held by another process; `pid` is what it wrote about itself, None when unreadable."""

    def __init__(self, path: str, pid: int | None) -> None:
        holder = "another server" if pid is None else f"the server with process id {pid}"
        super().__init__(f"{os.path.dirname(path)} is in use by {holder}: stop it, or choose another port or --run-dir")
        self.path, self.pid = path, pid


def die_with_parent(parent: int, death_signal: int = signal.SIGKILL) -> None:
    """Ask the kernel to send this process `death_signal` when the parent's thread that started it ends.

    A parent that was gone before the request took effect is noticed by its id.
    """
    if LIBC.prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os.kill(os.getpid(), death_signal)


def spawn(
    command: Sequence[str],
    env: Mapping[str, str] | None = None,
    death_signal: int = signal.SIGKILL,
    keep_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start `command` as a child that gets `death_signal` when this thread ends.

    It leads its own process group, so that a terminal's Ctrl-C reaches only the top process.
    Call it from the main thread: the kernel watches the thread, not the process.
    """
    return subprocess.Popen(
        list(command),
        env=dict(os.environ if env is None else env),
        stdin=subprocess.DEVNULL,
        pass_fds=tuple(keep_fds),
        preexec_fn=_prepare_child(os.getpid(), death_signal),
    )


def _prepare_child(parent: int, death_signal: int) -> Callable[[], None]:
    def prepare() -> None:
        os.setpgid(0, 0)
        die_with_parent(parent, death_signal)

    return prepare


def hold_signals() -> None:
    """Let a stop wait until `release_signals`, across `exec` too: nobody is there yet who would handle it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def release_signals() -> None:
    """Handlers are in place; deliver what has waited. Call it before children are made, which inherit the mask."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def python(module: str, *args: str) -> list[str]:
    """Command line that runs `module` with this interpreter."""
    return [sys.executable, "-m", module, *args]


def exit_text(code: int) -> str:
    """Readable form of `Popen.returncode`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def lock(path: str, patience: float = 0.0) -> int:
    """Take the lock file and write our process id into it; returns the open descriptor, whose life is the lock's.

    Children that inherit the descriptor share the lock. When the recorded holder is dead, its children may be
    ending just now: wait up to `patience` seconds for them. Raises `Busy`.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + patience
    while not _try_lock(fd):
        pid = _holder(fd)
        if time.monotonic() >= deadline or (pid is not None and alive(pid)):
            os.close(fd)
            raise Busy(path, pid)
        time.sleep(0.02)
    if not _is_at(fd, path):  # its last holder removed it between our open and our lock
        os.close(fd)
        return lock(path, patience)
    os.ftruncate(fd, 0)
    os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    return fd


def unlock(path: str, fd: int) -> None:
    """Give the lock back and remove its file."""
    remove(path)
    os.close(fd)


def _is_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(fd: int) -> int | None:
    text = os.pread(fd, 32, 0).strip()
    return int(text) if text.isdigit() else None


def alive(pid: int) -> bool:
    """Whether process `pid` exists (a zombie does not count)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rsplit(b")", 1)[1].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def remove(*paths: str) -> None:
    """Delete the files that exist."""
    for path in paths:
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue
