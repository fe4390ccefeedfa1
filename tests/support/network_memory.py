"""Exclusive segments of a network pool, and the sum of all its segments."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice.shuffle.memory import MemorySegment, NetworkBufferPool


def take_exclusive(pool: NetworkBufferPool, count: int) -> list[MemorySegment]:
    """Take exclusive segments, which must be free; in a running event loop or in none."""
    request = pool.request_segments_within(count, 0)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(request)
    try:
        request.send(None)
    except StopIteration as taken:
        segments: list[MemorySegment] = taken.value
        return segments
    raise AssertionError(f"fewer than {count} segments are free")


def conserved(pool: NetworkBufferPool) -> NetworkBufferPool:
    """Check that no segment of a pool is lost or counted twice; return the pool."""
    idle = sum(local.idle_segments for local in pool.local_pools)
    assert pool.available_segments + idle + pool.lent_segments == pool.total_segments
    return pool
