"""The engine's socket: one ROUTER that never blocks and never raises for what a client does."""

import logging
import os
import secrets
import socket
import stat
import time
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq
import zmq.auth.thread

from ipc.messages import (
    Bye,
    Control,
    Error,
    Failure,
    Final,
    Free,
    Hello,
    Step,
    ToClient,
    ToEngine,
    Welcome,
    decode_to_engine,
    encode,
)
from ipc.slab import Slab, inode

log = logging.getLogger(__name__)

MAX_IPC_PATH = 107  # sockaddr_un holds 108 bytes, the last one a NUL
MAX_MESSAGE = 256 << 20
QUEUE = 1000  # messages that wait for one client before it counts as frozen
PROBE_SECONDS = 1.0
CONTROL_TAGS = frozenset(kind.__struct_config__.tag for kind in Control.__args__)


@dataclass(frozen=True)
class TcpBind:
    """An address for clients on other hosts. Keys are CURVE keys in Z85; only the clients listed may connect."""

    address: str
    secret_key: str
    clients: tuple[str, ...]

    @classmethod
    def load(cls, address: str, key_file: str, clients_dir: str) -> "TcpBind":
        """Keys from certificate files as `zmq.auth.create_certificates` writes them."""
        secret_key = zmq.auth.load_certificate(key_file)[1]
        if secret_key is None:
            raise ValueError(f"{key_file}: has no secret key")
        clients = tuple(key.decode() for key in zmq.auth.load_certificates(clients_dir))
        return cls(address, secret_key.decode(), clients)


class Server:
    """Receives what clients ask and sends what they get. `slab` is told which clients left and what they freed."""

    def __init__(
        self, address: str, slab: Slab | None = None, tcp: TcpBind | None = None, *, queue: int = QUEUE
    ) -> None:
        """Bind `address` (ipc://PATH) and, if given, `tcp`. Raises ValueError or OSError that name the address."""
        self.malformed = 0  # messages dropped so far
        self._slab = slab
        self._welcome: Welcome | None = None
        self._clients: set[bytes] = set()  # those that sent something and did not leave
        self._left: list[bytes] = []  # those that were found gone or frozen since the last `receive`
        self._lapsed: set[bytes] = set()  # frozen ones, which missed messages and have not been told
        self._probed = 0.0
        self._tcp = ""
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._authenticator: zmq.auth.thread.ThreadAuthenticator | None = None
        try:
            _configure(self._socket, queue)
            self._path = ipc_path(address)
            self._inode = _bind_ipc(self._socket, address, self._path)
            if tcp is not None:
                self._bind_tcp(tcp)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)

    @property
    def addresses(self) -> list[str]:
        """Addresses bound, as clients use them."""
        return [f"ipc://{self._path}", *([self._tcp] if self._tcp else [])]

    def close(self) -> None:
        """Close the socket and remove its file."""
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.destroy(linger=0)
        if inode(self._path) == self._inode:
            os.unlink(self._path)

    # in

    def poll(self, timeout_ms: int) -> bool:
        """Wait until there is something to `receive`, at most `timeout_ms`."""
        self._probe()
        return bool(self._left) or bool(self._poller.poll(timeout_ms))

    def receive(self, limit: int = 1024) -> list[tuple[bytes, ToEngine]]:
        """Up to `limit` waiting messages with their client, without blocking. `Free` is done here if there is a slab.

        `Hello`: abort what the client left from before and answer with `Welcome`. `Bye`: abort all it has; there is
        one for every client that is found gone or frozen, within about a second even if nothing is sent to it.
        """
        messages: list[tuple[bytes, ToEngine]] = [(client, Bye()) for client in self._left]
        self._left.clear()
        for _ in range(limit):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            message = self._decode(frames)
            if message is not None and not self._keep_books(frames[0], message):
                messages.append((frames[0], message))
        return messages

    def _decode(self, frames: list[bytes]) -> ToEngine | None:
        """The message, or None after it was counted, logged and, where that is possible, answered."""
        try:
            client, frame = frames
            message: ToEngine = decode_to_engine(frame)
            return message
        except Exception as error:  # whatever a client sends, the engine goes on
            self.malformed += 1
            if self.malformed & (self.malformed - 1) == 0:
                log.warning("%r: message dropped (%d so far): %s", frames[0], self.malformed, error)
            if len(frames) == 2:
                self._refuse(client, frame, str(error))
            return None

    def _refuse(self, client: bytes, frame: bytes, problem: str) -> None:
        """Answer a message that is not valid but whose kind and id can be read."""
        try:
            head = msgspec.msgpack.decode(frame, type=list[Any])[:2]
        except Exception:
            return
        error = Error(400, "invalid_request_error", f"message: {problem}")
        match head:
            case ["task" | "embed", int(id)]:
                self.send(client, Step([Final(id, "error", error)]))
            case [str(tag), int(id)] if tag in CONTROL_TAGS:
                self.send(client, Failure(id, error))

    def _keep_books(self, client: bytes, message: ToEngine) -> bool:
        """Note who is there and what is free; True when the engine need not see the message."""
        self._clients.add(client)
        match message:
            case Hello():
                self._drop_rows(client)
                if self._slab is not None:
                    self._slab.set_inline(client, not message.slab)
            case Bye():
                self._clients.discard(client)
                self._drop_rows(client)
            case Free() if self._slab is not None:
                for row, generation in message.rows:
                    self._slab.free(row, generation)
                return True
        return False

    def _drop_rows(self, client: bytes) -> None:
        if self._slab is not None:
            self._slab.free_owner(client)
            self._slab.set_inline(client, False)

    # out

    def send(self, client: bytes, message: ToClient) -> bool:
        """Send without blocking. False: the client is gone or frozen, and all its work must be aborted."""
        if isinstance(message, Welcome):
            self._welcome = message
            self._lapsed.discard(client)
        elif client in self._lapsed and not self._revive(client):
            return False
        return self._push(client, message)

    def _push(self, client: bytes, message: ToClient) -> bool:
        try:
            self._socket.send_multipart((client, encode(message)), zmq.NOBLOCK)
        except zmq.Again:
            log.warning("%r: does not read; its work is aborted", client)
            self._lapsed.add(client)
            if self._slab is not None:
                self._slab.free_owner(client)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            log.info("%r: gone", client)
            self._lapsed.discard(client)
            self._clients.discard(client)
            self._drop_rows(client)
        else:
            return True
        self._left.append(client)
        return False

    def _revive(self, client: bytes) -> bool:
        """Tell a frozen client that reads again, by a `Welcome`, that its tasks were aborted."""
        self._lapsed.discard(client)
        return self._welcome is not None and self._push(client, self._welcome)

    def _probe(self) -> None:
        """Once a second, find out by an empty Step which clients are still there, and revive frozen ones."""
        now = time.monotonic()
        if now - self._probed < PROBE_SECONDS:
            return
        self._probed = now
        for client in list(self._clients):
            self.send(client, Step([]))

    def _bind_tcp(self, tcp: TcpBind) -> None:
        """Bind with CURVE; options set here do not touch the ipc address bound before."""
        if not tcp.clients:
            raise ValueError(f"{tcp.address}: list the public keys of the clients that may connect")
        self._authenticator = zmq.auth.thread.ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback("tcp", _KnownKeys(tcp.clients))
        self._socket.zap_domain = b"tcp"
        self._socket.curve_server = 1
        self._socket.curve_secretkey = tcp.secret_key.encode()
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, 2000)
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 10000)
        self._socket.bind(tcp.address)
        self._tcp = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)


class _KnownKeys:
    """The CURVE credentials provider that pyzmq asks: True for a key (in Z85) of the list."""

    def __init__(self, clients: tuple[str, ...]) -> None:
        self._clients = frozenset(key.encode() for key in clients)

    def callback(self, domain: str, key: bytes) -> bool:
        return key in self._clients


def boot_nonce() -> str:
    """A fresh name for this engine process."""
    return secrets.token_hex(8)


def ipc_path(address: str) -> str:
    """Path of an ipc:// address; raises ValueError when the kernel cannot take it."""
    scheme, _, path = address.partition("://")
    if scheme != "ipc" or not path.startswith("/"):
        raise ValueError(f"{address!r}: expected ipc:///ABSOLUTE/PATH")
    size = len(os.fsencode(path))
    if size > MAX_IPC_PATH:
        raise ValueError(f"{path}: {size} bytes, but a socket's path has at most {MAX_IPC_PATH}; use a shorter one")
    return path


def _configure(router: zmq.Socket[bytes], queue: int) -> None:
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.setsockopt(zmq.ROUTER_HANDOVER, 1)
    router.setsockopt(zmq.SNDHWM, queue)
    router.setsockopt(zmq.RCVHWM, queue)
    router.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE)
    router.setsockopt(zmq.LINGER, 0)


def _bind_ipc(router: zmq.Socket[bytes], address: str, path: str) -> int | None:
    """Bind where no other engine listens, for this user only; returns the socket file's inode."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    _remove_stale(path)
    mask = os.umask(0o177)
    try:
        router.bind(address)
    finally:
        os.umask(mask)
    return inode(path)


def _remove_stale(path: str) -> None:
    """Remove a socket nobody listens on; raises OSError when somebody does, or when it is no socket."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(f"{path}: exists and is not a socket; remove it or choose another path")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise OSError(f"{path}: another engine is listening here; stop it or choose another path")
