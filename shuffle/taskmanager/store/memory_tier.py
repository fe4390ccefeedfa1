"""The memory tier: a shared mapping of a file on tmpfs, whose pages outlive a killed daemon."""

import ctypes
import errno
import logging
import mmap
import os
from pathlib import Path

from .errors import StorageUnavailable
from .slot_allocator import PAGE_BYTES
from .tier import ArenaTier, Extent, open_arena

logger = logging.getLogger(__name__)

BACKING_STEP_BYTES = 4 * 1024 * 1024
"""Pages are allotted in steps of this size: 0.7 ms measured on a 2-core virtual machine."""

BACKING_AHEAD_BYTES = 64 * 1024 * 1024
"""A thread allots and touches pages this far ahead of use, which saves the event loop 0.7 ms per
MiB; at 1 GB/s of fresh data the thread is 64 ms ahead."""

_MADV_POPULATE_WRITE = 23  # Linux 5.14; older kernels answer EINVAL and pages fault in on first use

_libc = ctypes.CDLL(None, use_errno=True)


class MemoryTier(ArenaTier):
    """Extents in a shared mapping of a tmpfs file.

    A page of a sparse tmpfs file is allotted on first touch, and if the file system is full by then
    SIGBUS kills the process. So ``posix_fallocate`` secures the pages of an extent before it is
    given out; if that fails, the tier counts as full and regions go to disk.

    Args:
        path: The arena file.
        fd: Its descriptor.
        capacity_bytes: Most bytes it may hold.
        mapped_bytes: Length of the file and of the mapping, at least the capacity.
    """

    def __init__(self, path: Path, fd: int, capacity_bytes: int, mapped_bytes: int) -> None:
        super().__init__("memory", path, fd, capacity_bytes)
        self._mapping = mmap.mmap(fd, mapped_bytes, mmap.MAP_SHARED)
        self._whole = memoryview(self._mapping)
        self._backed_bytes = 0
        self._short = False
        self._closed = False

    @classmethod
    def open(cls, directory: Path, capacity_bytes: int) -> "MemoryTier":
        """Open or create the arena of a directory whose lock the caller holds.

        If the file system has less room than asked for, the tier is made smaller, with a warning.

        Args:
            directory: A directory on tmpfs.
            capacity_bytes: Wanted capacity, in bytes.

        Raises:
            StorageUnavailable: The file cannot be made or mapped, or has no room for a page.
        """
        path, fd = open_arena(directory)
        try:
            capacity = _affordable(directory, fd, capacity_bytes)
            mapped = max(capacity, os.fstat(fd).st_size)
            os.ftruncate(fd, mapped)
            return cls(path, fd, capacity, mapped)
        except (OSError, ValueError) as error:
            os.close(fd)
            raise StorageUnavailable(directory, str(error)) from error
        except StorageUnavailable:
            os.close(fd)
            raise

    def allocate(self, length: int) -> Extent | None:
        """Allocate an extent whose pages are secured, or return None if there is no room."""
        if not self.healthy:
            return None
        frontier = self._allocator.frontier_bytes
        offset = self._allocator.allocate(length)
        if offset is None:
            return None
        if not self._back(self._allocator.frontier_bytes):
            self._allocator.free(offset, length)
            self._allocator.trim_to(frontier)
            return None
        return self._extent(offset, length)

    def adopt(self, offset: int, length: int, application_id: str = "") -> Extent:
        """Occupy an extent that a previous process stored; it may lie above the present capacity.

        Raises:
            ValueError: The range lies outside the file or overlaps an adopted one.
        """
        capacity = self._capacity
        self._allocator.capacity_bytes = max(
            capacity, -(-(offset + length) // PAGE_BYTES) * PAGE_BYTES
        )
        try:
            return super().adopt(offset, length)
        except ValueError:
            self._allocator.capacity_bytes = capacity
            raise

    def finish_adoption(self) -> None:
        """Secure the pages below the frontier, and cut off the file above the capacity.

        Pages of adopted extents exist already; the holes between them get theirs.
        """
        frontier = self._allocator.frontier_bytes
        try:
            os.ftruncate(self.fd, self._capacity)
        except OSError as error:
            self.fail(str(error))
        if frontier and not self._back(frontier):
            self.fail("the file system has no room for the holes between adopted regions")

    @property
    def room_bytes(self) -> int:
        """Bytes that it can hold: its capacity, or less if the file system has become full."""
        return self._backed_bytes if self._short else self._capacity

    @property
    def free_bytes(self) -> int:
        """Bytes of it that no extent holds."""
        return self.room_bytes - self._allocator.used_bytes

    @property
    def wants_backing(self) -> bool:
        """Whether :meth:`prepare` has pages to allot."""
        return self.healthy and not self._short and self._ahead_bytes() > self._backed_bytes

    def backing_range(self) -> tuple[int, int]:
        """Return start and end of the pages to prepare next, for :meth:`prepare`."""
        return self._backed_bytes, self._ahead_bytes()

    def prepare(self, start: int, end: int) -> bool:
        """Allot and touch the pages of a range, without changing bytes. Runs in a thread.

        Returns:
            Whether the pages are secured.
        """
        try:
            os.posix_fallocate(self.fd, start, end - start)
        except OSError:
            return False
        # mmap.madvise would hold the interpreter lock for tens of milliseconds; ctypes lets it go.
        # A failure costs speed only: the pages are allotted, and fault in on first use.
        anchor = ctypes.c_char.from_buffer(self._mapping, start)
        _libc.madvise(
            ctypes.c_void_p(ctypes.addressof(anchor)),
            ctypes.c_size_t(end - start),
            _MADV_POPULATE_WRITE,
        )
        del anchor
        return True

    def prepared(self, end: int, secured: bool) -> None:
        """Note the outcome of :meth:`prepare`: whether all pages below ``end`` are secured."""
        if secured:
            self._backed_bytes = max(self._backed_bytes, end)
        else:
            self._note_shortage()

    def view_of(self, offset: int, length: int) -> memoryview | None:
        """Return the bytes of an extent; None when the tier is closed."""
        return None if self._closed else self._whole[offset : offset + length]

    def close(self) -> None:
        """Unmap and close. Slices still held by a transport keep the mapping until they go."""
        super().close()
        self._closed = True
        self._whole.release()
        try:
            self._mapping.close()
        except BufferError:
            logger.warning("the mapping of %s is in use: it goes with its last slice", self.path)

    def _ahead_bytes(self) -> int:
        frontier = self._allocator.frontier_bytes
        ahead = -(-frontier // BACKING_STEP_BYTES) * BACKING_STEP_BYTES + BACKING_AHEAD_BYTES
        # Start a new round only when half of the advance is used up: few, large system calls.
        if self._backed_bytes - frontier >= BACKING_AHEAD_BYTES // 2:
            return self._backed_bytes
        return min(ahead, self._capacity)

    def _back(self, needed: int) -> bool:
        """Secure the missing pages below ``needed``, in this thread, a whole step if possible."""
        if needed <= self._backed_bytes:
            return True
        step_end = -(-needed // BACKING_STEP_BYTES) * BACKING_STEP_BYTES
        for end in (min(step_end, self._capacity), needed):
            try:
                os.posix_fallocate(self.fd, self._backed_bytes, end - self._backed_bytes)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM):
                    self.fail(str(error))
                    return False
                continue
            self._backed_bytes = end
            return True
        self._note_shortage()
        return False

    def _note_shortage(self) -> None:
        """Stop preparing pages: the file system is fuller than it was at the start."""
        if not self._short:
            self._short = True
            logger.warning(
                "memory tier %s: the file system is full at %d of %d bytes, regions go to disk",
                self.directory,
                self._backed_bytes,
                self._capacity,
            )

    @property
    def _capacity(self) -> int:
        return self._allocator.capacity_bytes or 0


def _affordable(directory: Path, fd: int, wanted_bytes: int) -> int:
    """Return how much of the wanted capacity the file system has room for."""
    usage = os.fstatvfs(fd)
    room = usage.f_bavail * usage.f_frsize + os.fstat(fd).st_blocks * 512
    capacity = min(wanted_bytes, room // PAGE_BYTES * PAGE_BYTES)
    if capacity < PAGE_BYTES:
        raise StorageUnavailable(
            directory,
            f"the memory tier needs at least {PAGE_BYTES} bytes, and {room} are free there",
            "Free space there, raise the size of the tmpfs (docker: --shm-size), "
            "or set memory_tier_bytes to 0",
        )
    if capacity < wanted_bytes:
        logger.warning(
            "memory tier %s: %d bytes wanted, the file system has room for %d; "
            "raise the size of the tmpfs (docker: --shm-size) or lower memory_tier_bytes",
            directory,
            wanted_bytes,
            capacity,
        )
    return capacity
