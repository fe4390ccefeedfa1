"""Sockets of connections: their options (no delay, timeouts) and peers."""

import asyncio
import socket
import struct
from typing import NamedTuple

from .address import host_port
from .config import TransportConfig

_KEEPALIVE_PROBES = 4
"""Unanswered probes before the kernel drops the connection."""

_UCRED = struct.Struct("3i")
_GID = struct.Struct("I")
_SO_PEERGROUPS = 59
_MAX_GROUPS = 4096
"""Most groups of a process to read; the kernel allows 65536, and fails if there are more."""

_LONGEST_KEEPALIVE_SECONDS = 32767
"""Linux refuses more."""


def apply(sock: socket.socket, config: TransportConfig) -> None:
    """Set the options of a connected socket; Unix sockets need none."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    idle = min(max(1, int(config.keepalive_seconds)), _LONGEST_KEEPALIVE_SECONDS)
    interval = max(1, idle // _KEEPALIVE_PROBES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    timeout_ms = 0 if (seconds := config.tcp_user_timeout_seconds) is None else int(1000 * seconds)
    for name, value in (
        ("TCP_KEEPIDLE", idle),
        ("TCP_KEEPINTVL", interval),
        ("TCP_KEEPCNT", _KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", timeout_ms),  # if set, the kernel ignores the number of probes
    ):
        option = getattr(socket, name, None)  # not on every platform
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


class SocketUser(NamedTuple):
    """User and groups of the process at the other end of a Unix socket when it connected."""

    uid: int
    gids: tuple[int, ...]


def peer_user(sock: socket.socket) -> SocketUser | None:
    """Return the user at the other end of a Unix socket; None if unsupported."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    _, uid, gid = _UCRED.unpack(credentials)
    try:
        packed = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MAX_GROUPS * _GID.size)
    except OSError:  # a kernel before 4.13
        packed = b""
    others = (group for (group,) in _GID.iter_unpack(packed))
    return SocketUser(uid, tuple(dict.fromkeys((gid, *others))))


def describe_peer(transport: asyncio.BaseTransport) -> str:
    """Return a transport's other end for logs and status: ``host:port`` or ``unix:path``."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family == socket.AF_UNIX:
        return (
            f"unix:{transport.get_extra_info('sockname') or transport.get_extra_info('peername')}"
        )
    peer = transport.get_extra_info("peername")
    return host_port(peer[0], peer[1]) if isinstance(peer, tuple) else str(peer)
