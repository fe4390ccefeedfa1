"""How much must have come before the kernel wakes the reader of a connection (SO_RCVLOWAT).

A large payload arrives packet by packet, and a reader that is fast finds a part of it each time it
is woken. To wake it costs the *sender* most: on loopback a third of its CPU time. So while a large
payload is under way the kernel is told to wake the reader when all of it is there. The message is
not delivered any later: it needs its last byte anyway.

The kernel makes room for as much as it is asked to wait for (Linux 4.18 and later), and wakes the
reader in any case when there is no more room, or the connection ends. Not with TLS, where what is
missing of a payload says little about what is missing in the socket; Unix sockets know no such
mark.
"""

import os
import re
import socket
import sys
from typing import Any, Final

WORTH_WAITING_FOR_BYTES: Final = 128 * 1024
"""Less comes in few pieces, and setting the mark twice costs some microseconds."""

_FIRST_KERNEL: Final = (4, 18)
"""Older ones do not make room, and would wait for what cannot come."""


def kernel_makes_room(platform: str = sys.platform, release: str | None = None) -> bool:
    """Tell whether a system lets a reader wait for more than its buffer holds now."""
    if platform != "linux":
        return False
    found = re.match(r"(\d+)\.(\d+)", os.uname().release if release is None else release)
    return found is not None and (int(found[1]), int(found[2])) >= _FIRST_KERNEL


class ReceiveLowWater:
    """The mark of one socket.

    It is never above what is still to come of a payload, or else the last of it would wake nobody.

    Args:
        sock: A connected TCP socket, or what a transport gives for it.
    """

    __slots__ = ("_frame", "_missing_bytes", "_sock", "mark_bytes")

    def __init__(self, sock: Any) -> None:
        self.mark_bytes = 1
        """What is set: 1 is what a socket has from the start."""
        self._sock = sock
        self._frame = -1
        self._missing_bytes = 0

    @classmethod
    def of(cls, transport: Any) -> "ReceiveLowWater | None":
        """Return the mark of a transport's socket; None where there is none, or not a safe one."""
        sock = transport.get_extra_info("socket")
        if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        if transport.get_extra_info("ssl_object") is not None or not kernel_makes_room():
            return None
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        except OSError:  # a sandbox that has its own network stack
            return None
        return cls(sock)

    def expect(self, missing_bytes: int, frame: int) -> None:
        """Take note of what is to come; to be called after each read, with the socket open.

        Args:
            missing_bytes: Bytes of the payload under way that have not been read; 0 if none is.
            frame: Number of the frame under way.
        """
        mark = self.mark_bytes
        begins = frame != self._frame or missing_bytes > self._missing_bytes
        self._frame = frame
        self._missing_bytes = missing_bytes
        if begins and missing_bytes >= WORTH_WAITING_FOR_BYTES:
            # For a payload as large as the last one the mark stays.
            if not missing_bytes // 2 < mark <= missing_bytes:
                self._set(missing_bytes)
        elif mark > 1 and missing_bytes < mark:
            # Between the pieces of a payload it is not set anew: all was there when the reader
            # was woken.
            self._set(1)

    def _set(self, mark_bytes: int) -> None:
        self.mark_bytes = mark_bytes
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark_bytes)
