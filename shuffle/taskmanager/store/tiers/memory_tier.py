"""The memory tier: a shared mapping of a file on tmpfs, which survives a killed daemon."""

import ctypes
import errno
import logging
import mmap
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from .....transport.fair_queue import Flow
from ...bounds.accounts import Resource
from ..errors import StorageUnavailable
from ..files.file_calls import allot
from ..files.io_threads import Used
from .arena_files import open_arena
from .arena_tier import ArenaTier
from .slot_allocator import PAGE_BYTES
from .tier import FULL, Extent, ExtentRead

logger = logging.getLogger(__name__)

BACKING_STEP_BYTES = 4 * 1024 * 1024
"""Pages are allocated in steps of this size: 0.7 ms measured on a 2-core virtual machine. If a
step fails, the pages of earlier steps stay allocated."""

BACKING_AHEAD_BYTES = 64 * 1024 * 1024
"""A thread allocates and touches pages this far ahead of use, which saves the event loop 0.7 ms per
MiB; at 1 GB/s of fresh data the thread is 64 ms ahead."""

SPARED_PART: Final = 16
"""The tier leaves 1/16 of the file system to its journal and to region areas."""

MAX_SPARED_BYTES: Final = 64 * 1024 * 1024
"""Maximum bytes that it leaves."""

_MADV_POPULATE_WRITE = 23  # Linux 5.14; older kernels answer EINVAL and pages fault in on first use

_libc = ctypes.CDLL(None, use_errno=True)


class MemoryTier(ArenaTier):
    """Extents in a shared mapping of a tmpfs file.

    The kernel allocates a page of a sparse tmpfs file on first touch; if the file system is full
    then, SIGBUS kills the process. So ``fallocate`` secures the pages of an extent before the
    extent is used; if that fails, regions go to disk. The tier tries again when an extent needs
    fresh pages, so it grows as soon as other programs free space.

    Args:
        path: The arena file.
        fd: Its descriptor.
        capacity_bytes: Maximum bytes it may hold.
        mapped_bytes: Length of the file and of the mapping, at least the capacity.
        on_excess: Called when there is excess for :meth:`begin_trim` to return.
    """

    kind = "memory"
    resource = Resource.MEMORY_TIER_BYTES
    in_memory = True

    def __init__(
        self,
        path: Path,
        fd: int,
        capacity_bytes: int,
        mapped_bytes: int,
        on_excess: Callable[[ArenaTier], None] | None,
    ) -> None:
        super().__init__(path, fd, capacity_bytes, capacity_bytes, on_excess)
        self._mapping = mmap.mmap(fd, mapped_bytes, mmap.MAP_SHARED)
        self._whole = memoryview(self._mapping)
        self._backed_bytes = 0
        self._short = False
        """Whether the file system had less room than the capacity at the last check."""
        self._refused: tuple[int, int] | None = None
        """End of the last refused pages, and the free bytes of the file system then."""
        self._preparing = False
        """Whether a thread uses the file and the mapping."""

    @classmethod
    def open(
        cls,
        directory: Path,
        capacity_bytes: int,
        on_excess: Callable[[ArenaTier], None] | None = None,
    ) -> "MemoryTier":
        """Open or create the arena of a directory whose lock the caller holds.

        If the file system has less room than requested, the tier logs a warning and uses the
        available room, now and later.

        Args:
            directory: A directory on tmpfs.
            capacity_bytes: Wanted capacity, in bytes; 0: existing map outputs can be read until
                they are released, and nothing is added.
            on_excess: Called when there is excess for :meth:`begin_trim` to return.

        Raises:
            StorageUnavailable: The file cannot be created or mapped.
        """
        path, fd = open_arena(directory)
        try:
            capacity = capacity_bytes - capacity_bytes % PAGE_BYTES
            # A mapping has at least a page, even if the file is empty.
            mapped = max(capacity, os.fstat(fd).st_size, PAGE_BYTES)
            os.ftruncate(fd, mapped)
            tier = cls(path, fd, capacity, mapped, on_excess)
        except (OSError, ValueError) as error:
            os.close(fd)
            raise StorageUnavailable(directory, str(error)) from error
        tier._ask_for_room()
        return tier

    def allocate(self, length: int) -> Extent | None:
        """Allocate an extent whose pages are secured, or return None if there is no room."""
        if not self.takes_regions:
            return None
        frontier = self._allocator.frontier_bytes
        offset = self._allocator.allocate(length)
        if offset is None:
            return None
        if not self._back(min(self._allocator.frontier_bytes, self._capacity)):
            self._allocator.free(offset, length)
            self._allocator.trim_to(frontier)
            return None
        return self._extent(offset, length)

    def finish_adoption(self) -> None:
        """Secure the pages below the frontier, and truncate the file above the capacity.

        Adopted extents have their pages already, so this allocates the pages of the holes between
        them. Holes above the capacity lose their pages, because they are never used again.
        """
        frontier, capacity = self._allocator.frontier_bytes, self._capacity
        try:
            os.ftruncate(self.fd, max(frontier, capacity))
        except OSError as error:
            self.fail(str(error))
        self.give_back_above_capacity()
        # If there is no room for the holes, nothing is allocated until there is.
        self._back(min(frontier, capacity))

    def end_trim(self, offset: int, length: int, failure: str) -> None:
        """Put a trimmed range back; its pages are no longer secured."""
        super().end_trim(offset, length, failure)
        self._backed_bytes = min(self._backed_bytes, offset)

    @property
    def room_bytes(self) -> int:
        """Bytes that it can hold: its capacity, or less if the file system has less room."""
        return self._backed_bytes + self._ask_for_room() if self._short else self._capacity

    @property
    def free_bytes(self) -> int:
        """Bytes that no extent holds; 0 while the tier accepts no regions."""
        if not self.takes_regions:
            return 0
        return max(0, self.room_bytes - self._allocator.used_bytes)

    def largest_free_bytes(self) -> int:
        """Return the longest extent that can be allocated now, in bytes."""
        allocator = self._allocator
        reachable = self._backed_bytes + self._ask_for_room()
        if reachable < min(allocator.frontier_bytes, self._capacity):
            return 0  # the file system has no pages for the holes that were returned to it
        growth = max(0, reachable - allocator.frontier_bytes)
        within = max(allocator.largest_hole_bytes, allocator.tail_free_bytes + growth)
        return min(within, allocator.largest_free_bytes)

    def whole_bytes(self) -> int:
        """Return the bytes that it could hold if no other program used the file system."""
        try:
            usage = os.fstatvfs(self.fd)
        except OSError as error:
            self.fail(str(error))
            return 0
        total = usage.f_blocks * usage.f_frsize
        return min(self._capacity, total - _spared_bytes(total))

    def _free_bytes(self, used_bytes: int) -> int:
        """Return the bytes that the file system has room for, beside those in use."""
        return max(0, self._backed_bytes + self._ask_for_room() - used_bytes)

    @property
    def wants_backing(self) -> bool:
        """Whether :meth:`prepare` has pages to allocate."""
        return self.takes_regions and self._ahead_bytes() > self._backed_bytes

    def backing_range(self) -> tuple[int, int]:
        """Return start and end of the pages to prepare next; call :meth:`prepared` after."""
        self._preparing = True
        reachable = self._backed_bytes + self._ask_for_room()
        return self._backed_bytes, min(self._ahead_bytes(), reachable)

    def prepare(self, start: int, end: int) -> int:
        """Allocate and touch the pages of a range, keeping its bytes. Runs in a thread.

        Returns:
            The end of the secured pages: ``end``, or less if the file system is full.
        """
        secured, most = start, BACKING_STEP_BYTES
        while secured < end and most >= PAGE_BYTES:
            step = min(most, end - secured)
            try:
                allot(self.fd, secured, step)
            except OSError:
                most //= 2
            else:
                secured += step
        if secured == start:
            return start
        # mmap.madvise holds the GIL for tens of milliseconds; ctypes releases it.
        # A failure only costs speed: the pages are allocated, and fault in on first use.
        anchor = ctypes.c_char.from_buffer(self._mapping, start)
        _libc.madvise(
            ctypes.c_void_p(ctypes.addressof(anchor)),
            ctypes.c_size_t(secured - start),
            _MADV_POPULATE_WRITE,
        )
        del anchor
        return secured

    def prepared(self, end: int, secured: int) -> None:
        """Record the result of :meth:`prepare`: pages below ``secured`` are allocated."""
        self._preparing = False
        self._backed_bytes = max(self._backed_bytes, secured)
        if secured < end:
            self._note_refusal(secured + PAGE_BYTES)
        self._close_if_unused()

    def view_of(self, offset: int, length: int) -> memoryview | None:
        """Return the bytes of an extent; None when the tier is closed."""
        return None if self.is_closed else self._whole[offset : offset + length]

    async def read_all(self, reads: Sequence[ExtentRead], flow: Flow, uses: Sequence[Used]) -> None:
        """Copy the bytes."""
        for extent, offset, buffers in reads:
            view = self.view_of(extent.offset, extent.length)
            if view is None:
                raise RuntimeError(f"{extent!r} no longer has bytes")
            for buffer in buffers:
                buffer[:] = view[offset : offset + len(buffer)]
                offset += len(buffer)

    def pieces(self, extent: Extent) -> Iterable[memoryview]:
        """Return the mapped bytes of an extent."""
        view = extent.view
        return () if view is None else (view,)

    @property
    def _threads_use_it(self) -> bool:
        return self._preparing or super()._threads_use_it

    def close(self) -> None:
        """Unmap and close. Slices held by a transport keep the mapping until released.

        Idempotent.
        """
        if self.is_closed:
            return
        super().close()
        self._whole.release()
        try:
            self._mapping.close()
        except BufferError:
            logger.warning("the mapping of %s stays until its last slice is released", self.path)

    def _ahead_bytes(self) -> int:
        frontier = self._allocator.frontier_bytes
        # Start a new round only when half of the advance is used up: few, large system calls.
        if self._backed_bytes - frontier >= BACKING_AHEAD_BYTES // 2:
            return self._backed_bytes
        ahead = -(-frontier // BACKING_STEP_BYTES) * BACKING_STEP_BYTES + BACKING_AHEAD_BYTES
        return min(ahead, self.room_bytes)

    def _back(self, needed: int) -> bool:
        """Secure pages up to ``needed`` in this thread, in a whole step if possible."""
        if needed <= self._backed_bytes:
            return True
        reachable = self._backed_bytes + self._ask_for_room()
        if needed > reachable:
            return False
        step_end = -(-needed // BACKING_STEP_BYTES) * BACKING_STEP_BYTES
        for end in (min(step_end, reachable), needed):
            try:
                allot(self.fd, self._backed_bytes, end - self._backed_bytes)
            except OSError as error:
                if error.errno not in {*FULL, errno.ENOMEM}:
                    self.fail(str(error))
                    return False
                continue
            self._backed_bytes = end
            return True
        self._note_refusal(needed)
        return False

    def _ask_for_room(self) -> int:
        """Return the bytes by which the secured part can grow; log a shortage."""
        missing = self._capacity - self._backed_bytes
        if missing <= 0:
            self._short = False
            return 0
        try:
            usage, allotted = os.fstatvfs(self.fd), os.fstat(self.fd).st_blocks * 512
        except OSError as error:
            self.fail(str(error))
            return 0
        total, free = usage.f_blocks * usage.f_frsize, usage.f_bavail * usage.f_frsize
        # Pages of an earlier process count as used, but can be secured.
        ready = max(0, allotted - self._backed_bytes)
        room = free - _spared_bytes(total) + ready
        if self._refused is not None:
            end, free_then = self._refused
            if free >= free_then + BACKING_STEP_BYTES:
                self._refused = None
            else:
                room = min(room, end - PAGE_BYTES - self._backed_bytes)
        if room >= missing:
            if self._short:
                logger.info("memory tier %s: the file system has room again", self.directory)
            self._short = False
            return missing
        growth = max(0, room - room % PAGE_BYTES)
        self._note_shortage(total, free, self._backed_bytes + growth)
        return growth

    def _note_refusal(self, end: int) -> None:
        """Record a refusal: do not try pages up to ``end`` until more bytes are free."""
        usage = os.fstatvfs(self.fd)
        total, free = usage.f_blocks * usage.f_frsize, usage.f_bavail * usage.f_frsize
        self._refused = end, free
        self._note_shortage(total, free, self._backed_bytes)

    def _note_shortage(self, total: int, free: int, reachable: int) -> None:
        """Log a shortage once, until there was room for the whole tier."""
        if self._short:
            return
        self._short = True
        capacity = self._capacity
        others = max(0, total - free - os.fstat(self.fd).st_blocks * 512)
        needed = others + capacity
        needed += min(needed // (SPARED_PART - 1) + 1, MAX_SPARED_BYTES)
        logger.warning(
            "memory tier %s: memory_tier_bytes is %d, and the file system, of %d bytes with %d "
            "free, has room for %d; other regions go to disk, and the tier grows when there is "
            "room. Raise the tmpfs to at least %d bytes (docker: --shm-size), or lower "
            "memory_tier_bytes",
            self.directory,
            capacity,
            total,
            free,
            reachable,
            needed,
        )

    @property
    def _capacity(self) -> int:
        return self._allocator.capacity_bytes or 0


def _spared_bytes(total: int) -> int:
    """Return the bytes that the tier leaves free in a file system of a size."""
    return min(total // SPARED_PART, MAX_SPARED_BYTES)
