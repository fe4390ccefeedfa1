"""The share of network memory of one input gate, result partition or connection.

Two numbers rule a local pool: ``held`` (segments it has drawn: idle here or lent) and its limit,
which the network pool moves. Below the limit it draws segments one by one when asked; above it,
each recycled segment goes home to the network pool.

A listener is *handed* its segment and nobody overtakes it: while listeners wait,
:meth:`LocalBufferPool.request_segment_nowait` gives nothing. So at rest a pool never has both
waiting listeners and segments it could give them.

Listeners run inside the call that made a segment available and may call any pool. A pool already
handing out segments only notes what a nested call brings, and its own loop goes on with it: the
stack stays flat however many listeners wait.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from shuffle.memory.buffer import NetworkBuffer
from shuffle.memory.errors import NetworkBufferTimeout, PoolDestroyed, SegmentNotLent
from shuffle.memory.listener import ListenerHandle, SegmentListener
from shuffle.memory.statistics import LocalBufferPoolStatistics

if TYPE_CHECKING:
    from shuffle.memory.network_buffer_pool import NetworkBufferPool
    from shuffle.memory.segment import MemorySegment

logger = logging.getLogger(__name__)


class LocalBufferPool:
    """Segments of one task's gate or partition. Made by ``NetworkBufferPool.create_local_pool``.

    Args:
        network_pool: Where the segments come from and go home to.
        name: For errors, logs and status pages.
        required_segments: The limit never goes below this.
        maximum_segments: The limit never goes above this; ``None`` for unbounded.
    """

    __slots__ = (
        "__weakref__",
        "_handing_out",
        "_held",
        "_idle",
        "_is_destroyed",
        "_limit",
        "_listeners",
        "_network_pool",
        "_recycler",
        "maximum_segments",
        "name",
        "required_segments",
        "room",
    )

    def __init__(
        self,
        network_pool: "NetworkBufferPool",
        name: str,
        required_segments: int,
        maximum_segments: int | None,
    ) -> None:
        self.name: Final = name
        self.required_segments: Final = required_segments
        self.maximum_segments: Final = maximum_segments
        ceiling = network_pool.total_segments if maximum_segments is None else maximum_segments
        self.room: Final = max(0, ceiling - required_segments)
        self._network_pool = network_pool
        self._limit = required_segments
        self._held = 0
        self._idle: list[MemorySegment] = []
        self._listeners: OrderedDict[ListenerHandle, None] = OrderedDict()
        self._handing_out = False
        self._is_destroyed = False
        self._recycler = self.recycle  # one bound method for all buffers

    # ---- what users of the pool call

    def request_segment_nowait(self) -> "MemorySegment | None":
        """Take a segment, or ``None``: nothing now, or listeners are before the caller.

        Give it back with :meth:`recycle`.

        Raises:
            PoolDestroyed: The pool gives out no more segments.
        """
        idle = self._idle
        if idle and not self._listeners:
            segment = idle.pop()
            segment.holder = self
            return segment
        return self._draw()

    def request_buffer_nowait(self) -> NetworkBuffer | None:
        """Take an empty buffer that recycles itself to this pool, or ``None``: nothing now.

        Raises:
            PoolDestroyed: The pool gives out no more segments.
        """
        segment = self.request_segment_nowait()
        return None if segment is None else NetworkBuffer(segment, 0, self._recycler)

    def buffer_of(self, segment: "MemorySegment", length: int) -> NetworkBuffer:
        """Wrap a segment that this pool has lent; it recycles itself to this pool."""
        return NetworkBuffer(segment, length, self._recycler)

    def recycle(self, segment: "MemorySegment") -> None:
        """Give a lent segment back; a destroyed pool takes it home too.

        Above the limit it goes to the network pool, else to the first waiting listener, else it
        stays here idle.

        Raises:
            SegmentNotLent: This pool has not lent it, or it was recycled before.
        """
        if segment.holder is not self:
            raise SegmentNotLent(self.name, segment.index)
        segment.holder = None
        if self._held <= self._limit:
            self._idle.append(segment)
            if self._listeners:
                self._hand_out()
        else:
            self._send_home(segment)

    def recycle_together(self, segments: Iterable["MemorySegment"]) -> None:
        """Give several lent segments back at once: a listener may then take more than one of them.

        Raises:
            SegmentNotLent: As :meth:`recycle`; those before it have been given back.
        """
        idle = self._idle
        try:
            for segment in segments:
                if segment.holder is not self:
                    raise SegmentNotLent(self.name, segment.index)
                segment.holder = None
                if self._held <= self._limit:
                    idle.append(segment)
                else:
                    self._send_home(segment)
        finally:
            if idle and self._listeners:
                self._hand_out()

    def take_more_nowait(self) -> "MemorySegment | None":
        """For a listener in its call: one more idle segment, before those who wait behind it."""
        if not self._idle or self._is_destroyed:
            return None
        segment = self._idle.pop()
        segment.holder = self
        return segment

    def add_listener(self, callback: SegmentListener) -> ListenerHandle:
        """Queue for one segment, first come first served.

        When one is available and nobody waits before, ``callback`` is called inside this call.

        Args:
            callback: See :data:`SegmentListener`. Called at most once.

        Raises:
            PoolDestroyed: The pool gives out no more segments.
        """
        if self._is_destroyed:
            raise PoolDestroyed(self.name)
        handle = ListenerHandle(self._listeners, callback)
        if self._idle:
            self._hand_out()
        if self.wants_segment:
            self._network_pool.await_segment(self)
        return handle

    async def request_segment(self, timeout_seconds: float) -> "MemorySegment":
        """Take a segment, waiting in the same queue as the listeners.

        Cancelling is safe: it has no effect on the pool.

        Args:
            timeout_seconds: How long to wait at most.

        Raises:
            NetworkBufferTimeout: Nothing became available in time.
            PoolDestroyed: The pool is destroyed, or was while waiting.
        """
        segment = self.request_segment_nowait()
        if segment is not None:
            return segment
        loop = asyncio.get_running_loop()
        arrival: asyncio.Future[MemorySegment] = loop.create_future()

        def accept(segment: "MemorySegment | None") -> bool:
            if arrival.done():
                return False  # cancelled or timed out in this very turn of the loop
            if segment is None:
                arrival.set_exception(PoolDestroyed(self.name))
                return False
            arrival.set_result(segment)
            return True

        def expire() -> None:
            if not arrival.done():
                arrival.set_exception(NetworkBufferTimeout(self.name, 1, 0, timeout_seconds))

        # The timer settles the future itself, so that a segment and the deadline cannot both win.
        handle = self.add_listener(accept)
        timer = loop.call_later(timeout_seconds, expire)
        try:
            return await arrival
        except asyncio.CancelledError:
            # Cancelled after the segment had been handed over, before this task could run.
            if not arrival.cancelled() and arrival.done() and arrival.exception() is None:
                self.recycle(arrival.result())
            raise
        finally:
            timer.cancel()
            handle.cancel()

    def destroy(self) -> None:
        """Give back what is idle and tell every listener ``None``; idempotent.

        Lent segments come home as they are recycled.
        """
        if self._is_destroyed:
            return
        self._is_destroyed = True
        self.set_limit(0)
        waiting = list(self._listeners)
        self._listeners.clear()
        self._network_pool.local_pool_destroyed(self)
        for handle in waiting:
            self._call(handle, None)

    # ---- what there is to see

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
    def waiting_listeners(self) -> int:
        """Listeners (waiting ``request_segment`` calls too) that are still to be served."""
        return len(self._listeners)

    @property
    def is_destroyed(self) -> bool:
        """Whether the pool gives out no more segments."""
        return self._is_destroyed

    @property
    def is_available(self) -> bool:
        """Whether ``request_segment_nowait`` would give a segment now."""
        if self._is_destroyed or self._listeners:
            return False
        return bool(self._idle) or (
            self._held < self._limit and self._network_pool.can_lend_to_local_pools
        )

    def statistics(self) -> LocalBufferPoolStatistics:
        """A frozen snapshot."""
        return LocalBufferPoolStatistics(
            name=self.name,
            required_segments=self.required_segments,
            maximum_segments=self.maximum_segments,
            size_segments=self._limit,
            idle_segments=len(self._idle),
            lent_segments=self.lent_segments,
            waiting_listeners=len(self._listeners),
            is_destroyed=self._is_destroyed,
        )

    # ---- what the network pool calls

    @property
    def wants_segment(self) -> bool:
        """For the network pool: listeners wait for more than lies here, and the limit allows it."""
        return self._held < self._limit and len(self._listeners) > len(self._idle)

    def set_limit(self, segments: int) -> None:
        """For the network pool: move the limit; idle segments above it go home at once.

        Calls no listener, so that all limits can be moved before anybody acts on them.
        """
        self._limit = segments
        idle = self._idle
        while idle and self._held > segments:
            self._held -= 1
            self._network_pool.put_home(idle.pop())

    def receive(self, segment: "MemorySegment") -> None:
        """For the network pool: a segment for the first listener."""
        self._held += 1
        self._idle.append(segment)
        self._hand_out()

    # ---- inside

    def _draw(self) -> "MemorySegment | None":
        """Nothing idle, or somebody is waiting: ask the network pool if the limit allows it."""
        if self._is_destroyed:
            raise PoolDestroyed(self.name)
        if self._listeners or self._held >= self._limit:
            return None
        segment = self._network_pool.lend_to_local_pool()
        if segment is not None:
            self._held += 1
            segment.holder = self
        return segment

    def _send_home(self, segment: "MemorySegment") -> None:
        self._held -= 1
        if self._is_destroyed and self._held == 0:
            self._network_pool.local_pool_drained(self)
        self._network_pool.give_back(segment)

    def _hand_out(self) -> None:
        """Give idle segments to the listeners; nested calls leave it to the outermost one."""
        if self._handing_out:
            return
        self._handing_out = True
        idle = self._idle
        listeners = self._listeners
        try:
            while idle and listeners:
                handle, _ = listeners.popitem(last=False)
                segment = idle.pop()
                segment.holder = self
                # The holder tells whether a listener that declined (or raised) had already
                # given the segment back.
                if not self._call(handle, segment) and segment.holder is self:
                    segment.holder = None
                    if self._held <= self._limit:
                        idle.append(segment)
                    else:  # the limit fell while the listener ran
                        self._send_home(segment)
        finally:
            self._handing_out = False

    def _call(self, handle: ListenerHandle, segment: "MemorySegment | None") -> bool:
        callback = handle.take_callback()
        if callback is None:
            return False
        try:
            return callback(segment)
        except Exception:
            # The caller is somebody who recycles a buffer: another task's error is not his.
            logger.exception("a listener of buffer pool %s failed", self.name)
            return False

    def __repr__(self) -> str:
        return (
            f"<LocalBufferPool {self.name}: {self.lent_segments} lent, {len(self._idle)} idle,"
            f" limit {self._limit}>"
        )
