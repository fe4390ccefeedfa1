"""Helpers that take segments out of pools, and listeners."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice.shuffle.memory import (
        LocalBufferPool,
        MemorySegment,
        NetworkBufferPool,
        SegmentListener,
    )


def take(pool: LocalBufferPool, channel: int = -1) -> MemorySegment:
    """Take a segment, which must be available."""
    segment = pool.request_segment_nowait(channel)
    assert segment is not None
    return segment


def take_many(pool: LocalBufferPool, count: int, channel: int = -1) -> list[MemorySegment]:
    """Take segments, which must be available."""
    return [take(pool, channel) for _ in range(count)]


def declining(offered: list[MemorySegment | None]) -> SegmentListener:
    """Make a listener that notes the segments it is offered and keeps none."""
    return _noting(offered, keeps=False)


def keeping(offered: list[MemorySegment | None]) -> SegmentListener:
    """Make a listener that notes and keeps the segments it is offered."""
    return _noting(offered, keeps=True)


def _noting(offered: list[MemorySegment | None], *, keeps: bool) -> SegmentListener:
    def listener(segment: MemorySegment | None) -> bool:
        offered.append(segment)
        return keeps

    return listener


class Waiter:
    """A listener that keeps the segments it is handed."""

    def __init__(self, log: list[str] | None = None, name: str = "") -> None:
        self.segments: list[MemorySegment] = []
        self.told_destroyed = 0
        self.log: list[str] = log if log is not None else []
        self.name = name

    def __call__(self, segment: MemorySegment | None) -> bool:
        self.log.append(self.name)
        if segment is None:
            self.told_destroyed += 1
            return False
        self.segments.append(segment)
        return True


def drained(
    network: NetworkBufferPool, name: str = "a", required: int = 1, maximum: int | None = None
) -> tuple[LocalBufferPool, list[MemorySegment]]:
    """Make a local pool that has lent all its segments."""
    local = network.create_local_pool(name, required, maximum)
    segments: list[MemorySegment] = []
    while (segment := local.request_segment_nowait()) is not None:
        segments.append(segment)
    return local, segments
