"""Waiting for segments: the queue of a local pool, its listeners, and the requests of tasks.

A listener waits for one segment of a local pool and is *handed* it, in a call. A task awaits a
request: a :class:`SegmentRequest` for one segment of a local pool, in the same queue as the
listeners, or an :class:`ExclusiveRequest` for several segments of the network pool at once.

Listeners run inside the call that made a segment available and may call any pool. If a pool is
already handing out segments, a nested call only adds to them, and the outer loop hands them out.

:class:`ExclusiveRequests` are those that a network pool has not served yet.
A request is first *unpromised*: it has no reservation. A *promised* one has a reservation, so the
limits of local pools have been lowered, and it waits until segments are returned. It is *parked*
while it would take its owner above its limit, until the owner has returned enough segments.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeAlias, TypeVar

from ..errors import NetworkBufferTimeout, PoolDestroyed
from .distribution import SharerT
from .segment import MemorySegment
from .segment_owner import OwnerShare, SegmentOwner

logger = logging.getLogger(__name__)

Segments = TypeVar("Segments")

SegmentListener: TypeAlias = Callable[[MemorySegment | None], bool]
"""Takes a segment, or ``None`` when the pool is destroyed.

Returns whether it keeps the segment; a declined one goes to the next listener. A listener that
raises has declined. It runs inside the call that made the segment available, so it must be short.
"""


class ListenerHandle:
    """A listener's place in the queue: one shot, called at most once.

    Attributes:
        callback: For the pool, which takes it away before the call; ``None`` from then on, and
            after :meth:`cancel`.
    """

    __slots__ = ("_queue", "callback")

    def __init__(
        self, queue: "OrderedDict[ListenerHandle, None]", callback: SegmentListener
    ) -> None:
        self._queue = queue
        self.callback: SegmentListener | None = callback
        queue[self] = None

    @property
    def is_waiting(self) -> bool:
        """Whether the listener is still to be called."""
        return self.callback is not None

    def cancel(self) -> None:
        """Leave the queue; the listener will not be called. Idempotent, also after the call."""
        self.callback = None
        self._queue.pop(self, None)


class SegmentQueue:
    """The queue of a local pool: listeners wait for a segment each, tasks for availability.

    Args:
        pool_name: For the log.

    Attributes:
        listeners: First come, first served.
        tasks: The futures of tasks that wait until the pool is available; woken all at once.
    """

    __slots__ = ("_pool_name", "listeners", "tasks")

    def __init__(self, pool_name: str) -> None:
        self.listeners: Final[OrderedDict[ListenerHandle, None]] = OrderedDict()
        self.tasks: Final[dict[asyncio.Future[None], None]] = {}
        self._pool_name = pool_name

    def call(self, handle: ListenerHandle, segment: MemorySegment | None) -> bool:
        """Call a listener that has left the queue, with a segment or ``None``.

        Returns:
            Whether the listener keeps the segment. One that raises does not.
        """
        callback, handle.callback = handle.callback, None
        if callback is None:
            return False  # cancelled
        try:
            return callback(segment)
        except Exception:
            # The caller only recycles a buffer: another task's error must not reach it.
            logger.exception("a listener of buffer pool %s failed", self._pool_name)
            return False

    def clear(self) -> list[ListenerHandle]:
        """Empty the queue: wake the tasks, and return the listeners, which still have no answer."""
        waiting = list(self.listeners)
        self.listeners.clear()
        self.wake_tasks()
        return waiting

    def dismiss(self, waiting: list[ListenerHandle]) -> None:
        """Call listeners with ``None``."""
        for handle in waiting:
            self.call(handle, None)

    def add_task(self) -> asyncio.Future[None]:
        """Queue a task; return the future that it awaits. The task removes it from ``tasks``."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.tasks[turn] = None
        return turn

    def wake_tasks(self) -> None:
        """Let all waiting tasks check the availability again."""
        for turn in self.tasks:
            if not turn.done():
                turn.set_result(None)
        self.tasks.clear()


class PendingRequest(Generic[Segments]):
    """A task's wait for segments, settled once. Needs a running event loop.

    Args:
        pool_name: For errors.
        timeout_seconds: How long to wait at most, from :meth:`wait` on.
        recycle: Takes the segments if the task is cancelled after they were handed over.
    """

    __slots__ = ("_arrival", "_pool_name", "_recycle", "_timeout_seconds")

    def __init__(
        self, pool_name: str, timeout_seconds: float, recycle: Callable[[Segments], None]
    ) -> None:
        self._pool_name = pool_name
        self._timeout_seconds = timeout_seconds
        self._recycle = recycle
        self._arrival: Final[asyncio.Future[Segments]] = asyncio.get_running_loop().create_future()

    @property
    def is_settled(self) -> bool:
        """Whether the request was served, failed, expired or cancelled."""
        return self._arrival.done()

    def serve(self, segments: Segments) -> None:
        """Hand the segments over to the waiting task."""
        self._arrival.set_result(segments)

    def pool_destroyed(self) -> None:
        """Make the waiting task raise PoolDestroyed."""
        self._arrival.set_exception(PoolDestroyed(self._pool_name))

    def expiry(self) -> NetworkBufferTimeout:
        """Make the error to raise at the deadline."""
        return NetworkBufferTimeout(self._pool_name, 1, 0, self._timeout_seconds)

    async def wait(self) -> Segments:
        """Wait for the segments. Cancelling is safe: it has no effect on the pool.

        Raises:
            NetworkBufferTimeout: The deadline passed.
            PoolDestroyed: The pool was destroyed meanwhile.
        """
        arrival = self._arrival
        if arrival.done():
            return arrival.result()

        def expire() -> None:
            if not arrival.done():
                arrival.set_exception(self.expiry())

        # The timer settles the future itself, so that segments and the deadline cannot both win.
        timer = arrival.get_loop().call_later(self._timeout_seconds, expire)
        try:
            return await arrival
        except asyncio.CancelledError:
            # Cancelled after the segments had been handed over, before this task could run.
            if arrival.done() and not arrival.cancelled() and arrival.exception() is None:
                self._recycle(arrival.result())
            raise
        finally:
            timer.cancel()


class SegmentRequest(PendingRequest[MemorySegment]):
    """A task's wait for one segment of a local pool."""

    __slots__ = ()

    def accept(self, segment: MemorySegment | None) -> bool:
        """Settle the request; this is the listener that the task puts in the pool's queue."""
        if self._arrival.done():
            return False  # cancelled or expired in this very turn of the loop
        if segment is None:
            self.pool_destroyed()
            return False
        self.serve(segment)
        return True


class ExclusiveRequest(PendingRequest[list[MemorySegment]]):
    """A task's wait for ``count`` segments of the network pool, all or nothing.

    Args:
        count: Segments asked for.
        pool_name: For errors.
        timeout_seconds: How long to wait at most.
        recycle: As for :class:`PendingRequest`.
        expired: Called at the deadline; returns how many segments were free.
    """

    __slots__ = ("_expired", "count")

    def __init__(
        self,
        count: int,
        pool_name: str,
        timeout_seconds: float,
        recycle: Callable[[list[MemorySegment]], None],
        expired: Callable[[], int],
    ) -> None:
        super().__init__(pool_name, timeout_seconds, recycle)
        self.count: Final = count
        self._expired = expired

    def expiry(self) -> NetworkBufferTimeout:
        """Make the error to raise at the deadline."""
        return NetworkBufferTimeout(
            self._pool_name, self.count, self._expired(), self._timeout_seconds
        )


class ExclusiveRequests(Generic[SharerT]):
    """Requests in order of arrival, each with the part of its owner in the network pool."""

    def __init__(self) -> None:
        self._unpromised: OrderedDict[ExclusiveRequest, OwnerShare[SharerT]] = OrderedDict()
        self._promised: OrderedDict[ExclusiveRequest, OwnerShare[SharerT]] = OrderedDict()
        self._parked: OrderedDict[ExclusiveRequest, OwnerShare[SharerT]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._unpromised) + len(self._promised) + len(self._parked)

    @property
    def unpromised_segments(self) -> int:
        """Segments that requests without a reservation ask for."""
        return sum(request.count for request in self._unpromised)

    @property
    def are_collecting(self) -> bool:
        """Whether a request with a reservation takes the free segments."""
        return bool(self._promised)

    def waiting_owners(self) -> set[SegmentOwner]:
        """Return the owners whose requests wait for others, and not for their own limit."""
        unpromised = {
            share.owner
            for request, share in self._unpromised.items()
            if not request.is_settled and share.owner.may_promise(request.count)
        }
        collecting = {
            share.owner
            for request, share in self._promised.items()
            if not request.is_settled and share.may_hold(request.count)
        }
        return unpromised | collecting

    def add(self, request: ExclusiveRequest, share: OwnerShare[SharerT]) -> None:
        """Queue a request without a reservation."""
        self._unpromised[request] = share

    def next_to_promise(self) -> tuple[ExclusiveRequest, OwnerShare[SharerT]] | None:
        """Return the first request of the first owner in rank whose limit allows it."""
        if not self._unpromised:
            return None
        for settled in [request for request in self._unpromised if request.is_settled]:
            del self._unpromised[settled]
        first: dict[object, tuple[ExclusiveRequest, OwnerShare[SharerT]]] = {}
        for request, share in self._unpromised.items():
            first.setdefault(share.owner, (request, share))
        allowed = [each for each in first.values() if each[1].owner.may_promise(each[0].count)]
        return min(allowed, key=_rank) if allowed else None

    def promise(self, request: ExclusiveRequest) -> None:
        """Record that a request has a reservation."""
        self._promised[request] = self._unpromised.pop(request)

    def next_to_serve(self) -> tuple[ExclusiveRequest, OwnerShare[SharerT]] | None:
        """Return the first request that may collect segments; park those before it."""
        while self._promised:
            request, share = next(iter(self._promised.items()))
            if request.is_settled or share.may_hold(request.count):
                return request, share
            self._parked[request] = self._promised.pop(request)
        return None

    def unpark(self, share: OwnerShare[SharerT]) -> None:
        """Let the requests of an owner's tenant collect again: it holds less now."""
        tenant = share.tenant
        for request in [each for each, other in self._parked.items() if other.tenant is tenant]:
            self._promised[request] = self._parked.pop(request)

    def served(self, request: ExclusiveRequest) -> None:
        """Forget a request that gets its segments."""
        del self._promised[request]

    def withdraw(self, request: ExclusiveRequest) -> OwnerShare[SharerT] | None:
        """Forget a request; return the owner's part if there was a reservation for it."""
        self._unpromised.pop(request, None)
        return self._promised.pop(request, None) or self._parked.pop(request, None)

    def clear(self) -> list[tuple[ExclusiveRequest, OwnerShare[SharerT] | None]]:
        """Forget all requests; return them, with the owner's part if there is a reservation."""
        cleared: list[tuple[ExclusiveRequest, OwnerShare[SharerT] | None]] = [
            *self._promised.items(),
            *self._parked.items(),
            *((request, None) for request in self._unpromised),
        ]
        for requests in (self._promised, self._parked, self._unpromised):
            requests.clear()
        return cleared


def _rank(waiting: tuple[ExclusiveRequest, OwnerShare[SharerT]]) -> tuple[int, int]:
    return waiting[1].owner.rank_with()
