"""Reads extents of any tier: from the page cache, or as their tiers read them."""

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from ....transport.fair_queue import Flow
from ....transport.loop import run_together
from .errors import OutsideRegion
from .files.io_threads import CALL_COST, IoThreads
from .tiers.tier import Extent, ExtentRead, Tier


class ExtentRange(NamedTuple):
    """Bytes of an extent that are read soon."""

    extent: Extent
    offset: int
    length: int


AHEAD_BYTES: Final = 2 * 1024 * 1024
"""Maximum bytes that a view reads ahead into the page cache."""

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
    by_kind: dict[type[Tier], list[ExtentRead]] = {}
    for read in reads:
        if not read.is_within:
            raise OutsideRegion(read.end, read.extent.length)
        by_kind.setdefault(type(read.extent.tier), []).append(read)
    for read in reads:  # now, before a task's first step: other owners may release it then
        read.extent.retain()
    try:
        works = [kind.read_all(some, threads, flow) for kind, some in by_kind.items()]
        if len(works) == 1:
            await works[0]
        else:
            await run_together(works)
    finally:
        for read in reads:
            read.extent.release()


async def will_need(threads: IoThreads, ranges: Sequence[ExtentRange], flow: Flow) -> None:
    """Advise the kernel to read ranges into the page cache. Errors of the disk are ignored.

    Args:
        threads: Threads of the disk tier.
        ranges: The bytes. Their extents need not be retained: advice on other bytes does no harm.
        flow: The flow in whose turn the disks read.
    """
    by_tier: dict[Tier, list[tuple[int, int]]] = {}
    for extent, offset, length in ranges:
        by_tier.setdefault(extent.tier, []).append((extent.offset + offset, length))
    cost = sum(each.length for each in ranges) + (len(ranges) - 1) * CALL_COST
    await threads.run_for(flow, cost, partial(_advise, by_tier))


def _advise(by_tier: dict[Tier, list[tuple[int, int]]]) -> None:
    for tier, places in by_tier.items():
        tier.will_need(_merged(places))


def _merged(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return offsets and lengths in their order on the disk, neighbours as one."""
    merged: list[tuple[int, int]] = []
    for offset, length in sorted(places):
        if merged and merged[-1][0] + merged[-1][1] == offset:
            offset, length = merged[-1][0], merged.pop()[1] + length
        merged.append((offset, length))
    return merged
