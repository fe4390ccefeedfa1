"""Sockets of connections: their options (no delay, timeouts, low-water mark) and peers.

**The low-water mark** says how many bytes must arrive before the kernel wakes the reader. A large
payload arrives packet by packet, and a fast reader gets a part of it each time it is woken. Waking
it costs the *sender* most: on loopback a third of its CPU time. So while a large payload arrives,
the socket's mark (SO_RCVLOWAT) makes the kernel wake the reader when it is complete. That does not
delay the message, which needs its last byte anyway.

The kernel makes room for the bytes of the mark (Linux 4.18 and later). It always wakes the reader
when the room is used up or the connection ends. The mark is not used with TLS, where the socket
receives other bytes than the payload's, nor with Unix sockets, which do not support it.
"""

import asyncio
import os
import re
import socket
import sys
from typing import Any, Final

from .address import host_port
from .config import TransportConfig

_KEEPALIVE_PROBES = 4
"""Unanswered probes before the kernel drops the connection."""

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


def describe_peer(transport: asyncio.BaseTransport) -> str:
    """Return a transport's other end for logs and status: ``host:port`` or ``unix:path``."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family == socket.AF_UNIX:
        return (
            f"unix:{transport.get_extra_info('sockname') or transport.get_extra_info('peername')}"
        )
    peer = transport.get_extra_info("peername")
    return host_port(peer[0], peer[1]) if isinstance(peer, tuple) else str(peer)


WORTH_WAITING_FOR_BYTES: Final = 128 * 1024
"""A smaller payload arrives in few pieces, and setting the mark twice costs some microseconds."""

_FIRST_KERNEL: Final = (4, 18)
"""Older kernels do not make room, and would wait for bytes that cannot arrive."""


def kernel_makes_room(platform: str = sys.platform, release: str | None = None) -> bool:
    """Return whether the kernel enlarges the receive buffer to the mark."""
    if platform != "linux":
        return False
    found = re.match(r"(\d+)\.(\d+)", os.uname().release if release is None else release)
    return found is not None and (int(found[1]), int(found[2])) >= _FIRST_KERNEL


class ReceiveLowWater:
    """The mark of a socket.

    It is never above the missing bytes of a payload; otherwise the last of them would not wake the
    reader.

    Args:
        sock: A connected TCP socket, or a transport's object for it.
    """

    __slots__ = ("_frame", "_missing_bytes", "_sock", "mark_bytes")

    def __init__(self, sock: Any) -> None:
        self.mark_bytes = 1
        """The current mark; a socket begins with 1."""
        self._sock = sock
        self._frame = -1
        self._missing_bytes = 0

    @classmethod
    def of(cls, transport: Any) -> "ReceiveLowWater | None":
        """Return the mark of a transport's socket; None if unsupported or not safe."""
        sock = transport.get_extra_info("socket")
        if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        if transport.get_extra_info("ssl_object") is not None or not kernel_makes_room():
            return None
        if not hasattr(socket, "SO_RCVLOWAT"):
            return None
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        except OSError:  # a sandbox with its own network stack
            return None
        return cls(sock)

    def expect(self, missing_bytes: int, frame: int) -> None:
        """Set the mark for the missing bytes; call after each read, with the socket open.

        Args:
            missing_bytes: Unread bytes of the current payload; 0 between payloads.
            frame: Number of the current frame.
        """
        mark = self.mark_bytes
        begins = frame != self._frame or missing_bytes > self._missing_bytes
        self._frame = frame
        self._missing_bytes = missing_bytes
        if begins and missing_bytes >= WORTH_WAITING_FOR_BYTES:
            # Keep the mark for a payload as large as the last one.
            if not missing_bytes // 2 < mark <= missing_bytes:
                self._set(missing_bytes)
        elif mark > 1 and missing_bytes < mark:
            # Do not set the mark between the pieces of a payload: all bytes were there when the
            # reader was woken.
            self._set(1)

    def _set(self, mark_bytes: int) -> None:
        self.mark_bytes = mark_bytes
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark_bytes)
