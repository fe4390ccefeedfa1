"""Writing one region into its extent, and reading extents back."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from shuffle.storage.arena import Extent
from shuffle.storage.disk_tier import DiskTier
from shuffle.storage.errors import RegionMismatch, StorageError, StorageReadFailed
from shuffle.storage.outputs import Region, ShuffleKey
from shuffle.storage.threads import run_in_thread

if TYPE_CHECKING:
    from array import array

    from shuffle.storage.region_area import RegionArea

CACHED_READS = 32
"""Most reads at a time that the event loop makes itself: beyond it other work would wait."""

DIRECT_COPY_BYTES = 256 * 1024
"""Regions up to this size are copied by the event loop itself: it takes no longer than a hop to a
thread and back."""

_COPY_BYTES = 1024 * 1024
"""A region is copied and checked in pieces: the processor's cache still has what was copied."""


class RegionWriter:
    """A region being written. Ends with exactly one of :meth:`finish` and :meth:`abort`.

    Args:
        key: The shuffle it belongs to.
        extent: Its place, or None if it is empty. The writer takes over the owner's reference.
        first_subpartition: Number of its first subpartition.
        offsets: Cumulative offsets of its subpartitions.
        executor: Threads for the disk tier.
    """

    __slots__ = (
        "_executor",
        "_extent",
        "_failure",
        "_offsets",
        "_open",
        "_writes",
        "first_subpartition",
        "key",
        "length",
    )

    def __init__(
        self,
        key: ShuffleKey,
        extent: Extent | None,
        first_subpartition: int,
        offsets: "array[int]",
        executor: ThreadPoolExecutor,
    ) -> None:
        self.key = key
        self.first_subpartition = first_subpartition
        self.length: int = offsets[-1]
        self._extent = extent
        self._offsets = offsets
        self._executor = executor
        self._open = True
        self._writes = 0
        self._failure: StorageError | None = None

    @property
    def in_memory(self) -> bool:
        """Whether :attr:`view` can be written directly. True for an empty region."""
        return self._extent is None or self._extent.in_memory

    @property
    def view(self) -> memoryview:
        """The whole extent, to receive into; only of a region in memory.

        Raises:
            RuntimeError: The region is on disk, or was finished or aborted.
        """
        self._check_open()
        if self._extent is None:
            return memoryview(b"")
        if self._extent.view is None:
            raise RuntimeError(f"{self._extent!r} is on disk: use write()")
        return self._extent.view

    async def write(self, offset: int, buffers: list[memoryview]) -> None:
        """Write buffers one behind the other. Several calls may be under way at a time.

        Args:
            offset: Where in the region the first one goes, in bytes.
            buffers: They must not change until the call has ended.

        Raises:
            RegionMismatch: They would reach beyond the region; nothing was written.
            StorageWriteFailed: The disk did not take them. The region can only be aborted.
            asyncio.CancelledError: Raised when the buffers are free again; what was written is
                unknown.
        """
        self._check_open()
        end = offset + sum(len(buffer) for buffer in buffers)
        if offset < 0 or end > self.length:
            raise RegionMismatch(end, self.length)
        extent = self._extent
        if extent is None:
            return
        if extent.view is not None:
            for buffer in buffers:
                extent.view[offset : offset + len(buffer)] = buffer
                offset += len(buffer)
            return
        tier = _disk(extent)
        extent.retain()  # an abort must not hand the space to others while the thread writes there
        self._writes += 1
        try:
            await run_in_thread(self._executor, tier.write, extent.offset + offset, buffers)
        except OSError as error:
            self._failure = tier.write_failure(extent.offset + offset, end - offset, error)
            raise self._failure from error
        finally:
            self._writes -= 1
            extent.release()

    async def copy_from(self, area: "RegionArea", offset: int, *, checksum: bool) -> int:
        """Fill the whole region from a region area.

        Args:
            area: The caller keeps a reference meanwhile.
            offset: Position of the region's bytes there.
            checksum: Whether to compute their checksum on the way.

        Returns:
            The CRC-32C of the bytes, or 0.

        Raises:
            RegionMismatch: The area's file was cut short.
            StorageReadFailed: It could not be read.
            StorageWriteFailed: The disk did not take the bytes. The region can only be aborted.
            asyncio.CancelledError: Raised when no thread uses the area or the extent any more.
        """
        self._check_open()
        extent = self._extent
        if extent is None:
            return 0
        if extent.view is not None and self.length <= DIRECT_COPY_BYTES:
            return _copy_into_view(extent.view, area, offset, checksum)
        extent.retain()  # an abort must not hand the space to others while the thread writes there
        self._writes += 1
        try:
            if extent.view is not None:
                return await run_in_thread(
                    self._executor, _copy_into_view, extent.view, area, offset, checksum
                )
            return await run_in_thread(
                self._executor, _copy_to_disk, _disk(extent), extent, area, offset, checksum
            )
        except OSError as error:
            self._failure = _disk(extent).write_failure(extent.offset, self.length, error)
            raise self._failure from error
        finally:
            self._writes -= 1
            extent.release()

    def finish(self, crc32c: int) -> Region:
        """End the region.

        Args:
            crc32c: Checksum over all its bytes.

        Returns:
            The region; the caller now owns its extent until a commit takes it over.

        Raises:
            StorageWriteFailed: An earlier write had failed. Abort the region.
            RuntimeError: A write is still under way, or the region was ended before.
        """
        self._check_open()
        if self._writes:
            raise RuntimeError(f"{self._writes} writes to {self._extent!r} are under way")
        if self._failure is not None:
            raise self._failure
        self._end()
        return Region(self._extent, self.first_subpartition, self._offsets, crc32c)

    def abort(self) -> None:
        """Give the region up. Its space is free once the last write under way has ended.

        Does nothing if the region was finished or aborted before.
        """
        if self._open:
            self._end()
            if self._extent is not None:
                self._extent.release()

    def _end(self) -> None:
        self._open = False
        if self._extent is not None and isinstance(self._extent.tier, DiskTier):
            self._extent.tier.written(self._extent)

    def _check_open(self) -> None:
        if not self._open:
            raise RuntimeError("the region was finished or aborted before")


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
        and _disk(read.extent).read_cached(read.extent.offset + read.offset, read.buffers)
        for read in reads
    )


async def read_extents(executor: ThreadPoolExecutor, reads: Sequence[ExtentRead]) -> None:
    """Read from extents of any tier; all that is on disk in one call of a thread.

    Args:
        executor: Threads for the disk tier.
        reads: What to read.

    Raises:
        RegionMismatch: A range reaches beyond its extent.
        StorageReadFailed: The disk failed or gave less than was written.
        asyncio.CancelledError: Raised when no thread touches the buffers any more.
    """
    on_disk: list[ExtentRead] = []
    for read in reads:
        extent, offset, buffers = read
        if not read.is_within:
            raise RegionMismatch(read.end, extent.length)
        if extent.view is None:
            on_disk.append(read)
            continue
        for buffer in buffers:
            buffer[:] = extent.view[offset : offset + len(buffer)]
            offset += len(buffer)
    if not on_disk:
        return
    tiers = [_disk(read.extent) for read in on_disk]
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


def _copy_into_view(view: memoryview, area: "RegionArea", offset: int, checksum: bool) -> int:
    """Fill an extent of the memory tier from an area; return the bytes' checksum, or 0."""
    value = 0
    for start in range(0, len(view), _COPY_BYTES):
        piece = view[start : start + _COPY_BYTES]
        _read_piece(area, offset + start, piece)
        if checksum:
            value = crc32c(piece, value)
    return value


def _copy_to_disk(
    tier: DiskTier, extent: Extent, area: "RegionArea", offset: int, checksum: bool
) -> int:
    """Fill an extent of the disk tier from an area, in a thread; return the checksum, or 0."""
    value = 0
    buffer = memoryview(bytearray(min(_COPY_BYTES, extent.length)))
    for start in range(0, extent.length, _COPY_BYTES):
        piece = buffer[: extent.length - start]
        _read_piece(area, offset + start, piece)
        if checksum:
            value = crc32c(piece, value)
        tier.write(extent.offset + start, [piece])
    return value


def _read_piece(area: "RegionArea", offset: int, piece: memoryview) -> None:
    try:
        received = os.preadv(area.fd, [piece], offset)
    except OSError as error:
        raise StorageReadFailed(area.path, offset, len(piece), 0, str(error)) from error
    if received != len(piece):
        raise RegionMismatch(offset + len(piece), offset + received)


def _disk(extent: Extent) -> DiskTier:
    tier = extent.tier
    if not isinstance(tier, DiskTier):
        raise RuntimeError(f"{extent!r} has no bytes any more")
    return tier
