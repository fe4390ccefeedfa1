"""Tiers allocate extents, and reclaim each when its last reference is released.

The memory tier and the disk tier are arenas: their extents are pieces of one file, which a
:class:`~sluice.shuffle.taskmanager.store.tiers.slot_allocator.SlotAllocator` divides.
The file's name contains a random id, and each journal row names its arena by this id. So a row is
never applied to another file, e.g. after a reboot emptied the tmpfs of the memory tier.

All state belongs to the event-loop thread; other threads only get file descriptors and numbers.
"""

import errno
import logging
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from crc32c import crc32c

from ....histogram import Histogram
from ...bounds.accounts import Account, Resource
from ..files.file_format import TIER_ID_BYTES
from ..store_status import TierKind, TierStatus
from .slot_allocator import occupied_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .....transport.fair_queue import Flow
    from ..errors import StorageError
    from ..files.io_threads import IoThreads, Used
    from ..objects.remote_upload import Upload

logger = logging.getLogger(__name__)

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of a file system that has no room now, but may have room later."""


class Referenced:
    """Base of reference-counted objects. The count starts at one, for the owner."""

    __slots__ = ("_references",)

    def __init__(self) -> None:
        self._references = 1

    @property
    def references(self) -> int:
        """Number of references; 0 after the last release."""
        return self._references

    def retain(self) -> None:
        """Add a reference.

        Raises:
            RuntimeError: The last reference was released before.
        """
        if self._references < 1:
            raise RuntimeError(f"{self!r} was retained after its last release")
        self._references += 1

    def release(self) -> None:
        """Drop a reference; dropping the last one frees the object.

        Raises:
            RuntimeError: Released more often than retained.
        """
        if self._references < 1:
            raise RuntimeError(f"{self!r} was released more often than retained")
        self._references -= 1
        if self._references == 0:
            self._give_back()

    @abstractmethod
    def _give_back(self) -> None:
        """Free what the object stands for; called after the last release."""


class Extent(Referenced):
    """A reference-counted piece of an arena, or an object of the remote tier.

    The last :meth:`release` frees the space for reuse. So readers, writers and transports that
    send slices of :attr:`view` hold a reference until they are done.

    Attributes:
        tier: The tier it belongs to.
        offset: Position in the arena file, in bytes; number of the object in the remote tier.
        length: Requested length in bytes.
        cells_ahead: Cells that the page cache has, or soon has, as bits (``serve/look_ahead.py``).
        upload: The upload that writes it, in a tier of objects; None when it is stored.
    """

    __slots__ = ("_account", "cells_ahead", "length", "offset", "tier")

    upload: "Upload | None" = None

    def __init__(self, tier: "Tier", offset: int, length: int) -> None:
        self._references = 1  # instead of super().__init__(), which would slow down a start
        self.tier = tier
        self.offset = offset
        self.length = length
        self.cells_ahead = 0
        self._account: Account | None = None

    @property
    def view(self) -> memoryview | None:
        """A new view of the bytes in the memory tier's mapping.

        None on disk and in the remote tier, and after the last release.
        """
        return self.tier.view_of(self.offset, self.length) if self._references > 0 else None

    @property
    def in_memory(self) -> bool:
        """Whether the extent has a :attr:`view`."""
        return self.tier.in_memory

    def charge_to(self, account: Account) -> None:
        """Charge the space to an application until it is freed."""
        self._account = account
        account.hold(self.tier.resource, occupied_bytes(self.length))

    @staticmethod
    def charge_all(extents: "Iterable[Extent]", account: Account) -> None:
        """Charge the space of extents to an application, like :meth:`charge_to` for each."""
        amounts: dict[Tier, int] = {}
        for extent in extents:
            extent._account = account
            amounts[extent.tier] = amounts.get(extent.tier, 0) + occupied_bytes(extent.length)
        for tier, amount in amounts.items():
            account.hold(tier.resource, amount)

    def _give_back(self) -> None:
        self.tier.recycle(self)
        account, self._account = self._account, None
        if account is not None:
            account.give_back(self.tier.resource, occupied_bytes(self.length))

    def __repr__(self) -> str:
        end = self.offset + self.length
        return f"<Extent {self.tier.place}[{self.offset}:{end}] references={self._references}>"


class ExtentRead(NamedTuple):
    """A read of bytes of an extent.

    Attributes:
        extent: Retained until the read has ended.
        offset: Position in the extent, in bytes.
        buffers: Filled completely, in order.
    """

    extent: Extent
    offset: int
    buffers: list[memoryview]

    @property
    def end(self) -> int:
        """Position after the last byte."""
        return self.offset + sum(len(buffer) for buffer in self.buffers)

    @property
    def is_within(self) -> bool:
        """Whether the whole range lies in the extent."""
        return self.offset >= 0 and self.end <= self.extent.length


class Tier:
    """Base of all tiers, which say how their extents are read, written and counted.

    Args:
        place: Directory or URL, for messages.
        tier_id: Names the tier in rows of journals.

    Attributes:
        kind: Memory, disk or remote.
        resource: The bytes of extents, in the accounts of applications.
        in_memory: Whether extents have a :attr:`Extent.view` to read and write.
        read_ahead_segments: Maximum segments of one read; 8 hide a thread's round trip.
        reads_ahead: Whether :meth:`will_need` has an effect.
        threads: Threads for its blocking calls, set by its store.
        healthy: Whether it accepts new regions.
        reason: Why it is not healthy; else empty.
        reads: How long readers waited for :meth:`read_all`.
    """

    kind: ClassVar[TierKind]
    resource: ClassVar[Resource]
    in_memory: ClassVar[bool] = False
    read_ahead_segments: ClassVar[int] = 8
    reads_ahead: ClassVar[bool] = False
    threads: "IoThreads"

    def __init__(self, place: Path | str, tier_id: bytes) -> None:
        self.place = place
        self.tier_id = tier_id
        self.has_journal = is_arena(tier_id)
        """Whether it has a journal beside it."""
        self.healthy = True
        self.reason = ""
        self.reads = Histogram()

    def __str__(self) -> str:
        return f"storage directory {self.place}"

    @abstractmethod
    def adopt(self, offset: int, length: int, application_id: str = "") -> Extent:
        """Occupy an extent that a previous process stored for an application.

        Raises:
            ValueError: It does not exist, or overlaps an adopted one.
        """

    @abstractmethod
    def recycle(self, extent: Extent) -> None:
        """Reclaim the space of an extent (called by its last release)."""

    @abstractmethod
    def status(self) -> TierStatus:
        """Return a snapshot."""

    @abstractmethod
    def whole_bytes(self) -> int | None:
        """Return the total bytes that the tier can hold; None: no limit is known."""

    @abstractmethod
    async def read_all(
        self, reads: "Sequence[ExtentRead]", flow: "Flow", uses: "Sequence[Used]"
    ) -> None:
        """Fill buffers from extents of this tier, which the caller retains.

        Args:
            reads: The reads.
            flow: The flow in whose turn they run.
            uses: What has the buffers; retained while an abandoned call uses them.

        Raises:
            StorageError: A read failed.

        Cancellation: waits until no thread uses the buffers, or the call is abandoned.
        """

    def write(self, offset: int, buffers: list[memoryview]) -> None:
        """Write all bytes of the buffers, if there is neither a view nor an upload. Blocks.

        Raises:
            OSError: The disk failed or is full.
        """
        raise RuntimeError(f"{self} has no bytes at {offset}")

    def write_failure(self, extent_offset: int, length: int, error: OSError) -> "StorageError":
        """Turn an error of :meth:`write` into a typed error, and leave the tier out."""
        raise error

    def written(self, extent: Extent) -> None:
        """Record that an extent was written or aborted."""

    def view_of(self, offset: int, length: int) -> memoryview | None:
        """Return the bytes of an extent if they are in memory, or None."""
        return None

    def checksum(self, offset: int, length: int, value: int) -> int:
        """Continue a checksum over stored bytes. Blocks.

        Args:
            offset: Position in the arena file, in bytes.
            length: Number of bytes.
            value: Checksum of the bytes before.

        Raises:
            StorageReadFailed: The file ended early.
            OSError: The disk failed.
        """
        view = self.view_of(offset, length)
        if view is None:
            raise RuntimeError(f"{self} has no bytes at {offset}")
        return crc32c(view, value)

    def read_cached(self, offset: int, buffers: list[memoryview]) -> bool:
        """Fill buffers if that is possible without waiting.

        Args:
            offset: Position in the arena file, in bytes.
            buffers: Filled in order.

        Returns:
            Whether all of them were filled.
        """
        return False

    def will_need(self, places: "Sequence[tuple[int, int]]") -> None:
        """Read ahead at offsets and lengths in bytes. May block; errors are ignored."""

    def fail(self, reason: str) -> None:
        """Allocate nothing until the tier recovers; its extents can still be read."""
        if self.healthy:
            logger.error("%s is left out from now on: %s", self, reason)
        self.healthy = False
        self.reason = reason

    def recover(self) -> None:
        """Use this tier again."""
        if not self.healthy:
            logger.warning("%s is used again", self)
        self.healthy = True
        self.reason = ""


def is_arena(tier_id: bytes) -> bool:
    """Return whether an id names an arena with a journal, and not a remote tier."""
    return len(tier_id) == TIER_ID_BYTES
