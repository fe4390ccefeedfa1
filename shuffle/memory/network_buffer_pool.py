"""All network memory of a TaskManager, and how it is shared among local pools.

Promises first: ``reserved exclusive + sum(required) <= total`` always holds. The rest, the spare
segments, is spread over owners (:mod:`sluice.shuffle.memory.segment_owner`) and their local pools
as limits; segments follow lazily. Since the limits and the reservations together never exceed the
total, every wait below a limit or on a reservation ends once the pools above their limit recycle.

An owner that is refused a promise has a place in a queue (:mod:`.refused_owners`).

A segment that comes home goes to the first exclusive request that has its reservation, else in
turn to the local pools that wait below their limit, else it is free.
"""

import bisect
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, TypeAlias

from ..errors import InsufficientNetworkBuffers, InvalidPoolSize, PoolDestroyed, SegmentNotLent
from .distribution import MemoryDemand, PoolBounds
from .local_buffer_pool import LocalBufferPool
from .refused_owners import RefusedOwners
from .segment import MemorySegment, SegmentMapping, from_the_end
from .segment_owner import OwnerShare, OwnerShares, SegmentOwner
from .segment_queue import ExclusiveRequest, ExclusiveRequests

_NAME: Final = "the network buffer pool"

_Share: TypeAlias = OwnerShare[LocalBufferPool]


class NetworkBufferPool:
    """Owns every segment; allocated once. One event-loop thread, no locks.

    Args:
        total_segments: Number of segments, at least 1.
        segment_size_bytes: Payload capacity of a segment, at least 1.

    Attributes:
        demand: Compares the segments that all want with the total; warns when it is exceeded.
        refused: Owners that were refused a local pool, and will ask again.
        refused_requests: Local pools and exclusive requests refused as insufficient; only grows.
        expired_requests: Exclusive requests that ended by their deadline; only grows.
        required_segments: Segments promised to local pools.
        exclusive_segments: Exclusive segments that are lent.
        reserved_segments: ``exclusive_segments``, and those promised to waiting requests.
        local_pools: The local pools, in the order of their creation.
        draining_pools: Destroyed local pools that still have lent segments.
        requests: Exclusive requests that wait.
        shares: The parts of all owners.
        starving: Local pools below their limits that wait for segments, in the order of their turn.
        is_destroyed: Whether the pool gives out no more segments.

    Raises:
        InvalidPoolSize: One of the numbers is below 1.
    """

    def __init__(self, total_segments: int, segment_size_bytes: int) -> None:
        if total_segments < 1:
            raise InvalidPoolSize("Too few network segments", value=total_segments, limit=1)
        if segment_size_bytes < 1:
            raise InvalidPoolSize("Segments are below 1 byte", value=segment_size_bytes, limit=1)
        self.total_segments: Final = total_segments
        self.segment_size_bytes: Final = segment_size_bytes
        self._mapping = SegmentMapping(total_segments, segment_size_bytes)
        # Lowest index last, to be lent first: segments lent together lie together, so that one
        # payload finds neighbours, and the resident pages stay at the start of the mapping.
        self._free: list[MemorySegment] = list(reversed(self._mapping.segments))
        self.demand: Final = MemoryDemand(total_segments)
        self.refused: Final = RefusedOwners()
        self.refused_requests = 0
        self.expired_requests = 0
        self.required_segments = 0
        self._wanted = 0  # sum over the local pools: segments that each could use
        self.exclusive_segments = 0
        self.reserved_segments = 0
        self.requests: Final[ExclusiveRequests[LocalBufferPool]] = ExclusiveRequests()

        self.local_pools: Final[dict[LocalBufferPool, None]] = {}
        self._no_owner: Final = SegmentOwner("the TaskManager")
        self.shares: OwnerShares[LocalBufferPool] = OwnerShares(self)
        self.draining_pools: Final[dict[LocalBufferPool, None]] = {}
        # A pool that no longer needs a segment is dropped when its turn comes.
        self.starving: OrderedDict[LocalBufferPool, None] = OrderedDict()
        self._serving = False
        self.is_destroyed = False

    # ---- local pools and exclusive segments

    def create_local_pool(
        self,
        name: str,
        required_segments: int,
        maximum_segments: int | None = None,
        *,
        max_overdraft_buffers: int = 0,
        max_buffers_per_channel: int | None = None,
        kind: str = "other",
        owner: SegmentOwner | None = None,
    ) -> LocalBufferPool:
        """Make a local pool and give every pool its new share of the spare segments.

        Args:
            name: For errors, logs and status pages.
            required_segments: Segments that the pool is sure to get, 0 or more.
            maximum_segments: Segments that it gets at most, at least 1; ``None`` for unbounded.
            max_overdraft_buffers: Segments that it may lend beyond its limit while this pool has
                some to spare, 0 or more. Result partitions use them to end a record once begun.
            max_buffers_per_channel: Segments of a channel that make the pool unavailable, or None.
            kind: The pool's purpose, in a word: metrics add up the pools of a kind.
            owner: The application it belongs to; by default the TaskManager itself.

        Raises:
            SluiceError: The owner's limit is in the way.
            InsufficientNetworkBuffers: ``required_segments`` cannot be promised.
            InvalidPoolSize: A number below its least one, or a maximum below the required number.
            PoolDestroyed: This pool is destroyed.
        """
        self._check_open()
        bounds = PoolBounds(
            required_segments, maximum_segments, max_overdraft_buffers, max_buffers_per_channel
        )
        owner = owner or self._no_owner
        bounds.check(name)
        owner.check(required_segments)
        free = self.unpromised_segments - self._kept_from(owner, required_segments)
        if required_segments > free and required_segments > 0:
            self.refused.add(owner, required_segments)
            self.demand.somebody_waits()
            raise self._insufficient(required_segments, max(0, free))
        self.refused.granted(owner, required_segments)
        share = self.shares.of(owner)
        pool = LocalBufferPool(self, name, kind, bounds, share)
        self.local_pools[pool] = None
        self.required_segments += required_segments
        self._wanted += bounds.wanted_segments
        owner.promise(required_segments)
        share.sharing.add(pool)
        share.local_pools += 1
        self._rebalance()
        self._serve()
        return pool

    async def request_segments_within(
        self, count: int, timeout_seconds: float, owner: SegmentOwner | None = None
    ) -> list[MemorySegment]:
        """Take ``count`` exclusive segments, all or nothing, first come first served.

        It waits even for the promise, because other tasks may end. An owner at its limit waits for
        its own tasks, and does not delay other owners. Cancelling has no effect on the pool.

        Args:
            count: Number of segments; return them with :meth:`recycle_segments`.
            timeout_seconds: How long to wait at most.
            owner: The application they are for; by default the TaskManager itself.

        Raises:
            InsufficientNetworkBuffers: More than the pool or the owner's limit in all: waiting
                cannot help.
            NetworkBufferTimeout: They did not come in time; nothing was taken.
            InvalidPoolSize: ``count`` is negative.
            PoolDestroyed: This pool is destroyed, or was while waiting.
        """
        self._check_open(count)
        if count == 0:
            return []
        owner = owner or self._no_owner
        limit = owner.limit_segments
        if count > self.total_segments:
            raise self._insufficient(count, self.unpromised_segments)
        if limit is not None and count > limit:
            owner.check(count)

        def expired() -> int:
            self.expired_requests += 1
            return len(self._free)

        request = ExclusiveRequest(count, _NAME, timeout_seconds, self.recycle_segments, expired)
        share = self.shares.of(owner)
        share.waiting_requests += 1
        self.requests.add(request, share)
        self._rebalance()
        self._serve()
        try:
            return await request.wait()
        finally:
            share.waiting_requests -= 1
            self._withdraw(request)
            self._holds_less(share, 0)

    def recycle_segments(self, segments: Iterable[MemorySegment]) -> None:
        """Return exclusive segments, also to a destroyed pool.

        Raises:
            SegmentNotLent: One of them is not out as an exclusive segment of this pool (or was
                recycled before); all the others are back.
        """
        stranger: MemorySegment | None = None
        returned = 0
        for segment in segments:
            holder = segment.holder
            if isinstance(holder, OwnerShare) and holder.network_pool is self:
                segment.holder = None
                bisect.insort(self._free, segment, key=from_the_end)
                self._unreserve(holder, 1)
                self._holds_less(holder, 1)
                returned += 1
            else:
                stranger = segment
        if returned:
            self.exclusive_segments -= returned
            self._rebalance()
            self._serve()
        if stranger is not None:
            raise SegmentNotLent(_NAME, stranger.index)

    def limits_changed(self) -> None:
        """Serve owners whose limits have risen."""
        for share in self.shares.all():
            self._holds_less(share, 0)
        self._rebalance()
        self._serve()

    # ---- numbers and the end

    def destroy(self) -> None:
        """Destroy all local pools and fail all waiting requests; idempotent.

        Segments that are out still come home; with the last one the memory is given back.
        """
        if self.is_destroyed:
            return
        self.is_destroyed = True  # from here on no request is served
        for pool in list(self.local_pools):
            pool.destroy()
        for request, share in self.requests.clear():
            if share is not None:
                self._unreserve(share, request.count)
            if not request.is_settled:
                request.pool_destroyed()
        self._serve()

    @property
    def available_segments(self) -> int:
        """Free segments; waiting exclusive requests may be collecting them."""
        return len(self._free)

    @property
    def unpromised_segments(self) -> int:
        """Segments that can still be promised to a new local pool or exclusive request."""
        return self.total_segments - self.reserved_segments - self.required_segments

    @property
    def lent_segments(self) -> int:
        """Lent segments: exclusive ones, and the segments of local pools, even destroyed ones."""
        pools = (*self.local_pools, *self.draining_pools)
        return self.exclusive_segments + sum(pool.lent_segments for pool in pools)

    @property
    def waiting_requests(self) -> int:
        """Exclusive requests that wait for their segments."""
        return len(self.requests)

    def waiting_owners(self) -> set[SegmentOwner]:
        """Return the owners that wait for segments which others hold."""
        starving = {pool.share.owner for pool in self.starving if pool.wants_segment}
        return starving | self.requests.waiting_owners()

    # ---- what local pools call

    def can_lend_to(self, pool: LocalBufferPool) -> bool:
        """Return whether :meth:`lend_to` would give a segment."""
        # Free segments are taken while a request with a reservation collects them, and while
        # listeners of other pools are being served.
        if not self._free or self.requests.are_collecting or self.starving:
            return False
        return pool.share.may_hold(1)

    def lend_to(self, pool: LocalBufferPool) -> MemorySegment | None:
        """Lend a free segment to a pool below its limit; ``None`` if others wait for it."""
        if not self.can_lend_to(pool):
            return None
        _hold(pool.share, 1)
        return self._free.pop()

    def await_segment(self, pool: LocalBufferPool) -> None:
        """Serve a local pool that needs a segment, now or when it is the pool's turn."""
        self.starving[pool] = None
        self._serve()

    def put_home(self, pool: LocalBufferPool, segment: MemorySegment) -> None:
        """Take a segment of a local pool whose limit falls; no request is served yet."""
        bisect.insort(self._free, segment, key=from_the_end)
        self._holds_less(pool.share, 1)

    def give_back(self, pool: LocalBufferPool, segment: MemorySegment) -> None:
        """Take a segment of a local pool; serve the first that waits."""
        self.put_home(pool, segment)
        if self.requests.are_collecting or self.starving or self.is_destroyed:
            self._serve()

    def local_pool_destroyed(self, pool: LocalBufferPool) -> None:
        """Give the promise and the share of a destroyed local pool to the others."""
        del self.local_pools[pool]
        share = pool.share
        self.starving.pop(pool, None)
        share.tenant.starving.pop(pool, None)
        self.required_segments -= pool.bounds.required_segments
        self._wanted -= pool.bounds.wanted_segments
        share.owner.promise(-pool.bounds.required_segments)
        share.sharing.remove(pool)
        share.local_pools -= 1
        self._holds_less(share, 0)
        if pool.held_segments:
            self.draining_pools[pool] = None
        self._rebalance()
        self._serve()

    def local_pool_drained(self, pool: LocalBufferPool) -> None:
        """Forget a destroyed local pool: its last segment is on its way home."""
        self.draining_pools.pop(pool, None)

    # ---- inside

    def _check_open(self, count: int = 0) -> None:
        if self.is_destroyed:
            raise PoolDestroyed(_NAME)
        if count < 0:
            raise InvalidPoolSize("A negative number of segments", value=count, limit=0)

    def _insufficient(self, required: int, available: int) -> InsufficientNetworkBuffers:
        self.refused_requests += 1
        return InsufficientNetworkBuffers(required, available, self.total_segments)

    def _kept_from(self, owner: SegmentOwner, segments: int) -> int:
        """Return the segments kept for refused owners; this TaskManager's own work has them all."""
        return 0 if owner is self._no_owner else self.refused.kept_from(owner, segments)

    def _reserve(self, share: _Share, count: int) -> None:
        self.reserved_segments += count
        share.owner.promise(count)

    def _unreserve(self, share: _Share, count: int) -> None:
        self.reserved_segments -= count
        share.owner.promise(-count)

    def _holds_less(self, share: _Share, segments: int) -> None:
        """Resume requests that waited because their owner was at its limit."""
        _hold(share, -segments)
        if share.is_limited:
            self.requests.unpark(share)
            starving = share.tenant.starving
            self.starving.update(starving)
            starving.clear()
        self.shares.drop_empty(share)

    def _take_exclusive(self, share: _Share, count: int) -> list[MemorySegment]:
        segments = self._free[-count:]
        del self._free[-count:]
        for segment in segments:
            segment.holder = share
        _hold(share, count)
        self.exclusive_segments += count
        return segments

    def _withdraw(self, request: ExclusiveRequest) -> None:
        """Remove a request that ended without segments; does nothing if it was served."""
        share = self.requests.withdraw(request)
        if share is not None:
            self._unreserve(share, request.count)
        self._rebalance()
        self._serve()

    def _rebalance(self) -> None:
        """Promise segments to requests, spread the rest over local pools. Calls no listener."""
        if self.is_destroyed:
            return
        while (waiting := self.requests.next_to_promise()) is not None:
            request, share = waiting
            kept = self._kept_from(share.owner, request.count)
            if request.count > self.unpromised_segments - kept:
                break  # smaller ones behind it wait too, or it would wait for ever
            self.requests.promise(request)
            self._reserve(share, request.count)
        self.demand.update(
            self._wanted + self.reserved_segments + self.requests.unpromised_segments
        )
        for pool, extra in self.shares.distribute(self.unpromised_segments):
            limit = pool.bounds.required_segments + extra
            if limit != pool.size_segments:
                pool.set_limit(limit)
                if pool.wants_segment:
                    self.starving[pool] = None

    def _serve(self) -> None:
        """Give free segments to all that wait; nested calls leave it to the outermost one."""
        if self.is_destroyed:
            if len(self._free) == self.total_segments:
                self._mapping.close()
            return
        if self._serving:
            return
        self._serving = True
        try:
            while True:
                waiting = self.requests.next_to_serve()
                if waiting is not None:
                    request, share = waiting
                    if request.is_settled:  # cancelled or expired in this turn of the loop
                        self._withdraw(request)
                    elif request.count > len(self._free):
                        break
                    else:
                        self.requests.served(request)
                        request.serve(self._take_exclusive(share, request.count))
                elif self.starving and self._free:
                    self._serve_pool(self.starving.popitem(last=False)[0])
                else:
                    break
        finally:
            self._serving = False
        if self.starving or len(self.requests):
            self.demand.somebody_waits()

    def _serve_pool(self, pool: LocalBufferPool) -> None:
        if not pool.wants_segment:
            return
        share = pool.share
        if not share.may_hold(1):
            share.tenant.starving[pool] = None
            return
        _hold(share, 1)
        pool.receive(self._free.pop())
        if pool.wants_segment:
            self.starving[pool] = None  # behind the others: round robin


def _hold(share: _Share, segments: int) -> None:
    """Count segments that an owner has, or no longer if negative."""
    share.held_segments += segments
    if share.parent is not None:
        share.parent.held_segments += segments
