"""The listening sockets, bound before anything is loaded: a taken address is refused at once and by name."""

import errno
import os
import socket
import stat
from collections.abc import Iterable
from typing import Any

from gunicorn.sock import BaseSocket, TCP6Socket, TCPSocket, UnixSocket

Address = str | tuple[str, int]


class CannotListen(RuntimeError):
    """An address cannot be used; the text names it and says why."""


def gunicorn_bind(hosts: Iterable[str], port: int) -> list[str]:
    """The hosts as gunicorn writes them: `*.sock` is the path of a Unix socket, everything else shares the port."""
    return [_gunicorn_address(host, port) for host in hosts]


def _gunicorn_address(host: str, port: int) -> str:
    if host.endswith(".sock"):
        return f"unix:{host}"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen(addresses: list[Address], cfg: Any, log: Any) -> list[BaseSocket]:
    """Bind every address, as gunicorn's listeners. Raises `CannotListen`; then none stays bound."""
    tcp = [address for address in addresses if isinstance(address, tuple)]
    bound: list[tuple[Address, socket.socket]] = []
    try:
        for address in addresses:
            bound.append((address, _bind_unix(address) if isinstance(address, str) else _bind_tcp(address, len(tcp))))
    except BaseException:
        for _, sock in bound:
            sock.close()
        raise
    return [_listener(address, sock, cfg, log) for address, sock in bound]


def _bind_tcp(address: tuple[str, int], n_tcp: int) -> socket.socket:
    host, port = address
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise CannotListen(_tcp_text(host, port, error)) from None
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:  # `::` alone serves IPv4 too; beside other addresses it must leave them alone
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, n_tcp > 1)
    try:
        sock.bind(where)
    except OSError as error:
        sock.close()
        raise CannotListen(_tcp_text(host, port, error)) from None
    return sock


def _tcp_text(host: str, port: int, error: OSError) -> str:
    why = "the port is in use" if error.errno == errno.EADDRINUSE else error.strerror
    return f"couldn't bind HTTP server socket, hostname: {host}, port: {port}: {why}"


def _bind_unix(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        sock.bind(path)
    except OSError as error:
        sock.close()
        raise CannotListen(f"couldn't bind HTTP server socket unix://{path}: {error.strerror or error}") from None
    return sock


def _remove_stale(path: str) -> None:
    """Remove the socket of a server that is gone; a live one, or a file that is no socket, stays and is refused."""
    if not os.path.lexists(path) or not stat.S_ISSOCK(os.lstat(path).st_mode):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        if probe.connect_ex(path) == errno.ECONNREFUSED:
            os.unlink(path)


def _listener(address: Address, sock: socket.socket, cfg: Any, log: Any) -> BaseSocket:
    kind = {socket.AF_INET: TCPSocket, socket.AF_INET6: TCP6Socket, socket.AF_UNIX: UnixSocket}[sock.family]
    return kind(address, cfg, log, fd=sock.detach())
