"""Base of tiers with an arena: a file of extents, which returns free space at its end.

Two numbers determine the part that is returned::

    │ extents and holes │ kept for reuse: retained_bytes │ excess │
    0                   └ the free end begins            └        └ frontier

No free space is kept above the capacity. Extents lie there if a previous process had a larger
capacity: they stay until they are released, and their space is never reused.
"""

import logging
import os
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ....names import utf8_text
from ..files.file_calls import fallocate
from ..files.file_format import tier_id_of
from ..store_status import TierStatus
from .slot_allocator import SlotAllocator
from .tier import Extent, Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

logger = logging.getLogger(__name__)

_FALLOC_FL_KEEP_SIZE: Final = 1
_FALLOC_FL_PUNCH_HOLE: Final = 2


class ArenaTier(Tier):
    """Base of the memory and the disk tier: an arena file and the allocation in it.

    Args:
        path: The arena file, named by :func:`~.arena_files.arena_path`.
        fd: Its descriptor, which the tier owns.
        capacity_bytes: Maximum bytes it may hold; None: no limit.
        retained_bytes: Free space at the end of the file, below the capacity, that is kept.
        on_excess: Called when there is excess for :meth:`begin_trim` to return.

    Attributes:
        lost: Whether its directory and its map outputs are gone.
        answers: Whether its last probe was answered soon; if not, other disks are preferred.
        has_journal_room: Whether its journal has room for the rows of new map outputs.
        directory_identity: Device and inode of its directory.
        identity: Device and inode of its file.
        sync_failed: Whether a sync of its file failed, set by a thread. Nothing new is stored in it
            until the next start: the kernel may have dropped bytes that it could not write.
    """

    def __init__(
        self,
        path: Path,
        fd: int,
        capacity_bytes: int | None,
        retained_bytes: int,
        on_excess: "Callable[[ArenaTier], None] | None",
    ) -> None:
        super().__init__(path.parent, tier_id_of(path))
        self.path = path
        self.fd = fd
        self.lost = False
        self.answers = True
        self.has_journal_room = True
        self.sync_failed = False
        status = path.parent.stat()
        self.directory_identity = status.st_dev, status.st_ino
        self._allocator = SlotAllocator(capacity_bytes)
        self._extents = 0  # in use
        status = os.fstat(fd)
        self.identity = status.st_dev, status.st_ino
        self._found_bytes = status.st_size
        self._retained_bytes = retained_bytes
        # Below this there is no excess, so most releases need only one comparison.
        self._always_kept_bytes = min(
            retained_bytes, retained_bytes if capacity_bytes is None else capacity_bytes
        )
        self._trimming_bytes = 0
        self._can_punch = True
        self._retired = False
        self._on_excess = on_excess

    @property
    def directory(self) -> Path:
        """Directory of the arena."""
        return self.path.parent

    @abstractmethod
    def allocate(self, length: int) -> Extent | None:
        """Allocate an extent, or return None if the tier has no room or is not healthy."""

    def adopt(self, offset: int, length: int, application_id: str = "") -> Extent:
        """Occupy an extent that a previous process stored in this arena.

        Raises:
            ValueError: The range lies outside the file or overlaps an adopted one.
        """
        if offset + length > self._found_bytes:
            found = self._found_bytes
            msg = f"extent [{offset}, {offset + length}) ends beyond the file's {found} bytes"
            raise ValueError(msg)
        self._allocator.reserve(offset, length)
        return self._extent(offset, length)

    @abstractmethod
    def pieces(self, extent: Extent) -> "Iterable[memoryview]":
        """Return the bytes of an extent, each piece until the next. Blocks.

        Raises:
            StorageReadFailed: The file ended early.
            OSError: The disk failed.
        """

    @abstractmethod
    def finish_adoption(self) -> None:
        """Truncate the file after the last adopted extent."""

    @property
    def unsynced_bytes(self) -> int:
        """Bytes that :meth:`sync` may have to write."""
        return 0

    @property
    def written_bytes(self) -> int:
        """Bytes that a sync covers if it begins now; for :meth:`synced`."""
        return 0

    def sync(self) -> None:
        """Write the bytes of all extents to the disk, if it has one. Runs in a thread.

        Raises:
            OSError: This sync, or an earlier one, failed.
        """

    def synced(self, written_bytes: int) -> None:
        """Record that a sync succeeded that began when ``written_bytes`` was this."""

    def recycle(self, extent: Extent) -> None:
        """Reclaim the space of an extent (called by its last release)."""
        self._allocator.free(extent.offset, extent.length)
        self._extents -= 1
        if (
            self._allocator.frontier_bytes > self._always_kept_bytes
            and self._on_excess is not None
            and self.excess_bytes
        ):
            self._on_excess(self)
        self._close_if_unused()

    def recover(self) -> None:
        """Use this tier again, and return the space that was freed meanwhile."""
        super().recover()
        if self._on_excess is not None and self.excess_bytes:
            self._on_excess(self)

    @property
    def takes_regions(self) -> bool:
        """Whether the tier accepts new regions, if there is room for them."""
        return self.healthy and self.has_journal_room

    @property
    def used_bytes(self) -> int:
        """Bytes in use; a range that is being trimmed is free."""
        return self._allocator.used_bytes - self._trimming_bytes

    def status(self) -> TierStatus:
        """Return a snapshot."""
        used = self.used_bytes
        takes = self.takes_regions
        return TierStatus(
            self.kind,
            utf8_text(self.directory),
            self._allocator.capacity_bytes,
            used,
            self.healthy,
            self._free_bytes(used) if takes else 0,
            utf8_text(self.reason or ("" if self.has_journal_room else "its journal has no room")),
            self.largest_free_bytes() if takes else 0,
            self._extents,
            journal_full=not self.has_journal_room,
        )

    def _free_bytes(self, used_bytes: int) -> int:
        """Return the bytes that new extents can get, beside those in use."""
        capacity = self._allocator.capacity_bytes
        return self.largest_free_bytes() if capacity is None else max(0, capacity - used_bytes)

    def largest_free_bytes(self) -> int:
        """Return the longest extent that can be allocated now, in bytes."""
        return self._allocator.largest_free_bytes

    def whole_bytes(self) -> int:
        """Return the total bytes that the tier can hold."""
        return self._allocator.capacity_bytes or 0

    @property
    def is_closed(self) -> bool:
        """Whether its file is closed."""
        return self.fd < 0

    def close(self) -> None:
        """Close the file and keep its content for the next process. Idempotent."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def _extent(self, offset: int, length: int) -> Extent:
        self._extents += 1
        return Extent(self, offset, length)

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

    def withdraw_trim(self, offset: int, length: int) -> None:
        """Put a range back that was not trimmed."""
        self._trimming_bytes -= length
        self._allocator.free(offset, length)
        self._close_if_unused()

    def give_back_above_capacity(self) -> None:
        """Return the holes above the capacity, which are never used again. Blocks."""
        for offset, length in self._allocator.holes_above_capacity():
            self.punch(offset, length)


def report_excess(tier: ArenaTier) -> None:
    """Log that a tier holds more than it may, because a setting was lowered."""
    status = tier.status()
    if status.capacity_bytes is not None and status.used_bytes > status.capacity_bytes:
        logger.warning(
            "%s holds %d bytes in %d extents of earlier runs, and %s allows %d: they can be read "
            "until their shuffles are released; new map outputs go elsewhere until there is room",
            tier,
            status.used_bytes,
            status.extents,
            "memory_tier_bytes" if tier.kind == "memory" else "disk_quota_bytes",
            status.capacity_bytes,
        )
