"""The share of network memory of one input gate, result partition or connection.

Two numbers rule a local pool: ``held`` (segments it has drawn: idle here or lent) and its limit,
which the network pool moves. Below the limit the pool draws segments one by one when asked; above
it, each recycled segment goes home to the network pool. A pool is above its limit because the limit
fell while segments were out, or by overdraft: a few segments that the network pool has to spare,
for a task that is in the middle of a record. Either way the surplus is what comes back first.

A pool is *available* when a task may begin work that needs a segment: one can be had within the
limit, no listener waits, and no channel has its maximum. Overdraft and a channel's maximum refuse
nothing by themselves: they stop tasks because tasks check the availability before each record.

No request overtakes a waiting listener (:mod:`sluice.shuffle.memory.segment_queue`): while
listeners wait, :meth:`LocalBufferPool.request_segment_nowait` gives nothing. So at rest a pool
never has both waiting listeners and segments it could give them.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ..errors import PoolDestroyed, SegmentNotLent
from .buffer import NetworkBuffer
from .channel_accounts import NO_CHANNEL, ChannelAccounts
from .distribution import PoolBounds
from .segment_queue import ListenerHandle, SegmentListener, SegmentQueue, SegmentRequest

if TYPE_CHECKING:
    from .network_buffer_pool import NetworkBufferPool
    from .segment import MemorySegment
    from .segment_owner import OwnerShare


def _not_lent(segment: "MemorySegment") -> None:
    raise SegmentNotLent("a pool that is gone", segment.index)


class LocalBufferPool:
    """Segments of one task's gate or partition. Made by ``NetworkBufferPool.create_local_pool``.

    Args:
        network_pool: Where the segments come from.
        name: For errors, logs and status pages.
        kind: The pool's purpose, in a word: metrics add up the pools of a kind.
        bounds: Numbers of segments that the pool is promised and may hold.
        share: The part of its owner in the network pool.

    Attributes:
        channels: How many segments each channel has, in a pool with a maximum per channel.
        room: Segments by which the limit can exceed the required ones.
        overdrafts: Segments ever lent beyond the limit; only grows.
        is_destroyed: Whether the pool gives out no more segments.
    """

    __slots__ = (
        "__weakref__",
        "_handing_out",
        "_held",
        "_idle",
        "_limit",
        "_listeners",
        "_network_pool",
        "_queue",
        "_quick_limit",
        "_recycler",
        "bounds",
        "channels",
        "is_destroyed",
        "kind",
        "name",
        "overdrafts",
        "room",
        "share",
    )

    def __init__(
        self,
        network_pool: "NetworkBufferPool",
        name: str,
        kind: str,
        bounds: PoolBounds,
        share: "OwnerShare[LocalBufferPool]",
    ) -> None:
        self.name: Final = name
        self.kind: Final = kind
        self.bounds: Final = bounds
        self.share: Final = share
        self.room: Final = bounds.room(network_pool.total_segments)
        self.overdrafts = 0
        self._network_pool = network_pool
        self._limit = bounds.required_segments
        # The limit while nothing waits, else -1: one comparison tells a recycle that there is
        # nothing else to do. May stay -1 after the last one gave up; the next recycle sets it.
        self._quick_limit = bounds.required_segments
        self._held = 0
        self._idle: list[MemorySegment] = []
        self._queue = SegmentQueue(name)
        self._listeners = self._queue.listeners  # the queue's own, for speed
        self.channels: Final = ChannelAccounts(self, name, bounds.max_buffers_per_channel)
        self._handing_out = False
        self.is_destroyed = False
        self._recycler = self.recycle  # one bound method for all buffers

    # ---- what users of the pool call

    def request_segment_nowait(self, channel: int = NO_CHANNEL) -> "MemorySegment | None":
        """Take a segment; ``None`` if there is none now, or listeners are before the caller.

        At the limit it may be one of ``max_overdraft_buffers``, if the network pool has one to
        spare. Return it with :meth:`recycle`.

        Args:
            channel: Charged in a pool with ``max_buffers_per_channel``, unless negative.

        Raises:
            PoolDestroyed: The pool gives out no more segments.
        """
        idle = self._idle
        if idle and self._quick_limit >= 0:
            segment = idle.pop()
            segment.holder = self if channel < 0 else self.channels.charge(channel)
            return segment
        return self._draw(channel)

    def request_buffer_nowait(self, channel: int = NO_CHANNEL) -> NetworkBuffer | None:
        """Take an empty buffer that recycles itself to this pool; ``None`` if there is none now.

        Args:
            channel: As for :meth:`request_segment_nowait`.

        Raises:
            PoolDestroyed: The pool gives out no more segments.
        """
        idle = self._idle
        if idle and self._quick_limit >= 0:  # not the call above: this path is hot
            segment = idle.pop()
            segment.holder = self if channel < 0 else self.channels.charge(channel)
            return NetworkBuffer(segment, 0, self._recycler)
        drawn = self._draw(channel)
        return None if drawn is None else NetworkBuffer(drawn, 0, self._recycler)

    def buffer_of(self, segment: "MemorySegment", length: int) -> NetworkBuffer:
        """Wrap a segment that this pool has lent; it recycles itself to this pool."""
        return NetworkBuffer(segment, length, self._recycler)

    def recycle(self, segment: "MemorySegment") -> None:
        """Return a lent segment; a destroyed pool accepts it too.

        Above the limit it goes to the network pool, else to the first waiting listener, else it
        stays here idle.

        Raises:
            SegmentNotLent: This pool has not lent it, or it was recycled before.
        """
        if segment.holder is not self:
            self.channels.settle(segment)
        segment.holder = None
        if self._held <= self._quick_limit:
            self._idle.append(segment)
        elif self._held > self._limit:
            self._send_home(segment)
        else:
            self._idle.append(segment)
            self._hand_out()

    def recycle_together(self, segments: Iterable["MemorySegment"]) -> None:
        """Return several lent segments at once: a listener may then take more than one of them.

        Raises:
            SegmentNotLent: As :meth:`recycle`; those before it have been given back.
        """
        idle = self._idle
        try:
            for segment in segments:
                if segment.holder is not self:
                    self.channels.settle(segment)
                segment.holder = None
                if self._held <= self._limit:
                    idle.append(segment)
                else:
                    self._send_home(segment)
        finally:
            if idle and self._quick_limit < 0:
                self._hand_out()

    def is_only_waiting(self, handle: ListenerHandle) -> bool:
        """Return whether a segment recycled now would come straight back to this listener.

        Then its user may as well keep the segment.
        """
        return (
            handle.is_waiting
            and len(self._listeners) == 1
            and self._held <= self._limit
            and not self.is_destroyed
        )

    def take_more_nowait(self) -> "MemorySegment | None":
        """Take an idle segment, before those who wait; only for a listener in its call."""
        if not self._idle or self.is_destroyed:
            return None
        segment = self._idle.pop()
        segment.holder = self
        return segment

    def add_listener(self, callback: SegmentListener) -> ListenerHandle:
        """Queue for one segment, first come first served.

        If one is available and no other listener waits, this call calls ``callback``.

        Args:
            callback: See :data:`SegmentListener`. Called at most once.

        Raises:
            PoolDestroyed: The pool gives out no more segments.
        """
        if self.is_destroyed:
            raise PoolDestroyed(self.name)
        self._quick_limit = -1
        handle = ListenerHandle(self._listeners, callback)
        if self._idle:
            self._hand_out()
        if self._held < self._limit and self.wants_segment:  # at the limit without a call
            self._network_pool.await_segment(self)
        return handle

    async def request_segment(
        self, timeout_seconds: float, channel: int = NO_CHANNEL
    ) -> "MemorySegment":
        """Take a segment, waiting in the same queue as the listeners.

        Cancelling is safe: it has no effect on the pool.

        Args:
            timeout_seconds: How long to wait at most.
            channel: As for :meth:`request_segment_nowait`.

        Raises:
            NetworkBufferTimeout: Nothing became available in time.
            PoolDestroyed: The pool is destroyed, or was while waiting.
        """
        segment = self.request_segment_nowait(channel)
        if segment is not None:
            return segment
        request = SegmentRequest(self.name, timeout_seconds, self._recycler)
        handle = self.add_listener(request.accept)
        try:
            segment = await request.wait()
        finally:
            handle.cancel()
        if channel >= 0:
            segment.holder = self.channels.charge(channel)
        return segment

    async def wait_available(self) -> None:
        """Wait until :attr:`is_available`, which holds until the caller's next await.

        Has no deadline, because back pressure may last; cancelling is safe and has no effect.

        Raises:
            PoolDestroyed: The pool is destroyed, or was while waiting.
        """
        while not self.is_available:
            if self.is_destroyed:
                raise PoolDestroyed(self.name)
            turn = self._queue.add_task()
            self._quick_limit = -1
            if self.wants_segment:
                self._network_pool.await_segment(self)
            try:
                await turn
            finally:
                self._queue.tasks.pop(turn, None)

    def destroy(self) -> None:
        """Return idle segments, call listeners with ``None``, wake all tasks; idempotent."""
        if self.is_destroyed:
            return
        self.is_destroyed = True
        self.set_limit(0)
        waiting = self._queue.clear()
        self._network_pool.local_pool_destroyed(self)
        self._queue.dismiss(waiting)
        if self._held == 0:
            self._forget_itself()

    @property
    def is_available(self) -> bool:
        """Whether the pool has a segment within the limit, no listener and no full channel."""
        if self.is_destroyed or self._listeners or self.channels.full_channels:
            return False
        return bool(self._idle) or (
            self._held < self._limit and self._network_pool.can_lend_to(self)
        )

    # ---- numbers

    @property
    def size_segments(self) -> int:
        """The current limit: how many segments the pool may hold."""
        return self._limit

    @property
    def held_segments(self) -> int:
        """Segments drawn from the network pool: idle and lent."""
        return self._held

    @property
    def idle_segments(self) -> int:
        """Segments that lie here ready to be lent."""
        return len(self._idle)

    @property
    def lent_segments(self) -> int:
        """Segments in the hands of this pool's users."""
        return self._held - len(self._idle)

    @property
    def overdraft_segments(self) -> int:
        """Segments held beyond the limit: lent by overdraft, or out since before the limit fell."""
        return max(0, self._held - self._limit)

    @property
    def waiting_listeners(self) -> int:
        """Listeners (waiting ``request_segment`` calls too) that are still to be served."""
        return len(self._listeners)

    @property
    def waiting_for_availability(self) -> int:
        """Tasks in :meth:`wait_available`."""
        return len(self._queue.tasks)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.name}: {self.lent_segments} lent,"
            f" {len(self._idle)} idle, limit {self._limit}>"
        )

    # ---- what the network pool calls

    @property
    def wants_segment(self) -> bool:
        """Whether those who wait need more than is idle here, within the limit."""
        if self._held >= self._limit:
            return False
        idle = len(self._idle)
        return len(self._listeners) > idle or (
            bool(self._queue.tasks) and idle == 0 and self.channels.full_channels == 0
        )

    def set_limit(self, segments: int) -> None:
        """Move the limit; idle segments above it go home at once.

        Calls no listener, so that all limits can be moved before anybody acts on them.
        """
        self._limit = segments
        if self._quick_limit >= 0:
            self._quick_limit = segments
        idle = self._idle
        while idle and self._held > segments:
            self._held -= 1
            self._network_pool.put_home(self, idle.pop())

    def receive(self, segment: "MemorySegment") -> None:
        """Take a segment from the network pool, and hand it to the first listener."""
        self._held += 1
        self._idle.append(segment)
        self._hand_out()

    # ---- inside

    def _draw(self, channel: int) -> "MemorySegment | None":
        """Take a segment the slow way: none is idle, or others may be waiting."""
        if self.is_destroyed:
            raise PoolDestroyed(self.name)
        if self._listeners:
            return None
        if self._idle:
            segment = self._idle.pop()
        elif self._held >= self._limit + self.bounds.max_overdraft_buffers:
            return None
        else:
            drawn = self._network_pool.lend_to(self)
            if drawn is None:
                return None
            segment = drawn
            self._held += 1
            if self._held > self._limit:
                self.overdrafts += 1
        segment.holder = self if channel < 0 else self.channels.charge(channel)
        return segment

    def _send_home(self, segment: "MemorySegment") -> None:
        self._held -= 1
        if self.is_destroyed and self._held == 0:
            self._network_pool.local_pool_drained(self)
            self._forget_itself()
        self._network_pool.give_back(self, segment)

    def _forget_itself(self) -> None:
        """Drop the references to itself, so that it is freed with the last one to it."""
        self._recycler = _not_lent
        self.channels.close()

    def _hand_out(self) -> None:
        """Give idle segments to the listeners, then wake the tasks that wait for availability.

        Nested calls leave it to the outermost one: the stack stays flat however many listeners
        wait.
        """
        if self._handing_out:
            return
        self._handing_out = True
        idle = self._idle
        queue = self._queue
        listeners = self._listeners
        try:
            while idle and listeners:
                handle, _ = listeners.popitem(last=False)
                segment = idle.pop()
                segment.holder = self
                # A listener that declined (or raised) may have given the segment back already;
                # then the pool is no longer its holder.
                if not queue.call(handle, segment) and segment.is_held_by(self):
                    segment.holder = None
                    if self._held <= self._limit:
                        idle.append(segment)
                    else:  # the limit fell while the listener ran
                        self._send_home(segment)
        finally:
            self._handing_out = False
        if not listeners:
            if idle and queue.tasks and self.channels.full_channels == 0:
                queue.wake_tasks()
            if not queue.tasks:
                self._quick_limit = self._limit
