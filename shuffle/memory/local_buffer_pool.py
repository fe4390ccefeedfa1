"""The share of network memory of one input gate, result partition or connection.

Two numbers rule a local pool: ``held`` (segments it has drawn: idle here or lent) and its limit,
which the network pool moves. Below the limit it draws segments one by one when asked; above it,
each recycled segment goes home to the network pool. A pool is above its limit because the limit
fell while segments were out, or by overdraft: a few segments that the network pool has to spare,
for a task that is in the middle of a record. Either way the surplus is what comes back first.

A pool is *available* when a task may begin something that needs a segment: one can be had within
the limit, nobody waits for it, and no channel has its maximum. Overdraft and a channel's maximum
refuse nothing by themselves; whoever looks at the availability before each record, as tasks do, is
stopped there.

A listener is *handed* its segment and nobody overtakes it: while listeners wait,
:meth:`LocalBufferPool.request_segment_nowait` gives nothing. So at rest a pool never has both
waiting listeners and segments it could give them.

Listeners run inside the call that made a segment available and may call any pool. A pool already
handing out segments only notes what a nested call brings, and its own loop goes on with it: the
stack stays flat however many listeners wait.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from sluice.shuffle.errors import PoolDestroyed, SegmentNotLent
from sluice.shuffle.memory.arrival import wait_for_segment
from sluice.shuffle.memory.buffer import NetworkBuffer
from sluice.shuffle.memory.channel_accounts import NO_CHANNEL, ChannelAccount
from sluice.shuffle.memory.listener import ListenerHandle, SegmentListener
from sluice.shuffle.memory.local_pool_books import LocalPoolBooks

if TYPE_CHECKING:
    from sluice.shuffle.memory.network_buffer_pool import NetworkBufferPool
    from sluice.shuffle.memory.segment import MemorySegment

logger = logging.getLogger(__name__)

_LISTENER_FAILED: Final = "a listener of buffer pool %s failed"


class LocalBufferPool(LocalPoolBooks):
    """Segments of one task's gate or partition. Made by ``NetworkBufferPool.create_local_pool``.

    Args:
        network_pool: Where the segments come from.
        name: For errors, logs and status pages.
        required_segments: The limit never goes below this.
        maximum_segments: The limit never goes above this; ``None`` for unbounded.
        max_overdraft_buffers: Segments that may be lent beyond the limit.
        max_buffers_per_channel: Segments of one channel at which the pool is unavailable, or None.
        kind: What it is for, in a word: metrics add up the pools of a kind.
    """

    __slots__ = ("__weakref__", "_handing_out", "_network_pool", "_quick_limit", "_recycler")

    def __init__(
        self,
        network_pool: "NetworkBufferPool",
        name: str,
        required_segments: int,
        maximum_segments: int | None,
        max_overdraft_buffers: int = 0,
        max_buffers_per_channel: int | None = None,
        kind: str = "other",
    ) -> None:
        super().__init__(
            name,
            required_segments,
            maximum_segments,
            network_pool.total_segments,
            max_overdraft_buffers,
            max_buffers_per_channel,
            kind,
        )
        self._network_pool = network_pool
        # The limit while nobody waits for this pool, else -1: one comparison tells a recycle that
        # there is nothing else to do. May stay -1 when the last one gave up; recycling mends it.
        self._quick_limit = required_segments
        self._handing_out = False
        self._recycler = self.recycle  # one bound method for all buffers

    # ---- what users of the pool call

    def request_segment_nowait(self, channel: int = NO_CHANNEL) -> "MemorySegment | None":
        """Take a segment, or ``None``: nothing now, or listeners are before the caller.

        At the limit it may be one of ``max_overdraft_buffers``, if the network pool has one to
        spare. Give it back with :meth:`recycle`.

        Args:
            channel: Whom to charge in a pool with ``max_buffers_per_channel``; negative: nobody.

        Raises:
            PoolDestroyed: The pool gives out no more segments.
        """
        idle = self._idle
        if idle and self._quick_limit >= 0:
            segment = idle.pop()
            segment.holder = self if channel < 0 else self._holder(channel)
            return segment
        return self._draw(channel)

    def request_buffer_nowait(self, channel: int = NO_CHANNEL) -> NetworkBuffer | None:
        """Take an empty buffer that recycles itself to this pool, or ``None``: nothing now.

        Args:
            channel: As for :meth:`request_segment_nowait`.

        Raises:
            PoolDestroyed: The pool gives out no more segments.
        """
        idle = self._idle
        if idle and self._quick_limit >= 0:  # as above: a call less for each buffer
            segment = idle.pop()
            segment.holder = self if channel < 0 else self._holder(channel)
            return NetworkBuffer(segment, 0, self._recycler)
        drawn = self._draw(channel)
        return None if drawn is None else NetworkBuffer(drawn, 0, self._recycler)

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
            self._settle(segment)
        segment.holder = None
        if self._held <= self._quick_limit:
            self._idle.append(segment)
        elif self._held > self._limit:
            self._send_home(segment)
        else:
            self._idle.append(segment)
            self._hand_out()

    def recycle_together(self, segments: Iterable["MemorySegment"]) -> None:
        """Give several lent segments back at once: a listener may then take more than one of them.

        Raises:
            SegmentNotLent: As :meth:`recycle`; those before it have been given back.
        """
        idle = self._idle
        try:
            for segment in segments:
                if segment.holder is not self:
                    self._settle(segment)
                segment.holder = None
                if self._held <= self._limit:
                    idle.append(segment)
                else:
                    self._send_home(segment)
        finally:
            if idle and self._quick_limit < 0:
                self._hand_out()

    def is_only_waiting(self, handle: ListenerHandle) -> bool:
        """Whether what its user would recycle now would come straight back to this listener.

        Then the user may as well keep the segments; they stay lent.
        """
        return (
            handle.is_waiting
            and len(self._listeners) == 1
            and self._held <= self._limit
            and not self._is_destroyed
        )

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
        self._quick_limit = -1
        handle = ListenerHandle(self._listeners, callback)
        if self._idle:
            self._hand_out()
        if self.wants_segment:
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
        if segment is None:
            segment = await wait_for_segment(self, timeout_seconds)
            if channel >= 0:
                segment.holder = self._holder(channel)
        return segment

    async def wait_available(self) -> None:
        """Wait until :attr:`is_available`; it is when this returns, until somebody else runs.

        Has no deadline, for back pressure may last; cancelling is safe and has no effect.

        Raises:
            PoolDestroyed: The pool is destroyed, or was while waiting.
        """
        while not self.is_available:
            if self._is_destroyed:
                raise PoolDestroyed(self.name)
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters[turn] = None
            self._quick_limit = -1
            if self.wants_segment:
                self._network_pool.await_segment(self)
            try:
                await turn
            finally:
                self._waiters.pop(turn, None)

    def destroy(self) -> None:
        """Give back what is idle, tell every listener ``None``, wake who waits; idempotent.

        Lent segments come home as they are recycled.
        """
        if self._is_destroyed:
            return
        self._is_destroyed = True
        self.set_limit(0)
        waiting = list(self._listeners)
        self._listeners.clear()
        self._wake()
        self._network_pool.local_pool_destroyed(self)
        for handle in waiting:
            callback, handle.callback = handle.callback, None
            if callback is not None:
                try:
                    callback(None)
                except Exception:
                    logger.exception(_LISTENER_FAILED, self.name)

    @property
    def is_available(self) -> bool:
        """Whether there is a segment within the limit, for nobody waits, and no channel is full."""
        channels = self._channels
        if self._is_destroyed or self._listeners or (channels and channels.full_channels):
            return False
        return bool(self._idle) or (
            self._held < self._limit and self._network_pool.can_lend_to_local_pools
        )

    # ---- what the network pool calls

    @property
    def wants_segment(self) -> bool:
        """For the network pool: somebody waits for more than lies here, the limit allows it."""
        if self._held >= self._limit:
            return False
        idle = len(self._idle)
        return len(self._listeners) > idle or (
            bool(self._waiters) and idle == 0 and self.full_channels == 0
        )

    def set_limit(self, segments: int) -> None:
        """For the network pool: move the limit; idle segments above it go home at once.

        Calls no listener, so that all limits can be moved before anybody acts on them.
        """
        self._limit = segments
        if self._quick_limit >= 0:
            self._quick_limit = segments
        idle = self._idle
        while idle and self._held > segments:
            self._held -= 1
            self._network_pool.put_home(idle.pop())

    def receive(self, segment: "MemorySegment") -> None:
        """For the network pool: a segment for whoever waits first."""
        self._held += 1
        self._idle.append(segment)
        self._hand_out()

    # ---- inside

    def _draw(self, channel: int) -> "MemorySegment | None":
        """Nothing idle, or somebody may be waiting: ask the network pool if the limit allows it."""
        if self._is_destroyed:
            raise PoolDestroyed(self.name)
        if self._listeners:
            return None
        if self._idle:
            segment = self._idle.pop()
        elif self._held >= self._limit + self.max_overdraft_buffers:
            return None
        else:
            drawn = self._network_pool.lend_to_local_pool()
            if drawn is None:
                return None
            segment = drawn
            self._held += 1
            if self._held > self._limit:
                self.overdrafts += 1
        segment.holder = self if channel < 0 else self._holder(channel)
        return segment

    def _holder(self, channel: int) -> "LocalBufferPool | ChannelAccount":
        """Charge the channel for a segment, if this pool has accounts."""
        return self if self._channels is None else self._channels.charge(channel)

    def _settle(self, segment: "MemorySegment") -> None:
        """A segment that is not held by the pool itself comes back: by a channel of it?"""
        account = segment.holder
        if not isinstance(account, ChannelAccount) or account.accounts is not self._channels:
            raise SegmentNotLent(self.name, segment.index)
        account.accounts.settle(account)

    def _send_home(self, segment: "MemorySegment") -> None:
        self._held -= 1
        if self._is_destroyed and self._held == 0:
            self._network_pool.local_pool_drained(self)
        self._network_pool.give_back(segment)

    def _hand_out(self) -> None:
        """Give idle segments to the listeners, then wake those who wait for availability.

        Nested calls leave it to the outermost one.
        """
        if self._handing_out:
            return
        self._handing_out = True
        idle = self._idle
        listeners = self._listeners
        try:
            while idle and listeners:
                handle, _ = listeners.popitem(last=False)
                callback = handle.callback
                if callback is None:
                    continue  # cancelled
                handle.callback = None
                segment = idle.pop()
                segment.holder = self
                try:
                    kept = callback(segment)
                except Exception:
                    # The caller is somebody who recycles a buffer: another task's error is not his.
                    logger.exception(_LISTENER_FAILED, self.name)
                    kept = False
                # The holder tells whether a listener that declined (or raised) had already
                # given the segment back.
                if not kept and segment.holder is self:
                    segment.holder = None
                    if self._held <= self._limit:
                        idle.append(segment)
                    else:  # the limit fell while the listener ran
                        self._send_home(segment)
        finally:
            self._handing_out = False
        if not listeners:
            if idle and self._waiters and self.full_channels == 0:
                self._wake()
            if not self._waiters:
                self._quick_limit = self._limit

    def _wake(self) -> None:
        """Let all waiting tasks look again; those who find nothing wait anew."""
        waiters, self._waiters = self._waiters, {}
        for turn in waiters:
            if not turn.done():
                turn.set_result(None)
