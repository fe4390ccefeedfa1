"""The receive buffers of one remote channel: its own exclusive ones and floating ones of the gate.

What a channel wants is ``backlog + exclusive buffers``. Exclusive buffers never leave the channel;
floating ones come from the gate's pool while there is backlog and go back when they are not needed.
Each buffer that becomes available here is one credit for the sender.
"""

from collections.abc import Sequence
from typing import Protocol

from shuffle.memory import (
    ListenerHandle,
    LocalBufferPool,
    MemorySegment,
    NetworkBuffer,
    NetworkBufferPool,
)


class CreditListener(Protocol):
    """Whoever announces credit."""

    def credit_available(self, buffers: int) -> None:
        """So many buffers have become available."""


class BufferManager:
    """Holds and supplies the buffers of one channel.

    Args:
        network_pool: Where exclusive segments go back to.
        floating_pool: The gate's pool; None if its channels share nothing.
        exclusive: The channel's own segments.
        listener: Told of every buffer that becomes available after the start.
    """

    def __init__(
        self,
        network_pool: NetworkBufferPool,
        floating_pool: LocalBufferPool | None,
        exclusive: Sequence[MemorySegment],
        listener: CreditListener,
    ) -> None:
        self._network_pool = network_pool
        self._floating_pool = floating_pool
        self._exclusive = list(exclusive)
        self._floating: list[MemorySegment] = []
        self._listener = listener
        self._waiting: ListenerHandle | None = None
        self._released = False
        self.initial_credit = len(self._exclusive)
        self.required = self.initial_credit
        """Buffers the channel wants: backlog + exclusive ones."""

    @property
    def available(self) -> int:
        """Buffers that can take data now."""
        return len(self._exclusive) + len(self._floating)

    @property
    def is_waiting(self) -> bool:
        """True while a floating buffer is waited for."""
        return self._waiting is not None

    def take(self) -> NetworkBuffer | None:
        """Take a buffer to receive into; None if there is none, which means data without credit."""
        if self._floating:
            return NetworkBuffer(self._floating.pop(), 0, self._recycle_floating)
        if self._exclusive:
            return NetworkBuffer(self._exclusive.pop(), 0, self._recycle_exclusive)
        return None

    def on_backlog(self, backlog: int) -> None:
        """Take note of the sender's backlog, and get floating buffers if it asks for them.

        What is too many is not taken back here, for it was announced as credit: a floating buffer
        goes when an exclusive one comes back in its place.
        """
        self.required = required = backlog + self.initial_credit
        missing = required - len(self._exclusive) - len(self._floating)
        pool = self._floating_pool
        if missing <= 0 or self._waiting is not None or pool is None or self._released:
            return
        added = 0
        while added < missing:
            segment = pool.request_segment_nowait()
            if segment is None:
                self._wait_for_floating(pool)
                break
            self._floating.append(segment)
            added += 1
        if added:
            self._listener.credit_available(added)

    def release(self) -> None:
        """Give everything back; buffers that are out follow when they are recycled. Idempotent."""
        if self._released:
            return
        self._released = True
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        exclusive, self._exclusive = self._exclusive, []
        floating, self._floating = self._floating, []
        for segment in floating:
            self._recycle_floating(segment)
        self._network_pool.recycle_segments(exclusive)

    def _floating_came(self, segment: MemorySegment | None) -> bool:
        self._waiting = None
        if segment is None or self._released or self.available >= self.required:
            return False
        self._floating.append(segment)
        if self.available < self.required and self._floating_pool is not None:
            self._wait_for_floating(self._floating_pool)
        self._listener.credit_available(1)
        return True

    def _wait_for_floating(self, pool: LocalBufferPool) -> None:
        handle = pool.add_listener(self._floating_came)
        if handle.is_waiting:  # else it was called already, and waits anew if need be
            self._waiting = handle

    def _recycle_floating(self, segment: MemorySegment) -> None:
        # To the pool and not to this channel: the floating ones go where the backlog is.
        if self._floating_pool is not None:
            self._floating_pool.recycle(segment)

    def _recycle_exclusive(self, segment: MemorySegment) -> None:
        if self._released:
            self._network_pool.recycle_segments((segment,))
            return
        exclusive = self._exclusive
        exclusive.append(segment)
        if self._floating and len(exclusive) + len(self._floating) > self.required:
            self._recycle_floating(self._floating.pop())
        else:
            self._listener.credit_available(1)
