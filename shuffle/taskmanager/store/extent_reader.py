"""Reads extents of any tier: from the mapping, the page cache, a disk (in a thread), or objects."""

from collections.abc import Sequence
from functools import partial

from crc32c import crc32c

from ....transport.loop import run_together
from .errors import CorruptRegion, OutsideRegion, StorageReadFailed
from .files.fair_queue import OWN_FLOW, Flow
from .files.io_threads import CALL_COST, IoThreads
from .stored_outputs import Region
from .tiers.disk_tier import DiskTier
from .tiers.remote_tier import RemoteTier
from .tiers.tier import Extent, ExtentRead

_VERIFY_BYTES = 1024 * 1024

CACHED_READS = 32
"""Maximum reads that the event loop makes at once: with more, other work would wait."""


def read_cached(reads: Sequence[ExtentRead]) -> bool:
    """Fill buffers from the page cache, in the caller's thread.

    Copying a few hundred KiB takes less time than a switch to a thread and back.

    Args:
        reads: Reads of extents of any tier but memory.

    Returns:
        Whether all buffers were filled; if not, :func:`read_extents` fills them or raises an error.
    """
    return len(reads) <= CACHED_READS and all(
        read.is_within
        and read.extent.tier.read_cached(read.extent.offset + read.offset, read.buffers)
        for read in reads
    )


async def read_extents(threads: IoThreads, reads: Sequence[ExtentRead], flow: Flow) -> None:
    """Read extents of any tier; one thread call makes all reads of disks.

    Args:
        threads: Threads for reads of the disk tier.
        reads: The reads; the call retains their extents.
        flow: The flow in whose turn they run.

    Raises:
        OutsideRegion: A range ends beyond its extent.
        StorageReadFailed: The disk failed or returned less than was written.
        RemoteFailed: The remote tier does not answer.
        RemoteObjectMissing: An object is missing.
        asyncio.CancelledError: Raised only when no thread uses the buffers.
    """
    on_disk: list[ExtentRead] = []
    remote: dict[RemoteTier, list[ExtentRead]] = {}
    for read in reads:
        extent, offset, buffers = read
        if not read.is_within:
            raise OutsideRegion(read.end, extent.length)
        view = extent.view
        if view is None:
            if isinstance(extent.tier, RemoteTier):
                remote.setdefault(extent.tier, []).append(read)
            else:
                on_disk.append(read)
            continue
        for buffer in buffers:
            buffer[:] = view[offset : offset + len(buffer)]
            offset += len(buffer)
    if remote:
        await _read_remote(threads, remote, on_disk, flow)
    elif on_disk:
        await _read_disks(threads, on_disk, flow)


async def _read_remote(
    threads: IoThreads,
    remote: dict[RemoteTier, list[ExtentRead]],
    on_disk: list[ExtentRead],
    flow: Flow,
) -> None:
    """Read objects, and disks concurrently."""
    retained = [read.extent for reads in (*remote.values(), on_disk) for read in reads]
    for extent in retained:  # now, before a task's first step: other owners may release it then
        extent.retain()
    try:
        works = [tier.fetch(reads, flow) for tier, reads in remote.items()]
        if on_disk:
            works.append(_read_disks(threads, on_disk, flow))
        await run_together(works)
    finally:
        for extent in retained:
            extent.release()


async def _read_disks(threads: IoThreads, on_disk: list[ExtentRead], flow: Flow) -> None:
    tiers = [disk_tier_of(read.extent) for read in on_disk]
    for read in on_disk:
        read.extent.retain()  # until the thread has ended
    try:
        failed = await threads.run_for(flow, _cost(on_disk), partial(_read_each, tiers, on_disk))
    finally:
        for read in on_disk:
            read.extent.release()
    if failed is not None:
        number, error = failed
        extent, offset, buffers = on_disk[number]
        raise tiers[number].read_failure(extent.offset + offset, buffers, error) from error


def _cost(reads: Sequence[ExtentRead]) -> int:
    """Return the bytes to read, plus the cost of a call for each read but the first."""
    wanted = sum(len(buffer) for read in reads for buffer in read.buffers)
    return wanted + (len(reads) - 1) * CALL_COST


def _read_each(
    tiers: Sequence[DiskTier], reads: Sequence[ExtentRead]
) -> tuple[int, OSError] | None:
    """Read in a thread; return the number and the error of a read that failed."""
    for number, (tier, (extent, offset, buffers)) in enumerate(zip(tiers, reads, strict=True)):
        try:
            tier.read(extent.offset + offset, buffers)
        except OSError as error:
            return number, error
    return None


async def verify_region(threads: IoThreads, region: Region) -> None:
    """Compare a region's bytes with its checksum, in a thread.

    Raises:
        CorruptRegion: They differ.
        StorageReadFailed: The disk failed.
    """
    extent = region.extent
    found = 0
    if extent is not None and isinstance(extent.tier, RemoteTier):
        found = await _fetched_checksum(extent, extent.tier)
    elif extent is not None:
        extent.retain()
        try:
            found = await threads.run_for(OWN_FLOW, extent.length, partial(checksum_of, extent))
        except OSError as error:
            raise StorageReadFailed(
                extent.tier.place, extent.offset, extent.length, 0, str(error)
            ) from error
        finally:
            extent.release()
    if found != region.crc32c:
        raise CorruptRegion(region.crc32c, found, repr(extent))


async def _fetched_checksum(extent: Extent, tier: RemoteTier) -> int:
    """Compute an object's checksum piece by piece."""
    value = 0
    buffer = memoryview(bytearray(min(_VERIFY_BYTES, extent.length)))
    extent.retain()
    try:
        for start in range(0, extent.length, _VERIFY_BYTES):
            piece = buffer[: min(_VERIFY_BYTES, extent.length - start)]
            await tier.fetch([ExtentRead(extent, start, [piece])])
            value = crc32c(piece, value)
    finally:
        extent.release()
    return value


def checksum_of(extent: Extent) -> int:
    """Compute an extent's checksum piece by piece. Blocks.

    Raises:
        StorageReadFailed: The file ended early.
        OSError: The disk failed.
    """
    value = 0
    view = extent.view
    buffer = memoryview(bytearray(min(_VERIFY_BYTES, extent.length)))
    for start in range(0, extent.length, _VERIFY_BYTES):
        length = min(_VERIFY_BYTES, extent.length - start)
        if view is not None:
            value = crc32c(view[start : start + length], value)
        elif isinstance(extent.tier, DiskTier):
            extent.tier.read(extent.offset + start, [buffer[:length]])
            value = crc32c(buffer[:length], value)
    return value


def disk_tier_of(extent: Extent) -> DiskTier:
    """Return the disk tier that holds an extent.

    Raises:
        RuntimeError: The extent was released, or lies in the memory tier.
    """
    tier = extent.tier
    if not isinstance(tier, DiskTier):
        raise RuntimeError(f"{extent!r} no longer has bytes")
    return tier
