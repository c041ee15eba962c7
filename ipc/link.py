"""A client's sockets: the DEALER and the monitor that tells when the engine came or went."""

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import zmq
import zmq.auth
from zmq.utils.monitor import parse_monitor_message

from ipc.messages import ToEngine, encode

QUEUE = 1000
RECONNECT_MS = (50, 250)  # first and longest wait
HEARTBEAT_MS = (2000, 10000)  # over tcp: interval and limit


@dataclass(frozen=True)
class Curve:
    """CURVE keys in Z85 for a tcp:// address: the engine's public one and the client's own pair."""

    server_key: str
    public_key: str
    secret_key: str

    @classmethod
    def load(cls, server_file: str, own_file: str) -> "Curve":
        """Keys from certificate files: the engine's public one and the client's secret one."""
        server_key = zmq.auth.load_certificate(server_file)[0]
        public_key, secret_key = zmq.auth.load_certificate(own_file)
        if secret_key is None:
            raise ValueError(f"{own_file}: has no secret key")
        return cls(server_key.decode(), public_key.decode(), secret_key.decode())


class Link:
    """Connects to `address` and goes on doing so. Make it after a fork, in the process that uses it."""

    def __init__(self, address: str, curve: Curve | None = None, after_send: Callable[[], None] = lambda: None) -> None:
        """`after_send`: see `files`."""
        self._after_send = after_send
        self.identity = f"{os.getpid()}-{secrets.token_hex(8)}".encode()
        self._context = zmq.Context()
        self._dealer = self._context.socket(zmq.DEALER)
        _configure(self._dealer, self.identity)
        if address.startswith("tcp://"):
            _configure_tcp(self._dealer, curve)
        self._monitor = self._dealer.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._dealer.connect(address)
        self._poller = zmq.Poller()
        self._poller.register(self._dealer, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)

    def close(self) -> None:
        """Close both sockets; what was not sent yet is dropped."""
        self._dealer.disable_monitor()
        self._context.destroy(linger=0)

    def files(self) -> tuple[int, int]:
        """File descriptors that become readable when `frames`, and when `changes`, may have something.

        They signal edges: read until nothing is left, and look for frames again after a send, which may take an edge
        with it.
        """
        return self._dealer.FD, self._monitor.FD

    def poll(self, timeout_ms: int) -> bool:
        """Wait until there is something to read, at most `timeout_ms`."""
        return bool(self._poller.poll(timeout_ms))

    def send(self, message: ToEngine) -> bool:
        """Send without blocking; False when there is no connection or its queue is full."""
        frame = encode(message)
        for _ in range(2):
            try:
                self._dealer.send(frame, zmq.NOBLOCK)
            except zmq.Again:
                if not self._writable():  # asking also lets a new connection in
                    return False
            else:
                self._after_send()
                return True
        return False

    def frames(self, limit: int) -> list[bytes]:
        """Up to `limit` messages that are there."""
        frames: list[bytes] = []
        try:
            while len(frames) < limit:
                frames.append(self._dealer.recv_multipart(zmq.NOBLOCK)[-1])
        except zmq.Again:
            pass
        return frames

    def changes(self) -> list[bool]:
        """What happened to the connection, oldest first: True for connected, False for lost."""
        changes: list[bool] = []
        try:
            while True:
                event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))["event"]
                changes.append(event == zmq.EVENT_HANDSHAKE_SUCCEEDED)
        except zmq.Again:
            pass
        return changes

    def _writable(self) -> bool:
        return bool(int(self._dealer.getsockopt(zmq.EVENTS)) & zmq.POLLOUT)


def _configure(dealer: zmq.Socket[bytes], identity: bytes) -> None:
    dealer.setsockopt(zmq.IDENTITY, identity)
    dealer.setsockopt(zmq.IMMEDIATE, 1)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.setsockopt(zmq.SNDHWM, QUEUE)
    dealer.setsockopt(zmq.RCVHWM, QUEUE)
    dealer.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS[0])
    dealer.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS[1])


def _configure_tcp(dealer: zmq.Socket[bytes], curve: Curve | None) -> None:
    dealer.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS[0])
    dealer.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_MS[1])
    if curve is not None:
        dealer.curve_serverkey = curve.server_key.encode()
        dealer.curve_publickey = curve.public_key.encode()
        dealer.curve_secretkey = curve.secret_key.encode()
