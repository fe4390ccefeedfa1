"""Reads extents of any tier: from the page cache, or as their tiers read them."""

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Final, NamedTuple

from crc32c import crc32c

from ....transport.fair_queue import Flow
from ....transport.loop import run_together
from .errors import (
    DirectoryHangs,
    OutsideRegion,
    RemoteFailed,
    StorageError,
    StorageReadFailed,
)
from .files.io_threads import CALL_COST, Used
from .stored_outputs import MapOutput, Region
from .tiers.tier import Extent, ExtentRead, Tier


class ExtentRange(NamedTuple):
    """Bytes of an extent that are read soon."""

    extent: Extent
    offset: int
    length: int


AHEAD_BYTES: Final = 2 * 1024 * 1024
"""Maximum bytes that a view reads ahead into the page cache."""

CHECKED_BYTES: Final = 256 * 1024
"""Bytes that are read at a time to verify a checksum."""

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


async def read_extents(
    reads: Sequence[ExtentRead], flow: Flow, uses: Sequence[Used] = (), *, for_reader: bool = False
) -> None:
    """Read extents of any tier; one thread call makes all reads of a disk.

    Args:
        reads: The reads; the call retains their extents.
        flow: The flow in whose turn they run.
        uses: What has the buffers. It is retained as long as a thread uses them after this call.
        for_reader: Whether a reader waits. Then each tier counts the time that it takes.

    Raises:
        OutsideRegion: A range ends beyond its extent.
        StorageReadFailed: The disk failed or returned less than was written.
        DirectoryHangs: The disk does not answer.
        RemoteFailed: The remote tier does not answer.
        RemoteObjectMissing: An object is missing.
        asyncio.CancelledError: Raised only when no thread uses the buffers, or their disk hangs.
    """
    by_tier: dict[Tier, list[ExtentRead]] = {}
    for read in reads:
        if not read.is_within:
            raise OutsideRegion(read.end, read.extent.length)
        by_tier.setdefault(read.extent.tier, []).append(read)
    for read in reads:  # now, before a task's first step: other owners may release it then
        read.extent.retain()
    try:
        works = [
            _timed(tier, some, flow, uses) if for_reader else tier.read_all(some, flow, uses)
            for tier, some in by_tier.items()
        ]
        if len(works) == 1:
            await works[0]
        else:
            await run_together(works)
    finally:
        for read in reads:
            read.extent.release()


async def _timed(tier: Tier, reads: list[ExtentRead], flow: Flow, uses: Sequence[Used]) -> None:
    began = monotonic()
    await tier.read_all(reads, flow, uses)
    tier.reads.record(monotonic() - began)


async def will_need(ranges: Sequence[ExtentRange], flow: Flow) -> None:
    """Advise the kernel to read ranges into the page cache. Errors of the disk are ignored.

    Args:
        ranges: The bytes. Their extents need not be retained: advice on other bytes does no harm.
        flow: The flow in whose turn the disks read.

    Cancellation: safe; advice that a thread is giving is completed.
    """
    by_tier: dict[Tier, list[tuple[int, int]]] = {}
    for extent, offset, length in ranges:
        by_tier.setdefault(extent.tier, []).append((extent.offset + offset, length))
    works = [_advise(tier, places, flow) for tier, places in by_tier.items()]
    if len(works) == 1:
        await works[0]
    else:
        await run_together(works)


async def _advise(tier: Tier, places: list[tuple[int, int]], flow: Flow) -> None:
    cost = sum(length for _, length in places) + (len(places) - 1) * CALL_COST
    with contextlib.suppress(DirectoryHangs):
        await tier.threads.run_for(flow, cost, lambda: tier.will_need(_merged(places)))


def _merged(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return offsets and lengths in their order on the disk, neighbours as one."""
    merged: list[tuple[int, int]] = []
    for offset, length in sorted(places):
        if merged and merged[-1][0] + merged[-1][1] == offset:
            offset, length = merged[-1][0], merged.pop()[1] + length
        merged.append((offset, length))
    return merged


async def is_damaged(
    read_all: Callable[[Sequence[ExtentRead], Flow], Awaitable[None]],
    output: MapOutput,
    regions: Sequence[Region] | None = None,
    pace: Callable[[int], Awaitable[None]] | None = None,
) -> bool | None:
    """Return whether bytes of a map output are gone or do not match; None: they cannot be read now.

    A failed read is not damage: the directory is left out, and may come back whole.

    Args:
        read_all: Reads extents.
        output: The map output.
        regions: Those of its regions to verify; by default all.
        pace: Awaited with the number of bytes before each read.

    Cancellation: safe.
    """
    flow = Flow(output.key.application_id, 0)
    try:
        with output.kept():
            for region in output.regions if regions is None else regions:
                extent, found = region.extent, 0
                if extent is None:
                    continue
                for offset in range(0, extent.length, CHECKED_BYTES):
                    if pace is not None:
                        await pace(min(CHECKED_BYTES, extent.length - offset))
                    piece = memoryview(bytearray(min(CHECKED_BYTES, extent.length - offset)))
                    await read_all([ExtentRead(extent, offset, [piece])], flow)
                    found = crc32c(piece, found)
                if found != region.crc32c:
                    return True
    except (DirectoryHangs, RemoteFailed):
        return None
    except StorageReadFailed as error:
        return True if error.is_lost else None
    except StorageError:
        return True
    return False
