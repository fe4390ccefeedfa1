"""The write side of a connection: watermarks, and leases on the memory that is being sent.

Bytes are handed to the event loop without a copy; their memory is *leased* to the loop's transport
until the kernel has taken them.

**When a lease ends.** uvloop keeps a memoryview given to ``write`` until the kernel took its bytes.
``total written − transport.get_write_buffer_size()`` is therefore the mark up to which memory is
free again. No event tells when the mark moves, so it is computed on every write, once after the
loop has had a turn, and on ``resume_writing``. If there are leases left after that turn, the write
limits are set to zero until they have ended: then the loop calls ``resume_writing`` as soon as its
buffer is empty (the *drain watch*).

**Gathering.** A sender of several messages in a row corks the write side. The messages then go to
the loop together, in one system call, and wake the other side once.

**Joining.** A loop keeps a few hundred bytes for each write that the kernel has not taken, however
short it is. After MAX_SMALL_WRITES short ones into a transport that is not empty, those that
follow are joined in one piece of memory, so that what waits costs what its bytes are. The piece
goes to the loop when it is full, when a large message must go behind it, or when the loop has room:
the drain watch is set for that.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from .write_lines import Lines, lines_writer

Release: TypeAlias = Callable[[], None]
"""Ends a lease: the transport no longer uses the memory. Called exactly once, also on
failure."""

MAX_GATHERED_BYTES: Final = 128 * 1024
"""Most bytes that are gathered before the loop gets them: a Unix socket takes as many at once."""


SMALL_BYTES: Final = 1024
"""A shorter message may be joined with others; a longer one is worth a write of its own."""

MAX_SMALL_WRITES: Final = 256
"""Small writes into a transport before it is looked whether they have been sent."""

JOINED_BYTES: Final = 16 * 1024
"""Small messages are joined in pieces of about this size."""


class WriteSide:
    """Writes to one transport.

    Args:
        low_bytes: Writable again at or below this many unsent bytes.
        high_bytes: Not writable above this many unsent bytes. Gathered bytes are at most
            MAX_GATHERED_BYTES, never outlive their turn, and count when the loop has them.
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
        """Bytes written since the side is not writable; only small messages are, for they do not
        wait."""
        self.writable = False
        """False above the high watermark until the low one is reached, and without a transport."""
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
        """Bytes that the kernel has not taken yet."""
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
        """Take the transport; the side is writable from now on unless it was closed before."""
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
            payload: The bytes behind it; not copied.
            release: Called when the transport has let go of the payload, or at once if there is no
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
        """Gather bytes until :meth:`uncork`, which must follow in the same turn of the loop."""
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
        """Tell whether small writes must be joined: the transport still has others."""
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
        """Check the high watermark here, because the loop's own limits are zero."""
        if self.writable and transport.get_write_buffer_size() > self._high_bytes:
            self.writable = False
            self._set_limits()

    def paused(self) -> None:
        """Note that the loop's buffer is above the limit in force."""
        if not self._watching_drain:
            self.writable = False

    def resumed(self) -> bool:
        """Note that the loop's buffer fell to the low watermark, or to zero under the drain watch.

        Returns:
            True if the side was not writable, and is now.
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
            self._write_joined(transport)  # the loop may pause this side anew
        return self.writable and not was_writable

    def close(self) -> None:
        """Take no further bytes; those written before are still sent."""
        self.uncork()
        if self._joined and self._transport is not None:
            self._write_joined(self._transport)
        self._closed = True
        self.writable = False

    def lost(self) -> None:
        """End every lease, because the transport is gone."""
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
            return  # with a turn due, the last write has had none yet
        if self._leases and self.writable:
            self._watch_drain(transport)

    def _watch_drain(self, transport: asyncio.Transport) -> None:
        """Let the loop tell when its buffer is empty."""
        self._watching_drain = True
        transport.set_write_buffer_limits(high=0, low=0)


def _nowhere(lines: Lines) -> None:
    """Write nothing: there is no transport."""
