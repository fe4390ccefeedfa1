"""Base of tiers that return free space at the end of their arena.

Two numbers determine the part that is returned::

    │ extents and holes │ kept for reuse: retained_bytes │ goes │
    0                   └ the free end begins            └      └ frontier

No free space is kept above the capacity. Extents lie there if a previous process had a larger
capacity: they stay until they are released, and their space is never reused.
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..files.file_calls import fallocate
from .tier import ArenaTier, Extent, TierStatistics

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

_FALLOC_FL_KEEP_SIZE: Final = 1
_FALLOC_FL_PUNCH_HOLE: Final = 2


class TrimmedTier(ArenaTier):
    """An arena whose free end is returned to the file system.

    Args:
        path: The arena file.
        fd: Its descriptor.
        capacity_bytes: Maximum bytes it may hold; None: no limit.
        retained_bytes: Free space at the end of the file, below the capacity, that is kept.

    Attributes:
        on_excess: Called when there is excess for :meth:`begin_trim` to return.
    """

    def __init__(
        self,
        path: Path,
        fd: int,
        capacity_bytes: int | None,
        retained_bytes: int,
    ) -> None:
        super().__init__(path, fd, capacity_bytes)
        self._retained_bytes = retained_bytes
        # Below this there is no excess, so most releases need only one comparison.
        self._always_kept_bytes = min(
            retained_bytes, retained_bytes if capacity_bytes is None else capacity_bytes
        )
        self._trimming_bytes = 0
        self._can_punch = True
        self._retired = False
        self.on_excess: Callable[[TrimmedTier], None] | None = None

    def recycle(self, extent: Extent) -> None:
        """Reclaim the space of an extent."""
        super().recycle(extent)
        if (
            self._allocator.frontier_bytes > self._always_kept_bytes
            and self.on_excess is not None
            and self.excess_bytes
        ):
            self.on_excess(self)
        self._close_if_unused()

    def retire(self) -> None:
        """Close when nothing reads the tier, because another tier has replaced it.

        The kernel frees the blocks of a removed file only when it is closed.
        """
        self._retired = True
        self._can_punch = False  # closing the file frees all of it
        self._close_if_unused()

    @property
    def _threads_use_it(self) -> bool:
        return self._trimming_bytes > 0

    def _close_if_unused(self) -> None:
        if self._retired and not self._extents and not self._threads_use_it:
            self.close()

    @property
    def excess_bytes(self) -> int:
        """Bytes at the free end that are not kept for reuse."""
        allocator = self._allocator
        tail, capacity_bytes = allocator.tail_free_bytes, allocator.capacity_bytes
        kept = self._retained_bytes
        if capacity_bytes is not None:
            kept = min(kept, max(0, capacity_bytes - allocator.frontier_bytes + tail))
        if tail <= kept or not self._can_punch:
            return 0
        excess = tail - kept
        return excess - excess % allocator.alignment

    def begin_trim(self) -> tuple[int, int] | None:
        """Take the excess at the end of the arena out of use.

        Returns:
            Offset and length to pass to :meth:`punch` in a thread and then to :meth:`end_trim`;
            None if less than a page would be returned.
        """
        length = self.excess_bytes
        if not length:
            return None
        offset = self._allocator.frontier_bytes - length
        self._allocator.reserve(offset, length)
        self._trimming_bytes += length
        return offset, length

    def punch(self, offset: int, length: int) -> str:
        """Return the blocks of a range to the file system. Runs in a thread.

        This punches a hole instead of truncating the file, because regions may be written after it
        meanwhile.

        Returns:
            The operating system's message if it failed, else an empty string.
        """
        try:
            fallocate(self.fd, _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE, offset, length)
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def end_trim(self, offset: int, length: int, failure: str) -> None:
        """Put a trimmed range back; if no extent lies after it, the arena is now shorter."""
        if failure:
            self._can_punch = False
            logger.info("%s cannot return space while running: %s", self.path, failure)
        self._trimming_bytes -= length
        # If regions lie after it by now, the hole stays below the frontier although it is cold.
        at_end = offset + length == self._allocator.frontier_bytes
        self._allocator.free(offset, length)
        if at_end and not failure:
            self._allocator.trim_to(offset)
        self._close_if_unused()

    def give_back_above_capacity(self) -> None:
        """Return the holes above the capacity, which are never used again. Blocks."""
        for offset, length in self._allocator.holes_above_capacity():
            self.punch(offset, length)

    def statistics(self) -> TierStatistics:
        """Return a snapshot; a range that is being trimmed counts as free."""
        statistics = super().statistics()
        trimming = self._trimming_bytes
        bounded = statistics.capacity_bytes is not None and self.takes_regions
        return replace(
            statistics,
            used_bytes=statistics.used_bytes - trimming,
            free_bytes=statistics.free_bytes + (trimming if bounded else 0),
        )


def report_excess(tier: TrimmedTier) -> None:
    """Log that a tier holds more than it may, because a setting was lowered."""
    statistics = tier.statistics()
    capacity_bytes = statistics.capacity_bytes
    if capacity_bytes is not None and statistics.used_bytes > capacity_bytes:
        logger.warning(
            "%s holds %d bytes in %d extents of earlier runs, and %s allows %d: they can be read "
            "until their shuffles are released; new map outputs go elsewhere until there is room",
            tier,
            statistics.used_bytes,
            statistics.extents,
            "memory_tier_bytes" if tier.kind == "memory" else "disk_quota_bytes",
            capacity_bytes,
        )
