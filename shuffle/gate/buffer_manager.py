"""The receive buffers of one remote channel: its own exclusive ones and floating ones of the gate.

A channel requires ``backlog + exclusive buffers``. Exclusive buffers, of which it may have none,
never leave the channel; floating ones come from the gate's pool while there is backlog and go back
when they are not needed. Each buffer that becomes available here is one credit for the sender.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from ..memory import ListenerHandle, LocalBufferPool, MemorySegment, NetworkBufferPool
from ..memory.buffer import BufferGroup, group_neighbours


class CreditListener(Protocol):
    """The owner of the buffers, which announces credit."""

    def credit_available(self, buffers: int) -> None:
        """Record that ``buffers`` more buffers are available."""


class _Nobody:
    """Takes the place of a channel that is released; it is not called."""

    def credit_available(self, buffers: int) -> None:
        """Do nothing."""


_NOBODY: Final = _Nobody()


class BufferManager:
    """Holds and supplies the buffers of one channel.

    Args:
        network_pool: The pool that exclusive segments go back to.
        floating_pool: The gate's pool; None if its channels share nothing.
        exclusive: The channel's own segments.
        listener: Called when buffers become available after the start.
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
        self._own = frozenset(segment.index for segment in exclusive)
        self._floating: list[MemorySegment] = []
        self._listener: CreditListener = listener
        self._waiting: ListenerHandle | None = None
        self._released = False
        self.segment_size_bytes = network_pool.segment_size_bytes
        self.initial_credit = len(self._exclusive)
        self.required = self.initial_credit
        """Buffers the channel requires: backlog + exclusive ones."""

    @property
    def available(self) -> int:
        """Buffers that can take data now."""
        return len(self._exclusive) + len(self._floating)

    @property
    def floating_pool(self) -> LocalBufferPool | None:
        """The gate's pool; None if its channels share nothing."""
        return self._floating_pool

    @property
    def exclusive_available(self) -> int:
        """Exclusive buffers that can take data now, of ``initial_credit`` in all."""
        return len(self._exclusive)

    @property
    def floating_available(self) -> int:
        """Floating buffers of this channel that can take data now."""
        return len(self._floating)

    @property
    def is_waiting(self) -> bool:
        """True while the channel waits for a floating buffer."""
        return self._waiting is not None

    def take(self, length: int) -> list[BufferGroup] | None:
        """Take buffers to receive a payload into, in as few runs of neighbours as possible.

        Args:
            length: Bytes of the payload, at least 1.

        Returns:
            None if there are too few buffers, which means data without credit.
        """
        floating, exclusive = self._floating, self._exclusive
        if not floating and not exclusive:
            return None
        size_bytes = self.segment_size_bytes
        if length <= size_bytes:
            segment = floating.pop() if floating else exclusive.pop()
            return [BufferGroup((segment,), length, self._recycle)]
        needed = -(-length // size_bytes)
        if needed > len(floating) + len(exclusive):
            return None
        taken = floating[-needed:]
        del floating[-needed:]
        if (more := needed - len(taken)) > 0:
            taken += exclusive[-more:]
            del exclusive[-more:]
        return group_neighbours(taken, length, self._recycle)

    def on_backlog(self, backlog: int) -> None:
        """Record the sender's backlog, and request the floating buffers that it requires.

        A surplus is not released here: it is already announced as credit. A floating buffer is
        released when an exclusive one is recycled.
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

    def give_up_floating(self) -> bool:
        """Leave free floating buffers to others, if the channel has no exclusive buffers.

        The sender stands still after a blocking event, until the other channels of the gate have
        brought theirs. Without a buffer of their own they could not.

        Returns:
            False if the channel has exclusive buffers, and keeps all.
        """
        if self.initial_credit:
            return False
        self.required = 0
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        floating, self._floating = self._floating, []
        self._give_back(floating)
        return True

    def release(self) -> None:
        """Release everything; buffers in use follow when they are recycled. Idempotent."""
        if self._released:
            return
        self._released = True
        self._listener = _NOBODY  # the channel refers to this manager
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        exclusive, self._exclusive = self._exclusive, []
        floating, self._floating = self._floating, []
        self._give_back(floating)
        self._network_pool.recycle_segments(exclusive)

    def _floating_came(self, segment: MemorySegment | None) -> bool:
        self._waiting = None
        pool = self._floating_pool
        missing = self.required - self.available
        if segment is None or pool is None or self._released or missing <= 0:
            return False
        floating = self._floating
        floating.append(segment)
        added = 1
        # Segments recycled together stay together: neighbours receive in one piece.
        while added < missing and (more := pool.take_more_nowait()) is not None:
            floating.append(more)
            added += 1
        if added < missing:
            self._wait_for_floating(pool)
        self._listener.credit_available(added)
        return True

    def _wait_for_floating(self, pool: LocalBufferPool) -> None:
        handle = pool.add_listener(self._floating_came)
        if handle.is_waiting:  # else the pool has called it already, and it may wait again
            self._waiting = handle

    def _recycle(self, segments: Sequence[MemorySegment]) -> None:
        """Take back the segments of a group of buffers."""
        own = self._own
        exclusive = [segment for segment in segments if segment.index in own]
        # Floating segments go to the pool and not to this channel: the pool knows the backlogs.
        floating = [segment for segment in segments if segment.index not in own]
        if exclusive:
            if self._released:
                self._network_pool.recycle_segments(exclusive)
            else:
                self._exclusive += exclusive
                surplus = min(len(exclusive), len(self._floating), self.available - self.required)
                if surplus > 0:
                    floating += self._floating[-surplus:]
                    del self._floating[-surplus:]
                else:
                    surplus = 0
                if surplus < len(exclusive):
                    self._listener.credit_available(len(exclusive) - surplus)
        if floating and not self._keep(floating):
            self._give_back(floating)

    def _keep(self, floating: list[MemorySegment]) -> bool:
        """Keep floating segments if the pool would return them: no other channel waits.

        This saves a round through the pool, which is as expensive for one segment as for many.
        """
        waiting, pool = self._waiting, self._floating_pool
        if waiting is None or pool is None or not pool.is_only_waiting(waiting):
            return False
        missing = self.required - self.available
        if len(floating) >= missing:
            return False  # some are left for other channels: the pool distributes them
        self._floating += floating
        self._listener.credit_available(len(floating))
        return True

    def _give_back(self, floating: Sequence[MemorySegment]) -> None:
        if floating and self._floating_pool is not None:
            self._floating_pool.recycle_together(floating)


class BufferUsage(NamedTuple):
    """The receive buffers of a gate at one moment.

    Attributes:
        exclusive_buffers: Buffers that belong to single channels.
        exclusive_used: Exclusive buffers that hold data, or receive it.
        floating_limit: Number of floating buffers that the gate may have now.
        floating_used: Floating buffers that hold data, or receive it; more than the limit for a
            while after the limit has fallen.
    """

    exclusive_buffers: int
    exclusive_used: int
    floating_limit: int
    floating_used: int


def buffer_usage(managers: Iterable[BufferManager]) -> BufferUsage:
    """Add up the buffers of the channels of one gate."""
    exclusive = exclusive_available = floating_available = 0
    pool = None
    for manager in managers:
        exclusive += manager.initial_credit
        exclusive_available += manager.exclusive_available
        floating_available += manager.floating_available
        pool = manager.floating_pool
    lent, limit = (0, 0) if pool is None else (pool.lent_segments, pool.size_segments)
    return BufferUsage(exclusive, exclusive - exclusive_available, limit, lent - floating_available)
