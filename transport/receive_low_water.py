"""Sets how many bytes must have come before the kernel wakes the reader of a connection.

A large payload arrives packet by packet, and a fast reader finds a part of it each time it is
woken. Waking it costs the *sender* most: on loopback a third of its CPU time. So while a large
payload is under way, the socket's mark (SO_RCVLOWAT) lets the kernel wake the reader when all of
it is there. The message is not delivered any later, because it needs its last byte anyway.

The kernel makes room for as much as it is asked to wait for (Linux 4.18 and later). It wakes the
reader in any case when the room is used up or the connection ends. The mark is not used with TLS,
where the missing bytes of a payload say little about those of the socket, and Unix sockets do not
have it.
"""

import os
import re
import socket
import sys
from typing import Any, Final

WORTH_WAITING_FOR_BYTES: Final = 128 * 1024
"""A smaller payload comes in few pieces, and setting the mark twice costs some microseconds."""

_FIRST_KERNEL: Final = (4, 18)
"""Older kernels do not make room, and would wait for bytes that cannot come."""


def kernel_makes_room(platform: str = sys.platform, release: str | None = None) -> bool:
    """Return whether a system lets a reader wait for more than its buffer holds now."""
    if platform != "linux":
        return False
    found = re.match(r"(\d+)\.(\d+)", os.uname().release if release is None else release)
    return found is not None and (int(found[1]), int(found[2])) >= _FIRST_KERNEL


class ReceiveLowWater:
    """The mark of a socket.

    It is never above the missing bytes of a payload, or else the last of them would not wake the
    reader.

    Args:
        sock: A connected TCP socket, or the object that a transport gives for it.
    """

    __slots__ = ("_frame", "_missing_bytes", "_sock", "mark_bytes")

    def __init__(self, sock: Any) -> None:
        self.mark_bytes = 1
        """The mark that is set; a socket begins with 1."""
        self._sock = sock
        self._frame = -1
        self._missing_bytes = 0

    @classmethod
    def of(cls, transport: Any) -> "ReceiveLowWater | None":
        """Return the mark of a transport's socket; None where it does not exist or is not safe."""
        sock = transport.get_extra_info("socket")
        if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        if transport.get_extra_info("ssl_object") is not None or not kernel_makes_room():
            return None
        if not hasattr(socket, "SO_RCVLOWAT"):
            return None
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        except OSError:  # a sandbox that has its own network stack
            return None
        return cls(sock)

    def expect(self, missing_bytes: int, frame: int) -> None:
        """Set the mark for the missing bytes; call this after each read, with the socket open.

        Args:
            missing_bytes: Unread bytes of the payload under way; 0 between payloads.
            frame: Number of the frame under way.
        """
        mark = self.mark_bytes
        begins = frame != self._frame or missing_bytes > self._missing_bytes
        self._frame = frame
        self._missing_bytes = missing_bytes
        if begins and missing_bytes >= WORTH_WAITING_FOR_BYTES:
            # The mark stays for a payload as large as the last one.
            if not missing_bytes // 2 < mark <= missing_bytes:
                self._set(missing_bytes)
        elif mark > 1 and missing_bytes < mark:
            # The mark is not set anew between the pieces of a payload: all bytes were there when
            # the reader was woken.
            self._set(1)

    def _set(self, mark_bytes: int) -> None:
        self.mark_bytes = mark_bytes
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark_bytes)
