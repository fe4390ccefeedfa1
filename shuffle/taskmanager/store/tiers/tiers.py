"""All tiers of a store: choosing a tier for an extent."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from ....histogram_status import HistogramStatus
from ....names import utf8_text
from ...bounds.accounts import Account, Resource
from ..errors import StorageFull
from ..files.journal_places import place_on
from ..store_status import RegionReadsStatus, TierStatus
from .arena_tier import ArenaTier
from .disk_tier import DiskTier
from .memory_tier import MemoryTier
from .slot_allocator import occupied_bytes
from .tier import FULL, Extent, Tier
from .tier_shares import allowance, fair_share_bytes
from .upkeep import Upkeep

if TYPE_CHECKING:
    from ..files.directory_threads import StorageThreads
    from .remote_tier import RemoteTier

logger = logging.getLogger(__name__)


class Tiers:
    """The memory tier, a disk tier for each usable data directory, and the remote tier.

    Args:
        memory: The memory tier, if there is one.
        disks: In the order of the configuration.
        left_out: The status of directories that could not be used at the start, and of a remote
            tier.
        upkeep: Allocates pages of the memory tier ahead of use.
        reserve_percent: Part of the memory tier that a single tenant leaves free.
        remote: The remote tier, if there is one.

    Attributes:
        memory_refusals: Extents not placed in the memory tier, although it had room, because their
            application had its share of it; only grows.
    """

    def __init__(
        self,
        memory: MemoryTier | None,
        disks: Sequence[DiskTier],
        left_out: Mapping[Path | str, TierStatus],
        upkeep: Upkeep,
        reserve_percent: int,
        remote: "RemoteTier | None" = None,
    ) -> None:
        self.memory_refusals = 0
        self.remote = remote
        self._memory = memory
        self._beyond: list[tuple[Resource, Callable[[int, str], Extent | None]]]
        """How to allocate beyond memory, in the order of preference."""
        self._beyond = [(DiskTier.resource, self._on_disk)]
        if remote is not None:
            self._beyond.append((remote.resource, remote.allocate))
        self._disks = list(disks)
        self._left_out = dict(left_out)
        self._replaced: list[ArenaTier] = []
        self.upkeep = upkeep
        self._reserve_percent = reserve_percent
        self._next_disk = 0
        self._by_id = {tier.tier_id: tier for tier in self.tiers()}

    def allocate(self, length: int, account: Account) -> Extent:
        """Allocate an extent: in memory if it has room, else on a disk, else remotely.

        An extent is charged to its application when it is allocated, not when it is written. So an
        application cannot exceed its share by announcing regions that it does not write.

        Args:
            length: Bytes, at least 1.
            account: The application to charge. It gets no memory if it is at its quota there, or
                has its share while others want theirs.

        Raises:
            StorageFull: No tier has room, whatever the application's quotas.
            QuotaExceeded: The application is at its quota of the last tier: disk or remote.
        """
        memory, size_bytes = self._memory, occupied_bytes(length)
        extent: Extent | None = None
        kept: MemoryTier | None = None  # has room, but not for this application
        if memory is not None and account.has_room(Resource.MEMORY_TIER_BYTES, size_bytes):
            if self._gets_memory(memory, size_bytes, account):
                extent = self._in_memory(memory, length)
            else:
                kept = memory
        if extent is None:
            alone = all(
                each.sharers(Resource.MEMORY_TIER_BYTES) == 1
                for each in (account, account.parent)
                if each is not None
            )
            extent = self._beyond_memory(length, account, kept if alone else None)
            if extent is None:
                raise self._full(length, None if alone else kept)
        extent.charge_to(account)
        if kept is not None and extent.tier is not kept:
            self.memory_refusals += 1
        return extent

    def _gets_memory(self, memory: MemoryTier, size_bytes: int, account: Account) -> bool:
        """Return whether the application may use free room of the memory tier."""
        free, room = memory.free_bytes, memory.room_bytes
        if size_bytes > free:
            return True
        for each in (account.parent, account):
            if each is not None:  # the tenant takes of the tier, and its application of the tenant
                held = each.amount(Resource.MEMORY_TIER_BYTES)
                sharers = each.sharers(Resource.MEMORY_TIER_BYTES)
                share = fair_share_bytes(room, sharers, self._reserve_percent)
                free = allowance(held, free, share, self._reserve_percent)
                room = held + free
        return size_bytes <= free

    def _beyond_memory(
        self, length: int, account: Account, reserve: MemoryTier | None
    ) -> Extent | None:
        """Allocate on a disk, or in the remote tier if no disk has room or quota for it.

        If the remote tier is full too, use the reserve of the memory tier: better use up the
        reserve for future applications than fail a region. The shares of existing applications
        are not used.
        """
        size_bytes = occupied_bytes(length)
        extent: Extent | None = None
        for resource, allocate in self._beyond:
            if extent is None and account.has_room(resource, size_bytes):
                extent = allocate(length, account.application_id)
        if extent is None and reserve is not None:
            extent = self._in_memory(reserve, length)
        if extent is None:
            remote = self.remote
            if remote is not None and remote.healthy:
                if length <= remote.largest_free_bytes():
                    account.require_room(remote.resource, size_bytes)
            elif any(disk.whole_bytes() != 0 for disk in self._disks):
                account.require_room(DiskTier.resource, size_bytes)
        return extent

    def _in_memory(self, memory: MemoryTier, length: int) -> Extent | None:
        extent = memory.allocate(length)
        if extent is not None and memory.wants_backing:
            self.upkeep.back_ahead(memory)
        return extent

    def _on_disk(self, length: int, _: str) -> Extent | None:
        disks = self._disks
        late: list[DiskTier] = []
        for step in range(len(disks)):
            # Round robin spreads the load over all disks, and fills them at the same rate.
            number = (self._next_disk + step) % len(disks)
            if not disks[number].answers:
                late.append(disks[number])
                continue
            extent = disks[number].allocate(length)
            if extent is not None:
                self._next_disk = number + 1
                return extent
        for disk in late:
            extent = disk.allocate(length)
            if extent is not None:
                return extent
        return None

    def _full(self, length: int, kept: MemoryTier | None) -> StorageFull:
        """Return the error if no tier has room; ``kept`` has room for other applications."""
        tiers = [tier for tier in self.status() if kept is None or tier.tier != kept.kind]
        detail = "; ".join(
            f"{tier.tier} {tier.directory} "
            + (tier.reason or f"has {tier.largest_free_bytes} in one piece")
            for tier in tiers
        )
        if kept is not None:
            detail += "; the rest of the memory tier is kept for other applications"
        return StorageFull(length, max(tier.largest_free_bytes for tier in tiers), detail)

    def status(self) -> list[TierStatus]:
        """Return the status of all tiers, then of directories left out at the start."""
        return [*(tier.status() for tier in self._all()), *self._left_out.values()]

    def region_reads(self) -> list[RegionReadsStatus]:
        """Return how long readers waited for each tier without memory."""
        return [
            RegionReadsStatus(tier.kind, utf8_text(tier.place), HistogramStatus.taken(tier.reads))
            for tier in self._all()
            if not tier.in_memory
        ]

    def used_bytes(self) -> tuple[int, int]:
        """Return the bytes in use of the memory tier and of all disks, without a system call."""
        memory = 0 if self._memory is None else self._memory.used_bytes
        return memory, sum(disk.used_bytes for disk in self._disks)

    def _all(self) -> list[Tier]:
        return [*self.tiers(), *([] if self.remote is None else [self.remote])]

    def wholes(self) -> dict[Resource, int]:
        """Return the total bytes that the tiers can hold, by limited resource."""
        wholes = {MemoryTier.resource: 0, DiskTier.resource: 0}
        for tier in self._all():
            if (whole := tier.whole_bytes()) is not None:
                wholes[tier.resource] = wholes.get(tier.resource, 0) + whole
        return wholes

    def note_journal_failure(self, arena: bytes, error: OSError) -> bool:
        """Record that a journal refused a write.

        Returns:
            Whether rows may fit later; if not, its directory is left out until it is healthy.
        """
        tier = self._by_id[arena]
        if error.errno not in FULL:
            tier.fail(str(error))
        elif tier.has_journal_room:
            tier.has_journal_room = False
            logger.warning("%s takes no map outputs until its journal has room: %s", tier, error)
        return tier.healthy

    def note_journal_room(self, arena: bytes) -> None:
        """Record that the journal of an arena has room for rows again."""
        tier = self._by_id[arena]
        if not tier.has_journal_room:
            tier.has_journal_room = True
            logger.warning("%s takes map outputs again: its journal has room", tier)

    def journal_places(self, arena: bytes) -> list[Path]:
        """Return where the journal of an arena may be, the best place first."""
        tier = self._by_id[arena]
        others = (disk.directory for disk in self._disks if disk is not tier and disk.healthy)
        return [tier.directory, *(place_on(each, arena) for each in others)]

    def arena(self, arena: bytes) -> ArenaTier | None:
        """Return the tier of an arena, if there is one."""
        return self._by_id.get(arena)

    def is_healthy(self, arena: bytes) -> bool:
        """Return whether the tier of an arena accepts new regions."""
        return self._by_id[arena].healthy

    def directory_of(self, arena: bytes) -> Path | None:
        """Return the directory of an arena, if there is one."""
        tier = self._by_id.get(arena)
        return None if tier is None else tier.directory

    def tiers(self) -> list[ArenaTier]:
        """Return all tiers with an arena, including those left out while running."""
        return [*([] if self._memory is None else [self._memory]), *self._disks]

    def left_out(self) -> list[Path]:
        """Return the local directories left out at the start."""
        return [each for each in self._left_out if isinstance(each, Path)]

    def has_answered(self, directory: Path) -> None:
        """Record that a directory left out at the start has answered and holds no map outputs."""
        left_out = self._left_out.get(directory)
        if left_out is not None:
            self._left_out[directory] = structs.replace(left_out, unread=False)

    def use_anew(self, tier: DiskTier | MemoryTier, adopted: int | None = None) -> None:
        """Use a lost or left-out directory again.

        Args:
            tier: Its tier.
            adopted: Number of map outputs in its arena; None: the arena is new.
        """
        directory = tier.directory
        self._left_out.pop(directory, None)
        before = [each for each in self.tiers() if each.directory == directory]
        if isinstance(tier, MemoryTier):
            self._memory = tier
        else:
            self._disks = [each for each in self._disks if each.directory != directory]
            self._disks.append(tier)
        for each in before:  # readers may hold extents of a lost arena
            each.retire()
        replaced = [*self._replaced, *before]
        self._replaced = [each for each in replaced if not each.is_closed]
        self._by_id[tier.tier_id] = tier
        if adopted is None:
            logger.warning("storage directory %s is used again, empty", directory)
        else:
            logger.warning("%s is used again, with %d map outputs", directory, adopted)

    def close(self, threads: "StorageThreads") -> None:
        """Close the files of all tiers and keep their content.

        The file of a directory that hangs is closed in the last thread that uses it.
        """
        for tier in (*self.tiers(), *self._replaced):
            threads.of(tier.directory).when_idle(tier.close)
