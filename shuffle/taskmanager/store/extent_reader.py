"""Reading extents of any tier: from the mapping, the page cache, or the disk in a thread."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from sluice.shuffle.taskmanager.store.arena import Extent
from sluice.shuffle.taskmanager.store.disk_tier import DiskTier
from sluice.shuffle.taskmanager.store.errors import OutsideRegion
from sluice.shuffle.taskmanager.store.threads import run_in_thread

CACHED_READS = 32
"""Most reads at a time that the event loop makes itself: beyond it other work would wait."""


class ExtentRead(NamedTuple):
    """Bytes to read.

    Attributes:
        extent: Where they are; retained until the read has ended.
        offset: Position in the extent, in bytes.
        buffers: Filled completely, one behind the other.
    """

    extent: Extent
    offset: int
    buffers: list[memoryview]

    @property
    def end(self) -> int:
        """Position behind the last byte."""
        return self.offset + sum(len(buffer) for buffer in self.buffers)

    @property
    def is_within(self) -> bool:
        """Whether all of it lies in the extent."""
        return self.offset >= 0 and self.end <= self.extent.length


def read_cached(reads: Sequence[ExtentRead]) -> bool:
    """Read from the disk tier what the page cache has, in the caller's own thread.

    Copying a few hundred KiB takes less time than to hand the work to a thread and back.

    Args:
        reads: What to read, of extents of the disk tier.

    Returns:
        Whether all buffers were filled; if not, :func:`read_extents` has to, or tells why not.
    """
    return len(reads) <= CACHED_READS and all(
        read.is_within
        and disk_tier_of(read.extent).read_cached(read.extent.offset + read.offset, read.buffers)
        for read in reads
    )


async def read_extents(executor: ThreadPoolExecutor, reads: Sequence[ExtentRead]) -> None:
    """Read from extents of any tier; all that is on disk in one call of a thread.

    Args:
        executor: Threads for the disk tier.
        reads: What to read.

    Raises:
        OutsideRegion: A range reaches beyond its extent.
        StorageReadFailed: The disk failed or gave less than was written.
        asyncio.CancelledError: Raised when no thread touches the buffers any more.
    """
    on_disk: list[ExtentRead] = []
    for read in reads:
        extent, offset, buffers = read
        if not read.is_within:
            raise OutsideRegion(read.end, extent.length)
        if extent.view is None:
            on_disk.append(read)
            continue
        for buffer in buffers:
            buffer[:] = extent.view[offset : offset + len(buffer)]
            offset += len(buffer)
    if not on_disk:
        return
    tiers = [disk_tier_of(read.extent) for read in on_disk]
    for read in on_disk:
        read.extent.retain()  # until the thread has ended
    try:
        failed = await run_in_thread(executor, _read_each, tiers, on_disk)
    finally:
        for read in on_disk:
            read.extent.release()
    if failed is not None:
        number, error = failed
        extent, offset, buffers = on_disk[number]
        raise tiers[number].read_failure(extent.offset + offset, buffers, error) from error


def _read_each(
    tiers: Sequence[DiskTier], reads: Sequence[ExtentRead]
) -> tuple[int, OSError] | None:
    """Read in a thread; return which read the disk failed, and how."""
    for number, (tier, (extent, offset, buffers)) in enumerate(zip(tiers, reads, strict=True)):
        try:
            tier.read(extent.offset + offset, buffers)
        except OSError as error:
            return number, error
    return None


def disk_tier_of(extent: Extent) -> DiskTier:
    """Return the disk tier that holds an extent.

    Raises:
        RuntimeError: The extent was given up, or lies in the memory tier.
    """
    tier = extent.tier
    if not isinstance(tier, DiskTier):
        raise RuntimeError(f"{extent!r} has no bytes any more")
    return tier
