"""The common part of gates and unions of gates: sources in a queue, served in turn, and waiting.

Several readers may wait for one gate; each can be cancelled without effect on the others.
"""

import abc
import asyncio
import time
from collections import deque
from typing import Final, NamedTuple

from mypy_extensions import mypyc_attr

from ..partition.view import OutgoingBuffer


class Availability:
    """Wakes the readers that wait for data.

    It does not know whether there is data: a reader that wakes polls again, and waits again if
    another one was faster. Each waits for its own future, so that cancelling one does not touch the
    others.
    """

    __slots__ = ("_idle_seconds", "_waiters", "idle_since")

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], None] = {}  # a set that keeps their order
        self._idle_seconds = 0.0
        self.idle_since = 0.0
        """When the current wait began, as of ``time.monotonic()``; stale if no reader waits."""

    @property
    def waiting(self) -> int:
        """Number of readers that wait."""
        return len(self._waiters)

    @property
    def idle_seconds(self) -> float:
        """Time during which at least one reader waited, up to now."""
        if not self._waiters:
            return self._idle_seconds
        return self._idle_seconds + time.monotonic() - self.idle_since

    async def wait(self) -> None:
        """Wait for the next :meth:`wake`.

        Cancellation: safe, without effect on other waiters.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._waiters:
            # Not the loop's time: uvloop counts in milliseconds, and most waits are shorter.
            self.idle_since = time.monotonic()
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            if waiter in self._waiters:  # cancelled before it was woken
                del self._waiters[waiter]
                if not self._waiters:
                    self._idle_seconds += time.monotonic() - self.idle_since

    def wake(self) -> None:
        """Wake all readers that wait, in their order; each polls for itself."""
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._idle_seconds += time.monotonic() - self.idle_since


TURN_BYTES: Final = 4 * 1024 * 1024
"""Bytes a reader may take before other tasks run. A buffer that is there is taken without a turn of
the event loop, so a fast producer, or stored data, could keep other tasks out."""

BUFFER_COST_BYTES: Final = 32 * 1024
"""Bytes that a buffer counts beside its own, so that many small ones end a turn as well."""


class BufferOrEvent(NamedTuple):
    """A buffer or an event of a gate, and the index of the channel it came from."""

    channel_index: int
    buffer: OutgoingBuffer


@mypyc_attr(allow_interpreted_subclasses=True)
class ReadableGate:
    """Serves its sources (channels, or gates) in turn; those with a priority event come first.

    A subclass puts the numbers of available sources into the queues, reads a source when it is its
    turn, and wakes the readers that wait.
    """

    def __init__(self) -> None:
        self._urgent: deque[int] = deque()
        """Sources with a priority event, in the order in which the events came."""
        self._ready: deque[int] = deque()
        """Sources that may be available, in turn."""
        self._queued: set[int] = set()
        """The content of ``_ready``, so that no source is there twice."""
        self.availability = Availability()
        self._turn_bytes = 0

    @property
    @abc.abstractmethod
    def has_ended(self) -> bool:
        """True if nothing more will come."""

    @abc.abstractmethod
    def _poll_source(self, number: int) -> BufferOrEvent | None:
        """Take the next buffer or event of a source that has left the queues.

        It is put back into its queue if it has more, or has failed.

        Raises:
            SluiceError: A channel failed.
        """

    def poll(self) -> BufferOrEvent | None:
        """Take the next buffer or event if one is there; sources with a priority event come first.

        Raises:
            SluiceError: A channel failed.
        """
        urgent, ready = self._urgent, self._ready
        while urgent or ready:
            if urgent:
                number = urgent.popleft()
            else:
                number = ready.popleft()
                self._queued.discard(number)
            taken = self._poll_source(number)
            if taken is not None:
                return taken
        return None

    @property
    def is_available(self) -> bool:
        """True if polling makes progress: there is a buffer, an event or a failure.

        Polling may also begin a read of the disk tier.
        """
        return bool(self._ready or self._urgent)

    @property
    def has_priority_event(self) -> bool:
        """True if the next poll takes a priority event."""
        return bool(self._urgent)

    async def wait_available(self) -> None:
        """Wait until polling makes progress, or nothing more will come.

        Another reader may poll before the caller does.

        Cancellation: safe, without effect on other readers.
        """
        while not (self.is_available or self.has_ended):
            await self.availability.wait()

    async def next_buffer_or_event(self) -> BufferOrEvent | None:
        """Wait for the next buffer or event; sources with data are served in turn.

        A reader that never has to wait yields to other tasks of the event loop now and then.

        Returns:
            The buffer, to be released by the caller, or None after the end of all channels.

        Raises:
            SluiceError: A channel failed.

        Cancellation: safe, nothing is taken. Several callers share the buffers.
        """
        if self._turn_bytes >= TURN_BYTES:
            self._turn_bytes = 0
            await asyncio.sleep(0)
        while True:
            taken = self.poll()
            if taken is not None:
                self._turn_bytes += len(taken.buffer.payload) + BUFFER_COST_BYTES
                return taken
            if self.has_ended:
                return None
            self._turn_bytes = 0
            await self.availability.wait()

    def _hurry(self, number: int) -> None:
        """Serve a source before those that have no priority event."""
        if number not in self._urgent:
            self._urgent.append(number)

    def _queue(self, number: int) -> None:
        """Serve a source in its turn."""
        if number not in self._queued:
            self._queued.add(number)
            self._ready.append(number)
