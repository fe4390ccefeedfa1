"""Opens the storage: locks directories, opens tiers and journals, adopts committed map outputs."""

import gc
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ..accounts import Accounts
from ..sections import StorageConfig
from .adoption import Adoption
from .directories import DirectoryLock, keep_id, taskmanager_id
from .disk_tier import DiskTier
from .errors import StorageInUse, StorageUnavailable
from .journal import COMPACTION_FLOOR_BYTES, Entry, FoundJournal, Journal, open_journal
from .memory_tier import MemoryTier
from .output_index import OutputIndex
from .remote_tier import RemoteTier
from .replay import lost_arenas, replay
from .tier import ArenaTier, Tier, TierStatistics

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class OpenedStorage:
    """The state from which a store starts; :meth:`close` undoes the opening.

    Attributes:
        taskmanager_id: Stable id, from the data directories.
        memory: The memory tier, if there is one.
        disks: One tier per usable data directory, in the order of the configuration.
        remote: The remote tier, if there is one.
        left_out: Directories that cannot be used, each with the reason.
        index: The adopted map outputs.
        accounts: The accounts of the applications that have them.
        run: Number of this run.
        journals: Open for appending, by the ids of their arenas.
        stale: Arenas whose journals tell of a time before they were away.
        forgotten: Number of committed map outputs whose bytes are gone.
        lost: The rows of arenas that were lost while a TaskManager ran.
        locks: Locks of the directories.
    """

    accounts: Accounts
    index: OutputIndex
    taskmanager_id: str = ""
    memory: MemoryTier | None = None
    disks: list[DiskTier] = field(default_factory=list)
    remote: RemoteTier | None = None
    left_out: list[TierStatistics] = field(default_factory=list)
    run: int = 1
    journals: dict[bytes, Journal] = field(default_factory=dict)
    stale: set[bytes] = field(default_factory=set)
    forgotten: int = 0
    lost: dict[bytes, Entry] = field(default_factory=dict)
    locks: list[DirectoryLock] = field(default_factory=list)

    @property
    def tiers(self) -> list[ArenaTier]:
        """All tiers with an arena, in the order in which they are filled."""
        return [*([] if self.memory is None else [self.memory]), *self.disks]

    @property
    def directories(self) -> list[Path]:
        """The directories of all tiers, those of disks first."""
        memory = [] if self.memory is None else [self.memory.directory]
        return [*(disk.directory for disk in self.disks), *memory]

    def open_anew(self, directory: Path, config: StorageConfig) -> DiskTier:
        """Open a data directory that was lost, or left out at the start, without what it holds.

        Raises:
            StorageUnavailable: It still cannot be used.
            StorageInUse: Another process has it.
        """
        for lock in [lock for lock in self.locks if lock.directory == directory]:
            self.locks.remove(lock)
            lock.release()
        self.locks.append(DirectoryLock(directory))
        disk = DiskTier.open(directory, config.disk_quota_bytes, config.min_free_bytes)
        disk.finish_adoption()
        keep_id(self.taskmanager_id, directory)
        return disk

    def unlock(self) -> None:
        """Unlock the directories."""
        for lock in self.locks:
            lock.release()

    def close(self) -> None:
        """Close the arenas and unlock the directories."""
        for tier in self.tiers:
            tier.close()
        self.unlock()


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
    collects = gc.isenabled()
    gc.disable()  # it would go through all that is adopted, again and again, and find nothing
    try:
        for directory in config.data_directories:
            _open_disk(storage, directory, config)
        if not storage.disks:
            raise _none_usable(config, storage)
        if config.memory_directory is not None and config.memory_tier_bytes:
            _open_memory(storage, config.memory_directory, config.memory_tier_bytes)
        if config.remote is not None:
            _open_remote(storage, config, config.remote)
        _recover(storage)
        if not storage.disks:
            raise _none_usable(config, storage)
        storage.taskmanager_id = taskmanager_id(storage.directories)
        if storage.remote is not None:
            storage.remote.taskmanager_id = storage.taskmanager_id
    except BaseException:
        for journal in storage.journals.values():
            journal.close()
        storage.close()
        raise
    finally:
        if collects:
            gc.enable()
    return storage


def _none_usable(config: StorageConfig, storage: OpenedStorage) -> StorageUnavailable:
    disks = [tier for tier in storage.left_out if tier.kind == "disk"]
    return StorageUnavailable(
        ", ".join(map(str, config.data_directories)),
        "; ".join(tier.reason for tier in disks),
        "At least one data directory must be usable: correct data_directories",
    )


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


def _open_remote(storage: OpenedStorage, config: StorageConfig, url: str) -> None:
    try:
        storage.remote = RemoteTier.open(config, url)
    except StorageUnavailable as error:
        logger.error("going on without a remote tier: %s", error)
        storage.left_out.append(TierStatistics.left_out("remote", url, error.reason))


def _lock(storage: OpenedStorage, directory: Path) -> DirectoryLock:
    lock = DirectoryLock(directory)
    storage.locks.append(lock)
    return lock


def _recover(storage: OpenedStorage) -> None:
    """Adopt what the journals tell of, and open them for appending."""
    found = _find_journals(storage)
    arenas = {tier.tier_id: tier for tier in storage.tiers}
    tiers: dict[bytes, Tier] = {**arenas}
    if storage.remote is not None:
        tiers[storage.remote.tier_id] = storage.remote
    replayed = replay(found)
    storage.lost = lost_arenas(found.values())
    adoption = Adoption(tiers, storage.accounts, storage.index)
    doubted = {arena for arena, each in found.items() if each.damage}
    adoption.adopt(replayed.commits, replayed.secured, doubted)
    storage.forgotten = adoption.forgotten + replayed.broken
    for tier in arenas.values():
        tier.finish_adoption()
    if storage.index.map_outputs or storage.forgotten:
        logger.info(
            "adopted %d map outputs (%d bytes); %d others are not whole any more",
            storage.index.map_outputs,
            storage.index.stored_bytes,
            storage.forgotten,
        )
    for arena, tier in arenas.items():
        each = found.get(arena)
        # What was forgotten must not come back when the bytes belong to others.
        stale = bool(storage.forgotten or (each and (each.damage or each.uneven)))
        stale |= arena in replayed.undone or arena in storage.stale
        journal = _journal_of(storage, tier, each, adoption, is_stale=stale)
        if journal is not None:
            storage.journals[arena] = journal


def _find_journals(storage: OpenedStorage) -> dict[bytes, FoundJournal]:
    """Read the journals of all directories, and begin a new run in each.

    A directory that was away while rows were written elsewhere is emptied: what it holds counted as
    lost then, and the releases of it were not written there.
    """
    found: dict[bytes, FoundJournal] = {}
    tiers = storage.tiers
    with ThreadPoolExecutor(max(1, len(tiers)), "sluice-recovery") as threads:
        opened = [threads.submit(open_journal, tier.directory, tier.tier_id) for tier in tiers]
    for tier, future in zip(tiers, opened, strict=True):
        try:
            journal_found = future.result()
        except StorageUnavailable as error:
            _leave_out(storage, tier, error.reason, error)
            continue
        if journal_found is not None:
            found[tier.tier_id] = journal_found
    rows = [entry.run for each in found.values() for entry in (*each.entries, *each.releases)]
    last_run = max(rows, default=0)
    storage.run = max([last_run, *(each.journal.run for each in found.values())]) + 1
    for arena, each in list(found.items()):
        path, run = each.journal.path, each.journal.run
        for damage in each.damage:
            logger.error("%s", damage)
        if run < last_run:
            logger.warning(
                "%s was away in run %d: the %d rows that it has from run %d do not count",
                path.parent,
                last_run,
                len(each.entries),
                run,
            )
            found[arena] = each._replace(entries=[], releases=[], doubtful=0)
            storage.stale.add(arena)
    return found


def _leave_out(storage: OpenedStorage, tier: ArenaTier, reason: str, error: Exception) -> None:
    logger.error("left out: %s", error)
    storage.left_out.append(TierStatistics.left_out(tier.kind, tier.directory, reason))
    if tier is storage.memory:
        storage.memory = None
    else:
        storage.disks = [disk for disk in storage.disks if disk is not tier]
    tier.close()


def _journal_of(
    storage: OpenedStorage,
    tier: ArenaTier,
    found: FoundJournal | None,
    adoption: Adoption,
    *,
    is_stale: bool,
) -> Journal | None:
    """Return the journal of this run: the one that was found, or its next generation.

    A tier without a journal takes no new regions; what it holds can be read until it is released.
    """
    old = None if found is None else found.journal
    try:
        if old is not None and not is_stale and old.tier_id == tier.tier_id:
            live = storage.index.live_bytes(tier.tier_id)
            if old.size_bytes <= max(2 * live, COMPACTION_FLOOR_BYTES):
                old.begin_run(storage.run)
                return old
        rows = adoption.rows_in(tier.tier_id)
        gone = [entry for arena, entry in storage.lost.items() if arena != tier.tier_id]
        new = Journal.create(tier.directory, tier.tier_id, storage.run, rows, gone)
    except OSError as error:
        tier.fail(f"it takes no journal: {error.strerror or error}")
        new = None
    if old is not None:
        if found is not None and found.damage:
            _keep_damaged(old.path)
        old.remove()
    return new


def _keep_damaged(path: Path) -> None:
    """Keep a damaged journal for inspection."""
    try:
        path.replace(path.with_name("journal.damaged"))
    except OSError as error:
        logger.warning("%s cannot be kept: %s", path, error)
