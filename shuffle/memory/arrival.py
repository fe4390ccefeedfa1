"""A task that waits for one segment."""

import asyncio
from typing import TYPE_CHECKING

from sluice.shuffle.errors import NetworkBufferTimeout, PoolDestroyed
from sluice.shuffle.memory.segment import MemorySegment

if TYPE_CHECKING:
    from sluice.shuffle.memory.local_buffer_pool import LocalBufferPool


async def wait_for_segment(pool: "LocalBufferPool", timeout_seconds: float) -> MemorySegment:
    """Take a segment when it is this task's turn in the queue of the pool's listeners.

    Cancelling is safe: it has no effect on the pool.

    Args:
        pool: Where to wait.
        timeout_seconds: How long to wait at most.

    Raises:
        NetworkBufferTimeout: Nothing became available in time.
        PoolDestroyed: The pool is destroyed, or was while waiting.
    """
    loop = asyncio.get_running_loop()
    arrival: asyncio.Future[MemorySegment] = loop.create_future()

    def accept(segment: MemorySegment | None) -> bool:
        if arrival.done():
            return False  # cancelled or timed out in this very turn of the loop
        if segment is None:
            arrival.set_exception(PoolDestroyed(pool.name))
            return False
        arrival.set_result(segment)
        return True

    def expire() -> None:
        if not arrival.done():
            arrival.set_exception(NetworkBufferTimeout(pool.name, 1, 0, timeout_seconds))

    # The timer settles the future itself, so that a segment and the deadline cannot both win.
    handle = pool.add_listener(accept)
    timer = loop.call_later(timeout_seconds, expire)
    try:
        return await arrival
    except asyncio.CancelledError:
        # Cancelled after the segment had been handed over, before this task could run.
        if not arrival.cancelled() and arrival.done() and arrival.exception() is None:
            pool.recycle(arrival.result())
        raise
    finally:
        timer.cancel()
        handle.cancel()
