"""Segments taken out of pools, and the listeners that wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice.shuffle.memory import (
        LocalBufferPool,
        MemorySegment,
        NetworkBufferPool,
        SegmentListener,
    )
    from sluice.shuffle.memory.distribution import NetworkBufferPoolStatistics


def take(pool: LocalBufferPool, channel: int = -1) -> MemorySegment:
    """Take a segment that is known to be there."""
    segment = pool.request_segment_nowait(channel)
    assert segment is not None
    return segment


def take_many(pool: LocalBufferPool, count: int, channel: int = -1) -> list[MemorySegment]:
    """Take segments that are known to be there."""
    return [take(pool, channel) for _ in range(count)]


def conserved(pool: NetworkBufferPool) -> NetworkBufferPoolStatistics:
    """Check that no segment is lost or counted twice; return what the pool says of itself."""
    seen = pool.statistics()
    assert seen.free_segments + seen.idle_segments + seen.out_segments == seen.total_segments
    return seen


def declining(offered: list[MemorySegment | None]) -> SegmentListener:
    """Make a listener that notes what it is offered and keeps nothing."""
    return _noting(offered, keeps=False)


def keeping(offered: list[MemorySegment | None]) -> SegmentListener:
    """Make a listener that notes what it is offered and keeps it."""
    return _noting(offered, keeps=True)


def _noting(offered: list[MemorySegment | None], *, keeps: bool) -> SegmentListener:
    def listener(segment: MemorySegment | None) -> bool:
        offered.append(segment)
        return keeps

    return listener
