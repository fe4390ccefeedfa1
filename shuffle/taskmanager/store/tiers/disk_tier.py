"""The disk tier: an arena file in a data directory, which threads read and write."""

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from crc32c import crc32c

from .....transport.fair_queue import Flow
from ...bounds.accounts import Resource
from ..errors import StorageReadFailed, StorageWriteFailed
from ..files.file_calls import (
    UNSUPPORTED,
    advise_needed,
    advise_random,
    advise_unneeded,
    largest_advice_bytes,
    read_into,
    read_without_waiting,
    write_from,
)
from ..files.file_sync import sync_file
from ..files.io_threads import CALL_COST, Used
from .arena_files import open_arena
from .arena_tier import ArenaTier
from .slot_allocator import occupied_bytes
from .tier import FULL, Extent, ExtentRead

logger = logging.getLogger(__name__)

RETAINED_FREE_BYTES = 256 * 1024 * 1024
"""Free space at the end of an arena that is kept for reuse; the rest is returned to the disk."""

RECOVERY_BYTES = 64 * 1024 * 1024
"""A full disk is tried again when other programs have freed this much."""

RECOVERY_PART = 8
"""Of a small disk this part of its size is enough."""

PIECE_BYTES = 1024 * 1024
"""Bytes of one of the :meth:`DiskTier.pieces`."""

IOV_MAX = 1024
"""Maximum number of buffers in one preadv or pwritev on Linux."""


@dataclass(frozen=True, slots=True)
class _FullMark:
    """The state of the disk when it refused a write."""

    written_bytes: int
    room_bytes: int


@dataclass(frozen=True, slots=True)
class _Probed:
    """The disk at its last probe.

    Attributes:
        free_bytes: Free bytes, without those for unwritten extents.
        allocated_bytes: Bytes that had been allocated ever.
    """

    free_bytes: int
    allocated_bytes: int


class DiskTier(ArenaTier):
    """Extents in a file on disk.

    The file grows on demand, as long as ``min_free_bytes`` of the disk stay free after all
    allocated bytes are written. Space that was written before is used first.

    Args:
        path: The arena file.
        fd: Its descriptor.
        quota_bytes: Maximum bytes it may hold; None: no quota.
        min_free_bytes: Bytes to leave free on the disk.
        on_excess: Called when there is excess for :meth:`begin_trim` to return.
        retained_bytes: Free space at the end of the file that is kept for reuse.
        sharers: Number of data processes on the disk, for the sizes that are reported only.

    Attributes:
        can_read_cached: Whether file system, kernel and Python can read from the page cache only.
    """

    kind = "disk"
    reads_ahead = True
    resource = Resource.DISK_TIER_BYTES

    def __init__(
        self,
        path: Path,
        fd: int,
        quota_bytes: int | None,
        min_free_bytes: int,
        on_excess: Callable[[ArenaTier], None] | None,
        retained_bytes: int,
        sharers: int = 1,
    ) -> None:
        super().__init__(path, fd, quota_bytes, retained_bytes, on_excess)
        self._min_free_bytes = min_free_bytes
        self._sharers = sharers
        self._unwritten_bytes = 0
        self._allocated_bytes = 0  # only grows
        self._synced_bytes = 0  # of those
        self._sync_lock = threading.Lock()
        self._full_at: _FullMark | None = None
        self._probed: _Probed | None = None
        self._found_free_bytes = _free_bytes(fd)
        self._recovery_bytes = min(RECOVERY_BYTES, _size_bytes(fd) // RECOVERY_PART)
        self.can_read_cached = True
        self._advice_bytes = largest_advice_bytes(fd)

    @classmethod
    def open(
        cls,
        directory: Path,
        quota_bytes: int | None,
        min_free_bytes: int,
        on_excess: Callable[[ArenaTier], None] | None = None,
        sharers: int = 1,
    ) -> "DiskTier":
        """Open or create the arena of a directory whose lock the caller holds.

        Raises:
            StorageUnavailable: The file cannot be created or opened.
        """
        path, fd = open_arena(directory)
        # The kernel's own read-ahead would read bytes of other reducers.
        advise_random(fd)
        retained = RETAINED_FREE_BYTES
        return cls(path, fd, quota_bytes, min_free_bytes, on_excess, retained, sharers)

    def allocate(self, length: int) -> Extent | None:
        """Allocate an extent, or return None if the tier is full or not healthy."""
        if not self.takes_regions or not self._recovered():
            return None
        growth = self._allocator.growth_for(length)
        if growth and growth > self._room_bytes():
            return None
        offset = self._allocator.allocate(length)
        if offset is None:
            return None
        size_bytes = occupied_bytes(length)
        self._unwritten_bytes += size_bytes
        self._allocated_bytes += size_bytes
        return self._extent(offset, length)

    def written(self, extent: Extent) -> None:
        """Stop counting an extent as unwritten: it was written or aborted."""
        self._unwritten_bytes -= occupied_bytes(extent.length)

    def recycle(self, extent: Extent) -> None:
        """Reclaim the space of an extent."""
        super().recycle(extent)
        mark = self._full_at
        if mark is not None and self._allocator.used_bytes < mark.written_bytes:
            self._full_at = None

    def finish_adoption(self) -> None:
        """Truncate the file after the last adopted extent: uncommitted data is dropped."""
        try:
            os.ftruncate(self.fd, self._allocator.frontier_bytes)
        except OSError as error:
            self.fail(str(error))
        self.give_back_above_capacity()

    def note_failure(self, error: OSError) -> None:
        """Leave the disk out after a failed read or write.

        A full disk is left out until space is freed in this arena or elsewhere on the disk. After
        any other error it is left out until the health watch recovers it.
        """
        if error.errno in FULL:
            if self._full_at is None:
                logger.warning("storage directory %s is full: %s", self.directory, error)
            self._full_at = _FullMark(
                written_bytes=self._allocator.used_bytes - self._unwritten_bytes,
                room_bytes=self._room_now_bytes(),
            )
        else:
            self.fail(str(error))

    def largest_free_bytes(self) -> int:
        """Return the longest extent that can be allocated now, in bytes."""
        if self._full_at is not None:
            return 0
        allocator = self._allocator
        room = max(self._room_bytes(), 0) // allocator.alignment * allocator.alignment
        within = allocator.largest_free_bytes
        return max(
            min(allocator.largest_hole_bytes, within),
            min(within, allocator.tail_free_bytes + room),
        )

    def _free_bytes(self, used_bytes: int) -> int:
        """Return the bytes that new extents can get: without a quota an equal share."""
        free = super()._free_bytes(used_bytes)
        return free // self._sharers if self._allocator.capacity_bytes is None else free

    def whole_bytes(self) -> int:
        """Return the total bytes that the tier can hold, with the disk as it is now."""
        on_disk = self._allocator.frontier_bytes + max(self._room_bytes(), 0) // self._sharers
        quota_bytes = self._allocator.capacity_bytes
        return on_disk if quota_bytes is None else min(on_disk, quota_bytes)

    async def read_all(self, reads: Sequence[ExtentRead], flow: Flow, uses: Sequence[Used]) -> None:
        """Fill buffers from the file, in one call of a thread."""
        wanted = sum(len(buffer) for read in reads for buffer in read.buffers)
        cost = wanted + (len(reads) - 1) * CALL_COST
        used = [*[read.extent for read in reads], *uses]
        failed = await self.threads.run_for(flow, cost, partial(_read_each, self, reads), used)
        if failed is not None:
            number, error = failed
            extent, offset, buffers = reads[number]
            raise self.read_failure(extent.offset + offset, buffers, error) from error

    def pieces(self, extent: Extent) -> Iterator[memoryview]:
        """Read an extent piece by piece from the disk: the page cache may have other bytes."""
        advise_unneeded(self.fd, extent.offset, extent.length)
        buffer = memoryview(bytearray(min(PIECE_BYTES, extent.length)))
        for start in range(0, extent.length, PIECE_BYTES):
            piece = buffer[: min(PIECE_BYTES, extent.length - start)]
            self.read(extent.offset + start, [piece])
            yield piece

    def read(self, offset: int, buffers: list[memoryview]) -> None:
        """Fill buffers from the file. Runs in a thread.

        Raises:
            StorageReadFailed: The file ended early.
            OSError: The disk failed.
        """
        wanted = sum(len(buffer) for buffer in buffers)
        done = 0
        for first in range(0, len(buffers), IOV_MAX):
            part = buffers[first : first + IOV_MAX]
            length = sum(len(buffer) for buffer in part)
            received = read_into(self.fd, part, offset + done)
            done += received
            if received != length:
                reason = "end of file"
                raise StorageReadFailed(self.path, offset, wanted, done, reason, is_lost=True)

    def checksum(self, offset: int, length: int, value: int) -> int:
        """Continue a checksum over stored bytes, and leave the page cache as it was.

        After a failed sync the page cache may have bytes that the disk does not have. So the disk
        is read: a reader gets these bytes as soon as the kernel needs the memory.
        """
        if self.sync_failed:
            advise_unneeded(self.fd, offset, length)
        piece = memoryview(bytearray(length))
        if not self.read_cached(offset, [piece]):
            self.read(offset, [piece])
            advise_unneeded(self.fd, offset, length)
        return crc32c(piece, value)

    def read_cached(self, offset: int, buffers: list[memoryview]) -> bool:
        """Fill buffers from the page cache, without waiting for the disk.

        Returns:
            Whether all of them were filled. If not, :meth:`read` fills them or raises the error.
        """
        if not self.can_read_cached or len(buffers) > IOV_MAX:
            return False
        try:
            received = read_without_waiting(self.fd, buffers, offset)
        except BlockingIOError:
            return False
        except OSError as error:
            # Some file systems, kernels and builds of Python do not support this.
            self.can_read_cached = error.errno not in UNSUPPORTED
            return False
        return received == sum(len(buffer) for buffer in buffers)

    def will_need(self, places: Sequence[tuple[int, int]]) -> None:
        """Advise the kernel to read into the page cache, without waiting for it."""
        for offset, length in places:
            advise_needed(self.fd, offset, length, self._advice_bytes)

    def write(self, offset: int, buffers: list[memoryview]) -> None:
        """Write all bytes of the buffers to the file. Runs in a thread.

        Raises:
            OSError: The disk failed or is full.
        """
        pending = [buffer for buffer in buffers if len(buffer)]
        while pending:
            written = write_from(self.fd, pending[:IOV_MAX], offset)
            offset += written
            while pending and written >= len(pending[0]):
                written -= len(pending.pop(0))
            if written:
                pending[0] = pending[0][written:]

    @property
    def unsynced_bytes(self) -> int:
        """Bytes that :meth:`sync` may have to write, with extents that are being written."""
        return self._allocated_bytes - self._synced_bytes

    @property
    def written_bytes(self) -> int:
        """Bytes of all extents that were written or aborted, ever."""
        return self._allocated_bytes - self._unwritten_bytes

    def sync(self) -> None:
        """Write the bytes of all extents to the disk. Runs in a thread."""
        with self._sync_lock:  # the kernel reports an error to only one of two callers
            if self.sync_failed:
                raise OSError(errno.EIO, "an earlier fdatasync failed", str(self.path))
            try:
                sync_file(self.fd, self.path)
            except OSError:
                self.sync_failed = True  # here, because the caller may have given up waiting
                raise

    def synced(self, written_bytes: int) -> None:
        """Record that a sync succeeded that began when ``written_bytes`` was this."""
        self._synced_bytes = max(self._synced_bytes, written_bytes)

    def read_failure(
        self, extent_offset: int, buffers: list[memoryview], error: OSError
    ) -> StorageReadFailed:
        """Turn a disk error into a typed error, and leave the disk out."""
        self.note_failure(error)
        wanted = sum(len(buffer) for buffer in buffers)
        return StorageReadFailed(self.path, extent_offset, wanted, 0, str(error))

    def write_failure(self, extent_offset: int, length: int, error: OSError) -> StorageWriteFailed:
        """Turn a disk error into a typed error, and leave the disk out."""
        self.note_failure(error)
        return StorageWriteFailed(self.path, extent_offset, length, str(error))

    def _recovered(self) -> bool:
        """Whether the disk may be used: it was not full, or space was freed since."""
        mark = self._full_at
        if mark is not None and self._room_bytes() >= mark.room_bytes + self._recovery_bytes:
            self._full_at = None
        return self._full_at is None

    def note_free(self, free_bytes: int | None = None) -> None:
        """Record the free bytes of the disk, as a probe found them; None: as the start did.

        From then on the event loop asks the disk only right after it has answered: the question
        may wait as long as a disk hangs.
        """
        free_bytes = self._found_free_bytes if free_bytes is None else free_bytes
        self._probed = _Probed(free_bytes - self._unwritten_bytes, self._allocated_bytes)

    def _room_bytes(self) -> int:
        """Bytes by which the file may grow: free disk space above the floor.

        Until the next probe all that is allocated counts, although parts of it need no new space.
        """
        probed = self._probed
        if probed is None:
            return self._room_now_bytes()
        allocated = self._allocated_bytes - probed.allocated_bytes
        return probed.free_bytes - allocated - self._min_free_bytes

    def _room_now_bytes(self) -> int:
        try:
            free = _free_bytes(self.fd)
        except OSError as error:
            self.fail(str(error))
            return 0
        return free - self._unwritten_bytes - self._min_free_bytes


def _free_bytes(fd: int) -> int:
    """Return the free bytes of a file's disk.

    Raises:
        OSError: The disk failed.
    """
    usage = os.fstatvfs(fd)
    return usage.f_bavail * usage.f_frsize


def _size_bytes(fd: int) -> int:
    """Return the size of a file's disk.

    Raises:
        OSError: The disk failed.
    """
    usage = os.fstatvfs(fd)
    return usage.f_blocks * usage.f_frsize


def _read_each(tier: DiskTier, reads: Sequence[ExtentRead]) -> tuple[int, OSError] | None:
    """Read in a thread; return the number and the error of a read that failed."""
    for number, (extent, offset, buffers) in enumerate(reads):
        try:
            tier.read(extent.offset + offset, buffers)
        except OSError as error:
            return number, error
    return None
