"""The write side of a connection: watermarks, and leases on the memory that is being sent.

Bytes go to the event loop without a copy; their memory is *leased* to the loop's transport until
the kernel has accepted them.

**When a lease ends.** uvloop keeps a memoryview passed to ``write`` until the kernel has its bytes.
So memory up to the mark ``total written − transport.get_write_buffer_size()`` is free again. There
is no event when the mark moves, so it is computed on every write, once after the next turn of the
loop, and on ``resume_writing``. If leases are left after that turn, the write limits are set to
zero until they end: then the loop calls ``resume_writing`` as soon as its buffer is empty (the
*drain watch*).

**Gathering.** A sender of several messages in a row corks the write side. The messages then go to
the loop together, in one system call, and wake the other side once.

**Joining.** A loop uses a few hundred bytes for each pending write, even a short one. After
MAX_SMALL_WRITES short writes into a transport that is not empty, the next ones are joined in one
piece of memory, so that pending writes use little more memory than their bytes. The piece goes to
the loop when it is full, before a large message, or when the drain watch reports that the loop has
room.

**Pieces.** ``writelines`` of asyncio's own transports ignores the high watermark in Python 3.12.0
to 3.12.8, 3.13.0 and 3.13.1 (CVE-2024-12254), so a writer could fill the memory. On these versions
the pieces are joined and written with ``write``, as up to Python 3.11.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

Lines: TypeAlias = Iterable[bytes | bytearray | memoryview]

_VERSION: Final = sys.version_info[:3]

Release: TypeAlias = Callable[[], None]
"""Ends a lease: the transport no longer uses the memory. Called exactly once, even on failure."""

MAX_GATHERED_BYTES: Final = 128 * 1024
"""Most bytes to gather before the loop gets them: a Unix socket accepts this many at once."""


SMALL_BYTES: Final = 1024
"""Shorter messages may be joined; a longer one gets its own write."""

MAX_SMALL_WRITES: Final = 256
"""Small writes into a transport before its buffer is checked."""

JOINED_BYTES: Final = 16 * 1024
"""Approximate size of the pieces in which small messages are joined."""


class WriteSide:
    """Writes to one transport.

    Args:
        low_bytes: Writable again at or below this many unsent bytes.
        high_bytes: Not writable above this many unsent bytes. Gathered bytes count when the loop
            gets them: at most MAX_GATHERED_BYTES, in the same turn.
    """

    __slots__ = (
        "_closed",
        "_corked",
        "_gathered",
        "_gathered_bytes",
        "_high_bytes",
        "_joined",
        "_leases",
        "_loop",
        "_low_bytes",
        "_releasing",
        "_small_writes",
        "_transport",
        "_turn_due",
        "_watching_drain",
        "_write_lines",
        "backlog_bytes",
        "bytes_out",
        "messages_out",
        "writable",
    )

    def __init__(self, low_bytes: int, high_bytes: int) -> None:
        self.bytes_out = 0
        self.messages_out = 0
        self.backlog_bytes = 0
        """Bytes written since the side stopped being writable, all of small messages, which do not
        wait."""
        self.writable = False
        """False above the high watermark until the low one is reached, or without transport."""
        self._low_bytes = low_bytes
        self._high_bytes = high_bytes
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._write_lines: Callable[[Lines], None] = _nowhere
        self._closed = False
        self._leases: deque[tuple[int, Release]] = deque()
        self._turn_due = False
        self._releasing = False
        self._watching_drain = False
        self._corked = False
        self._gathered: list[memoryview | bytes] = []
        self._gathered_bytes = 0
        self._joined = bytearray()
        self._small_writes = 0

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the kernel has not accepted yet."""
        if self._transport is None:
            return 0
        waiting = self._transport.get_write_buffer_size() + self._gathered_bytes
        return waiting + len(self._joined)

    @property
    def high_bytes(self) -> int:
        """The high watermark."""
        return self._high_bytes

    @property
    def leased_buffers(self) -> int:
        """Payloads that the transport still holds."""
        return len(self._leases)

    def open(self, transport: asyncio.Transport) -> None:
        """Set the transport; the side becomes writable unless it was closed before."""
        self._transport = transport
        self._write_lines = lines_writer(transport)
        self._set_limits()
        self.writable = not self._closed

    def write(
        self,
        head: bytes,
        payload: memoryview | bytes,
        release: Release | None,
        messages: int = 1,
    ) -> None:
        """Write a head and a payload.

        Args:
            head: First bytes.
            payload: The bytes after it; not copied.
            release: Called when the transport no longer uses the payload, or at once if there is no
                transport or :meth:`close` was called.
            messages: Number of messages in these bytes.
        """
        transport = self._transport
        if transport is None or self._closed:
            if release is not None:
                release()
            return
        length = len(head) + len(payload)
        if not self.writable:
            self.backlog_bytes += length
        if self._corked:
            self._gathered.append(head)
            if length > len(head):
                self._gathered.append(payload)
            self._gathered_bytes += length
            if self._gathered_bytes >= MAX_GATHERED_BYTES:
                self._write_gathered(transport)
        elif (
            length < SMALL_BYTES
            and self._small_writes >= MAX_SMALL_WRITES
            and self._joins(transport)
        ):
            self._join(transport, (head, payload))
        else:
            if length < SMALL_BYTES:
                self._small_writes += 1
            elif self._joined:
                self._write_joined(transport)
            if length > len(head):
                self._write_lines((head, payload))
            else:
                transport.write(head)
        self._written(transport, length, release, messages)

    def write_pieces(self, pieces: Sequence[memoryview | bytes], release: Release | None) -> None:
        """Write a message whose head and payload are several pieces of memory, not copied.

        Args:
            pieces: Its bytes.
            release: As of :meth:`write`.
        """
        transport = self._transport
        if transport is None or self._closed:
            if release is not None:
                release()
            return
        length = sum(map(len, pieces))
        if not self.writable:
            self.backlog_bytes += length
        if self._corked:
            self._gathered += pieces
            self._gathered_bytes += length
            if self._gathered_bytes >= MAX_GATHERED_BYTES:
                self._write_gathered(transport)
        else:
            if self._joined:
                self._write_joined(transport)
            self._write_lines(pieces)
        self._written(transport, length, release, 1)

    def _written(
        self, transport: asyncio.Transport, length: int, release: Release | None, messages: int
    ) -> None:
        if self._watching_drain:
            self._see_high_watermark(transport)
        self.bytes_out += length
        self.messages_out += messages
        if release is not None:
            self._leases.append((self.bytes_out, release))
            if not self._turn_due:
                self._turn_due = True
                self._loop.call_soon(self._after_turn)
            elif len(self._leases) > 1:
                self.release_drained()

    def cork(self) -> None:
        """Gather bytes until :meth:`uncork`, in the same turn of the loop."""
        self._corked = True

    def uncork(self) -> None:
        """Write the gathered bytes, and stop gathering."""
        self._corked = False
        if self._gathered and self._transport is not None:
            self._write_gathered(self._transport)

    def _write_gathered(self, transport: asyncio.Transport) -> None:
        gathered, self._gathered = self._gathered, []
        length, self._gathered_bytes = self._gathered_bytes, 0
        are_small = length < SMALL_BYTES * len(gathered)
        if are_small:
            self._small_writes += len(gathered)
        if are_small and self._small_writes >= MAX_SMALL_WRITES and self._joins(transport):
            self._join(transport, gathered)
        else:
            if self._joined:
                self._write_joined(transport)
            self._write_lines(gathered)
        if self._watching_drain:
            self._see_high_watermark(transport)

    def _joins(self, transport: asyncio.Transport) -> bool:
        """Return whether small writes must be joined: others are still pending."""
        if self._joined:
            return True
        if transport.get_write_buffer_size() == 0 or transport.is_closing():
            self._small_writes = 0
            return False
        if self.writable and not self._watching_drain:
            self._watch_drain(transport)
        return True

    def _join(self, transport: asyncio.Transport, pieces: Iterable[memoryview | bytes]) -> None:
        for piece in pieces:
            self._joined += piece
        if len(self._joined) >= JOINED_BYTES:
            self._write_joined(transport)

    def _write_joined(self, transport: asyncio.Transport) -> None:
        joined, self._joined = self._joined, bytearray()
        transport.write(joined)

    def _see_high_watermark(self, transport: asyncio.Transport) -> None:
        """Check the high watermark here: the loop's own limits are zero."""
        if self.writable and transport.get_write_buffer_size() > self._high_bytes:
            self.writable = False
            self._set_limits()

    def paused(self) -> None:
        """Stop writing: the loop's buffer is above the current limit."""
        if not self._watching_drain:
            self.writable = False

    def resumed(self) -> bool:
        """Handle that the loop's buffer fell to its low limit, zero under the drain watch.

        Returns:
            True if the side became writable.
        """
        if self._watching_drain:
            self._set_limits()
        self.release_drained()
        if self._leases and not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._after_turn)
        transport = self._transport
        if self._closed or transport is None:
            return False
        was_writable = self.writable
        if not was_writable:
            self.writable = True
            self.backlog_bytes = 0
        if self._joined:
            self._write_joined(transport)  # the loop may pause this side again
        return self.writable and not was_writable

    def close(self) -> None:
        """Accept no further bytes; bytes written before are still sent."""
        self.uncork()
        if self._joined and self._transport is not None:
            self._write_joined(self._transport)
        self._closed = True
        self.writable = False

    def lost(self) -> None:
        """End every lease, because the transport is closed."""
        self.writable = False
        self._transport = None
        self._write_lines = _nowhere
        self._gathered = []
        self._gathered_bytes = 0
        self._joined = bytearray()
        self.backlog_bytes = 0
        while self._leases:
            self._leases.popleft()[1]()

    def release_drained(self) -> None:
        """End the leases up to the mark."""
        leases = self._leases
        if not leases or self._transport is None or self._releasing:
            return
        mark = self.bytes_out - self.unsent_bytes
        # A release may lead to the next write, and that write to this method: the flag bounds the
        # depth of the recursion.
        self._releasing = True
        try:
            while leases and leases[0][0] <= mark:
                leases.popleft()[1]()
        finally:
            self._releasing = False

    def _set_limits(self) -> None:
        self._watching_drain = False
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=self._high_bytes, low=self._low_bytes)

    def _after_turn(self) -> None:
        self._turn_due = False
        self.release_drained()
        transport = self._transport
        if self._turn_due or transport is None or self._closed or self._watching_drain:
            return  # the last write came later and has its own turn due
        if self._leases and self.writable:
            self._watch_drain(transport)

    def _watch_drain(self, transport: asyncio.Transport) -> None:
        """Set the limits to zero, so that the loop reports when its buffer is empty."""
        self._watching_drain = True
        transport.set_write_buffer_limits(high=0, low=0)


def _nowhere(lines: Lines) -> None:
    """Drop the bytes: there is no transport."""


def ignores_watermark(version: tuple[int, ...] = _VERSION) -> bool:
    """Return whether a version's ``writelines`` ignores the high watermark."""
    return (3, 12) <= version < (3, 12, 9) or (3, 13) <= version < (3, 13, 2)


def lines_writer(transport: asyncio.Transport) -> Callable[[Lines], None]:
    """Return the function that writes several pieces to a transport."""
    if ignores_watermark() and type(transport).__module__ == "asyncio.selector_events":
        return lambda lines: transport.write(b"".join(lines))
    return transport.writelines
