"""Locks directories, opens tiers and journals, and adopts committed map outputs."""

import contextlib
import gc
import logging
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from .....transport.errors import code_field
from ...bounds.accounts import Accounts
from ...config.storage_config import StorageConfig
from ..errors import DirectoryHangs, StorageInUse, StorageUnavailable
from ..files.directory_threads import StorageThreads
from ..files.file_format import arenas_in, report_other_formats
from ..files.journal_places import remove_unused
from ..health.directories import DirectoryLock, has_same_id, taskmanager_id
from ..health.directory_probe import PROBE_NAME
from ..output_index import OutputIndex
from ..tiers.arena_tier import ArenaTier, report_excess
from ..tiers.disk_tier import DiskTier
from ..tiers.memory_tier import MemoryTier
from ..tiers.upkeep import Upkeep
from .adoption import Adoption
from .journal import Entry
from .journal_reader import FoundJournal, open_journal
from .journal_sync import JournalSync
from .opened_storage import OpenedStorage
from .power_cuts import is_doubtful
from .replay import lost_arenas, replay
from .rows import LOSE_ROW, is_undoing
from .start_calls import StartCalls
from .start_journals import begin_journal, end_start, other_places

if TYPE_CHECKING:
    from ..tiers.tier import Tier

logger = logging.getLogger(__name__)

TierT = TypeVar("TierT", DiskTier, MemoryTier)


def open_storage(config: StorageConfig, accounts: Accounts) -> OpenedStorage:
    """Open all directories of a configuration.

    Args:
        config: Directories and sizes.
        accounts: Accounts to charge for adopted bytes.

    Raises:
        StorageInUse: Another process uses one of them.
        StorageUnavailable: No data directory can be used.
    """
    threads = StorageThreads(config.io_threads, len(config.data_directories))
    storage = OpenedStorage(accounts, OutputIndex(accounts), threads, Upkeep())
    storage.sync = JournalSync(config.journal_sync, config.journal_sync_interval_seconds)
    collects = gc.isenabled()
    gc.disable()  # it would scan all adopted objects again and again, and find no garbage
    try:
        with storage.closed_on_error():
            _open(storage, config)
    finally:
        if collects:
            gc.enable()
    return storage


def _open(storage: OpenedStorage, config: StorageConfig) -> None:
    starts = StartCalls(storage.threads, config.slow_disk_seconds)
    for directory in config.data_directories:
        _open_disk(storage, starts, directory, config)
    if not storage.disks:
        raise _none_usable(storage)
    memory_directory = config.memory_directory
    if memory_directory is not None and config.memory_tier_bytes:
        _open_memory(storage, starts, memory_directory, config.memory_tier_bytes)
    elif memory_directory is not None and _has_arena(memory_directory, starts):
        _open_left_memory(storage, starts, memory_directory)
    if config.remote is not None:
        _open_remote(storage, config, config.remote)
    _recover(storage, starts)
    if not storage.disks:
        raise _none_usable(storage)
    storage.taskmanager_id = taskmanager_id(storage.directories, starts.make)
    if storage.has_unused_memory and all(disk.healthy for disk in storage.disks):
        _remove_memory(storage)
    if storage.remote is not None:
        storage.remote.taskmanager_id = storage.taskmanager_id
    for disk in storage.disks:
        if disk.healthy:
            end_start(storage, disk, starts.make)


def _none_usable(storage: OpenedStorage) -> StorageUnavailable:
    """Return the error for a start without a usable data directory."""
    first, *others = storage.refused
    if not others:
        return first
    return StorageUnavailable(
        ", ".join(str(error.directory) for error in storage.refused),
        "; ".join(error.reason for error in storage.refused),
        ". ".join(dict.fromkeys(error.remedy for error in storage.refused)),
    )


def _open_disk(
    storage: OpenedStorage, starts: StartCalls, directory: Path, config: StorageConfig
) -> None:
    try:
        storage.disks.append(
            _opened(storage, starts, directory, lambda: storage.open_disk(directory, config))
        )
    except StorageInUse:
        raise  # the configuration is wrong, the disk is not broken
    except StorageUnavailable as error:
        storage.refused.append(error)
        storage.leave_out(DiskTier.kind, directory, error)


def _opened(
    storage: OpenedStorage, starts: StartCalls, directory: Path, open_tier: Callable[[], TierT]
) -> TierT:
    """Lock a directory and open its arena."""

    def locked() -> tuple[DirectoryLock, TierT]:
        lock = DirectoryLock(directory)
        try:
            return lock, open_tier()
        except BaseException:
            lock.release()
            raise

    def close(opened: tuple[DirectoryLock, TierT]) -> None:
        lock, tier = opened
        tier.close()
        lock.release()

    lock, tier = starts.make(directory, locked, close)
    storage.locks.append(lock)
    return tier


def _open_memory(
    storage: OpenedStorage, starts: StartCalls, directory: Path, capacity_bytes: int
) -> None:
    try:
        storage.memory = _opened(
            storage, starts, directory, lambda: storage.open_memory(directory, capacity_bytes)
        )
    except StorageInUse:
        raise
    except StorageUnavailable as error:
        storage.leave_out(MemoryTier.kind, directory, error, "running without a memory tier")


def _has_arena(directory: Path, starts: StartCalls) -> bool:
    """Return whether a directory has an arena."""
    try:
        return bool(starts.make(directory, lambda: arenas_in(directory)))
    except (OSError, DirectoryHangs):
        return False


def _open_left_memory(storage: OpenedStorage, starts: StartCalls, directory: Path) -> None:
    """Open a memory tier that is turned off, to serve its remaining map outputs.

    The default directory is the same for all TaskManagers of a host, so do not open another's tier.
    """
    if not has_same_id(directory, [disk.directory for disk in storage.disks], starts.make):
        logger.info("memory_tier_bytes is 0: %s is left to another TaskManager", directory)
        return
    try:
        _open_memory(storage, starts, directory, 0)
    except StorageInUse as error:
        logger.warning(
            "memory_tier_bytes is 0, but %s cannot be emptied: %s",
            directory,
            error,
            extra=code_field(error),
        )


def _remove_memory(storage: OpenedStorage) -> None:
    """Remove an empty memory tier that is turned off, but keep its directory and id."""
    memory = storage.memory
    if memory is None:
        return
    directory, size_bytes = memory.directory, os.fstat(memory.fd).st_blocks * 512
    storage.memory = None
    memory.close()
    journal = storage.journals.pop(memory.tier_id, None)
    if journal is not None:
        journal.remove()
    for path in (directory / PROBE_NAME, memory.path):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("%s of an earlier run cannot be removed: %s", path, error)
    for lock in [lock for lock in storage.locks if lock.directory == directory]:
        storage.locks.remove(lock)
        lock.release()
    logger.warning(
        "memory_tier_bytes is 0: removed the memory tier that an earlier run left in %s, "
        "%d bytes without a committed map output",
        directory,
        size_bytes,
    )


def _open_remote(storage: OpenedStorage, config: StorageConfig, url: str) -> None:
    from ..tiers.remote_tier import RemoteTier

    try:
        storage.remote = RemoteTier.open(config, url)
        storage.remote.threads = storage.threads.memory
    except StorageUnavailable as error:
        storage.leave_out(RemoteTier.kind, url, error, "running without a remote tier")


def _recover(storage: OpenedStorage, starts: StartCalls) -> None:
    """Adopt the map outputs in the journals, and open the journals for appending."""
    found = _find_journals(storage, starts)
    arenas = {tier.tier_id: tier for tier in storage.tiers}
    tiers: dict[bytes, Tier] = {**arenas}
    if storage.remote is not None:
        tiers[storage.remote.tier_id] = storage.remote
    replayed = replay(found)
    storage.lost = lost_arenas(found.values())
    for application_id, released in replayed.released.items():
        storage.index.releases.adopt(application_id, released)
    adoption = Adoption(tiers, storage.accounts, storage.index)
    doubted = {
        arena: arenas[arena]
        for arena, each in found.items()
        if each.damage or is_doubtful(arenas[arena], starts.make)
    }
    adoption.adopt(replayed.commits, replayed.secured, doubted, starts.make)
    storage.forgotten = adoption.forgotten + replayed.broken
    for tier in arenas.values():
        _finish(tier, starts)
        report_excess(tier)
    counts = (storage.index.map_outputs, storage.index.stored_bytes, storage.forgotten)
    if any(counts):
        message = "adopted %d map outputs (%d bytes); %d others are incomplete and were dropped"
        logger.info(message, *counts)
    if storage.left_out or replayed.undone:
        # A journal that lacks releases now may have lacked earlier ones at the start before, too.
        first_run = 0 if replayed.undone else storage.last_run
        storage.unseen = _last_releases(found.values(), first_run)
    for arena, tier in arenas.items():
        each = found.get(arena)
        # Forgotten map outputs must not come back after their space was reused.
        stale = bool(storage.forgotten or (each and (each.damage or each.uneven)))
        stale |= arena in replayed.undone or arena in storage.stale or arena in doubted
        stale |= storage.has_unused_memory  # its journal is removed with the releases in it
        if tier.healthy:
            begin_journal(storage, starts, tier, each, adoption.rows_in, is_stale=stale)
    if not storage.left_out and all(tier.healthy for tier in arenas.values()):
        used = [journal.path.parent for journal in storage.journals.values()]
        for disk in storage.disks:
            with contextlib.suppress(DirectoryHangs):  # it is noticed while the TaskManager runs
                starts.make(disk.directory, partial(remove_unused, [disk.directory], used))


def _finish(tier: ArenaTier, starts: StartCalls) -> None:
    """Truncate an arena, and report what other versions left beside it."""

    def finish() -> None:
        tier.finish_adoption()
        report_other_formats(tier.directory)

    try:
        starts.make(tier.directory, finish)
    except DirectoryHangs as error:
        tier.fail(error.reason)


def _find_journals(storage: OpenedStorage, starts: StartCalls) -> dict[bytes, FoundJournal]:
    """Read the journals of all directories, and choose the number of the new run.

    Rows of a directory that was missing in the last run are ignored: its map outputs were reported
    lost then, and it does not have the releases of that run.
    """
    found: dict[bytes, FoundJournal] = {}
    tiers = storage.tiers
    with ThreadPoolExecutor(max(1, len(tiers)), "sluice-recovery") as threads:
        opened = [
            threads.submit(
                open_journal,
                tier.directory,
                tier.tier_id,
                other_places(storage, tier),
                starts.make,
            )
            for tier in tiers
        ]
    for tier, future in zip(tiers, opened, strict=True):
        try:
            journal_found = future.result()
        except StorageUnavailable as error:
            _leave_out(storage, tier, error)
            continue
        if journal_found is not None:
            found[tier.tier_id] = journal_found
    # A rewritten journal has the releases of earlier runs as number 0 of its own.
    entries = (entry for each in found.values() for entry in (*each.entries, *each.releases))
    rows = [entry.run for entry in entries if entry.number]
    last_run = max(rows, default=0)
    storage.last_run = last_run
    if storage.hanging:
        storage.earlier = {arena: _releases_of(each) for arena, each in found.items()}
    storage.run = max([last_run, *(each.journal.run for each in found.values())]) + 1
    for arena, each in list(found.items()):
        path, run = each.journal.path, each.journal.run
        for damage in each.damage:
            logger.error("%s", damage, extra=code_field(damage))
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


def _last_releases(found: Iterable[FoundJournal], first_run: int) -> list[Entry]:
    """Return the releases of the runs from ``first_run`` on, which a rewritten journal must keep.

    A journal that cannot be read or written now may lack them. One that was not there in the last
    run that wrote rows does not count, so what it lacks of earlier runs need not be kept for it.
    """
    rows = (row for each in found for row in (*each.entries, *each.releases))
    last = {row for row in rows if row.number and row.run >= first_run and is_undoing(row.row)}
    return sorted(row for row in last if not row.row.startswith(LOSE_ROW))


def _releases_of(found: FoundJournal) -> FoundJournal:
    """Return a journal without the rows that nothing but its own directory needs."""
    entries = [entry for entry in found.entries if is_undoing(entry.row)]
    return found._replace(entries=entries, doubtful=0)


def _leave_out(storage: OpenedStorage, tier: ArenaTier, error: StorageUnavailable) -> None:
    storage.leave_out(tier.kind, tier.directory, error)
    if tier is storage.memory:
        storage.memory = None
    else:
        storage.refused.append(error)
        storage.disks = [disk for disk in storage.disks if disk is not tier]
    tier.close()
