"""A task that waits for exclusive segments of the network buffer pool."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from sluice.shuffle.errors import NetworkBufferTimeout
from sluice.shuffle.memory.segment import MemorySegment


class ExclusiveRequest:
    """A place in the queue for ``count`` segments at once, or none. Needs a running event loop.

    Attributes:
        count: Segments asked for.
        arrival: Settled once: with the segments or an error by the pool, or by the deadline.
    """

    __slots__ = ("arrival", "count")

    def __init__(self, count: int) -> None:
        self.count: Final = count
        self.arrival: Final[asyncio.Future[list[MemorySegment]]] = (
            asyncio.get_running_loop().create_future()
        )

    async def wait(
        self, timeout_seconds: float, expired: Callable[[], NetworkBufferTimeout]
    ) -> list[MemorySegment]:
        """Wait for the segments; when cancelled, look at :attr:`handed_over`.

        Args:
            timeout_seconds: How long to wait at most.
            expired: Makes the error to raise at the deadline.
        """
        arrival = self.arrival
        if arrival.done():
            return arrival.result()

        def expire() -> None:
            if not arrival.done():
                arrival.set_exception(expired())

        # The timer settles the future itself, so that segments and the deadline cannot both win.
        timer = arrival.get_loop().call_later(timeout_seconds, expire)
        try:
            return await arrival
        finally:
            timer.cancel()

    @property
    def handed_over(self) -> Sequence[MemorySegment]:
        """The segments that the pool has given to this request; empty when it has given none."""
        arrival = self.arrival
        if arrival.cancelled() or not arrival.done() or arrival.exception() is not None:
            return ()
        return arrival.result()
