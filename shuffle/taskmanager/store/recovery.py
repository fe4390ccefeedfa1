"""Opens the storage: locks directories, opens tiers, adopts committed map outputs."""

import dataclasses
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...names import MapAttemptKey, ShuffleKey
from ..accounts import Account, Accounts
from ..sections import StorageConfig
from .directories import DirectoryLock, taskmanager_id
from .disk_tier import DiskTier
from .errors import CorruptJournal, StorageInUse, StorageUnavailable
from .journal import (
    Journal,
    find_journals,
    generation_of,
    open_journal,
    record_bytes,
)
from .journal_writer import COMPACTION_FLOOR_BYTES
from .memory_tier import MemoryTier
from .output_index import OutputIndex
from .outputs import MapOutput, Region
from .rows import (
    CommitRow,
    DropRow,
    ReleaseApplicationRow,
    ReleaseShuffleRow,
    SecureRow,
    pack_commit,
    pack_secure,
    unpack,
)
from .tier import Extent, Tier, TierStatistics

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class OpenedStorage:
    """The state from which a store starts; :meth:`close` undoes the opening.

    Attributes:
        taskmanager_id: Stable id, from the data directories.
        memory: The memory tier, if there is one.
        disks: One tier per usable data directory, in the order of the configuration.
        left_out: Directories that cannot be used, each with the reason.
        index: The adopted map outputs.
        accounts: The accounts of the applications that have them.
        journal: Open for appending.
        forgotten: Number of committed map outputs whose bytes are gone.
        locks: Locks of the directories.
    """

    accounts: Accounts
    index: OutputIndex
    taskmanager_id: str = ""
    memory: MemoryTier | None = None
    disks: list[DiskTier] = field(default_factory=list)
    left_out: list[TierStatistics] = field(default_factory=list)
    journal: Journal | None = None
    forgotten: int = 0
    locks: list[DirectoryLock] = field(default_factory=list)

    @property
    def tiers(self) -> list[Tier]:
        """All tiers, in the order in which they are filled."""
        return [*([] if self.memory is None else [self.memory]), *self.disks]

    def close(self) -> None:
        """Close the arenas and unlock the directories; the journal's writer closes the journal."""
        for tier in self.tiers:
            tier.close()
        for lock in self.locks:
            lock.release()


def open_storage(config: StorageConfig, accounts: Accounts) -> OpenedStorage:
    """Open all directories of a configuration.

    Args:
        config: Directories and sizes.
        accounts: Applications pay here for what is adopted.

    Raises:
        StorageInUse: Another process has one of them.
        StorageUnavailable: No data directory can be used.
    """
    storage = OpenedStorage(accounts=accounts, index=OutputIndex(accounts))
    try:
        for directory in config.data_directories:
            _open_disk(storage, directory, config)
        if not storage.disks:
            raise StorageUnavailable(
                ", ".join(map(str, config.data_directories)),
                "; ".join(tier.reason for tier in storage.left_out),
                "At least one data directory must be usable: correct data_directories",
            )
        if config.memory_directory is not None and config.memory_tier_bytes:
            _open_memory(storage, config.memory_directory, config.memory_tier_bytes)
        directories = [disk.directory for disk in storage.disks]
        storage.taskmanager_id = taskmanager_id(directories)
        _recover(storage, directories)
    except BaseException:
        if storage.journal is not None:
            storage.journal.close()
        storage.close()
        raise
    return storage


def _open_disk(storage: OpenedStorage, directory: Path, config: StorageConfig) -> None:
    try:
        lock = _lock(storage, directory)
        try:
            storage.disks.append(
                DiskTier.open(directory, config.disk_quota_bytes, config.min_free_bytes)
            )
        except StorageUnavailable:
            storage.locks.remove(lock)
            lock.release()
            raise
    except StorageInUse:
        raise  # a wrong configuration, not a broken disk
    except StorageUnavailable as error:
        logger.error("left out: %s", error)
        storage.left_out.append(TierStatistics.left_out("disk", directory, error.reason))


def _open_memory(storage: OpenedStorage, directory: Path, capacity_bytes: int) -> None:
    try:
        _lock(storage, directory)
        storage.memory = MemoryTier.open(directory, capacity_bytes)
    except StorageInUse:
        raise
    except StorageUnavailable as error:
        logger.error("going on without a memory tier: %s", error)
        storage.left_out.append(TierStatistics.left_out("memory", directory, error.reason))


def _lock(storage: OpenedStorage, directory: Path) -> DirectoryLock:
    lock = DirectoryLock(directory)
    storage.locks.append(lock)
    return lock


def _recover(storage: OpenedStorage, directories: Sequence[Path]) -> None:
    journals = find_journals(directories)
    current, rows, damaged = _read_journal(journals[0]) if journals else (None, [], False)
    live, secured = _replay(rows)
    tiers = {tier.tier_id: tier for tier in storage.tiers}
    for row in live:
        output = _adopt(row, tiers, storage.accounts)
        if output is None:
            storage.forgotten += 1
        else:
            storage.index.add(output, record_bytes(pack_commit(output)))
    for begun in secured:  # after the commits, which go first where extents overlap
        _adopt_open(begun, tiers, storage)
    for tier in (storage.memory, *storage.disks):
        if tier is not None:
            tier.finish_adoption()
    if storage.index.map_outputs or storage.forgotten:
        logger.info(
            "adopted %d map outputs (%d bytes); the files of %d others are gone",
            storage.index.map_outputs,
            storage.index.stored_bytes,
            storage.forgotten,
        )
    if (
        current is not None
        and not damaged
        and not storage.forgotten
        and current.path.parent == directories[0]
        and current.size_bytes <= max(2 * storage.index.journal_bytes, COMPACTION_FLOOR_BYTES)
    ):
        storage.journal = current
        stale = journals[1:]
    else:
        if current is not None:
            current.close()
        # The time makes it higher than the generation of a journal in a directory that is left out
        # now and may be back later: its rows are stale by then.
        newest = generation_of(journals[0]) if journals else 0
        generation = max(newest + 1, int(time.time()))
        storage.journal = _new_journal(storage, directories, generation)
        stale = journals
    for path in stale:
        _discard(path, keep=damaged and path == journals[0])


def _read_journal(path: Path) -> tuple[Journal | None, list[bytes], bool]:
    """Read the journal that counts; damage is logged and does not stop the start."""
    try:
        journal, rows, damage = open_journal(path)
    except OSError as error:
        logger.error("%s", CorruptJournal(path, 0, 0, str(error)))
        return None, [], True
    if damage is not None:
        logger.error("%s", damage)
    return journal, rows, damage is not None


def _replay(rows: Sequence[bytes]) -> tuple[list[CommitRow], list[SecureRow]]:
    """Return the commits and the secured regions that no later row has undone."""
    secured: dict[MapAttemptKey, SecureRow] = {}
    applications: dict[str, dict[int, dict[int, CommitRow]]] = {}
    for number, data in enumerate(rows):
        try:
            row = unpack(data)
        except ValueError as error:
            # Its checksum is right, so another version wrote it; the other rows still count.
            logger.error("journal record %d is not understood: %s", number, error)
            continue
        match row:
            case CommitRow(key=key):
                shuffles = applications.setdefault(key.application_id, {})
                shuffles.setdefault(key.shuffle_id, {})[row.map_attempt_id] = row
                secured.pop(MapAttemptKey(key, row.map_attempt_id), None)
            case ReleaseShuffleRow(key=key):
                applications.get(key.application_id, {}).pop(key.shuffle_id, None)
                secured = {each: row for each, row in secured.items() if each.shuffle != key}
            case ReleaseApplicationRow(application_id=application_id):
                applications.pop(application_id, None)
                secured = {
                    each: row
                    for each, row in secured.items()
                    if each.shuffle.application_id != application_id
                }
            case SecureRow():
                _add_secured(secured, row)
            case DropRow():
                secured.pop(MapAttemptKey(row.key, row.map_attempt_id), None)
    commits = [
        row
        for shuffles in applications.values()
        for attempts in shuffles.values()
        for row in attempts.values()
    ]
    return commits, list(secured.values())


def _add_secured(secured: dict[MapAttemptKey, SecureRow], row: SecureRow) -> None:
    attempt = MapAttemptKey(row.key, row.map_attempt_id)
    before = secured.get(attempt)
    if row.first_region == 0:
        secured[attempt] = row
    elif before is not None and len(before.regions) == row.first_region:
        secured[attempt] = dataclasses.replace(before, regions=before.regions + row.regions)
    else:
        logger.error("map attempt %d of %s: regions are missing", row.map_attempt_id, row.key)
        secured.pop(attempt, None)


def _adopt_open(row: SecureRow, tiers: dict[bytes, Tier], storage: OpenedStorage) -> None:
    """Occupy the extents of secured regions again, all or none."""
    regions = _adopt_regions(row, tiers, storage.accounts.of(row.key.application_id))
    if regions is not None:
        attempt = MapAttemptKey(ShuffleKey(*row.key), row.map_attempt_id)
        record = pack_secure(*attempt, row.num_subpartitions, 0, regions)
        storage.index.secure(attempt, row.num_subpartitions, regions, record_bytes(record))


def _adopt(row: CommitRow, tiers: dict[bytes, Tier], accounts: Accounts) -> MapOutput | None:
    """Occupy the extents of a map output again; None if any of them is not there any more."""
    regions = _adopt_regions(row, tiers, accounts.of(row.key.application_id))
    if regions is None:
        return None
    key = ShuffleKey(*row.key)
    return MapOutput(key, row.map_attempt_id, row.num_subpartitions, tuple(regions))


def _adopt_regions(
    row: CommitRow | SecureRow, tiers: dict[bytes, Tier], account: Account
) -> list[Region] | None:
    regions: list[Region] = []
    for region in row.regions:
        extent: Extent | None = None
        length = region.offsets[-1]
        if length:
            tier = tiers.get(region.tier_id)
            try:
                if tier is None:
                    raise ValueError("its arena is gone")
                extent = tier.adopt(region.offset, length)
                extent.charge_to(account)
            except ValueError as error:
                logger.warning(
                    "map attempt %d of %s is forgotten: %s", row.map_attempt_id, row.key, error
                )
                for adopted in regions:
                    adopted.release()
                return None
        regions.append(Region(extent, region.first_subpartition, region.offsets, region.crc32c))
    return regions


def _new_journal(storage: OpenedStorage, directories: Sequence[Path], generation: int) -> Journal:
    """Write a journal with all live rows into the first directory that takes it."""
    rows = [pack_commit(output) for output in storage.index.outputs()]
    rows += [
        pack_secure(each.key, each.map_attempt_id, each.num_subpartitions, 0, each.regions)
        for each in storage.index.open_outputs()
    ]
    failures: list[str] = []
    for directory in directories:
        try:
            return Journal.create(directory, generation, rows)
        except OSError as error:
            logger.error("no journal can be written to %s: %s", directory, error)
            failures.append(str(error))
    raise StorageUnavailable(
        ", ".join(map(str, directories)),
        f"no directory takes a journal: {'; '.join(failures)}",
        "Free disk space in a data directory",
    )


def _discard(path: Path, *, keep: bool) -> None:
    """Remove a journal that does not count any more; a damaged one is kept for inspection."""
    try:
        if keep:
            path.replace(path.with_name("journal.damaged"))
        else:
            path.unlink()
    except OSError as error:
        # Harmless: a journal of a lower generation is never read again.
        logger.warning("%s cannot be removed: %s", path, error)
