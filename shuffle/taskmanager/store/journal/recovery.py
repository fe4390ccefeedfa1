"""Locks directories, opens tiers and journals, and adopts committed map outputs."""

import contextlib
import gc
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from ...bounds.accounts import Accounts
from ...config.storage_config import StorageConfig
from ..errors import DirectoryHangs, StorageInUse, StorageUnavailable
from ..files.directory_threads import StorageThreads
from ..files.file_format import arenas_in, report_other_formats
from ..files.journal_places import keep_damaged, place_on, remove_unused
from ..health.directories import DirectoryLock, has_same_id, taskmanager_id
from ..health.directory_probe import PROBE_NAME
from ..output_index import OutputIndex
from ..tiers.arena_tier import ArenaTier, report_excess
from ..tiers.disk_tier import DiskTier
from ..tiers.memory_tier import MemoryTier
from ..tiers.tier import FULL, Tier
from ..tiers.upkeep import Upkeep
from .adoption import Adoption
from .journal import COMPACTION_FLOOR_BYTES, Entry, Journal
from .journal_reader import FoundJournal, open_journal
from .opened_storage import OpenedStorage
from .replay import lost_arenas, replay
from .start_calls import while_it_answers

logger = logging.getLogger(__name__)


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
    for directory in config.data_directories:
        _open_disk(storage, directory, config)
    if not storage.disks:
        raise _none_usable(storage)
    memory_directory = config.memory_directory
    if memory_directory is not None and config.memory_tier_bytes:
        _open_memory(storage, memory_directory, config.memory_tier_bytes)
    elif memory_directory is not None and _has_arena(memory_directory):
        _open_left_memory(storage, memory_directory)
    if config.remote is not None:
        _open_remote(storage, config, config.remote)
    _recover(storage, config.slow_disk_seconds)
    if not storage.disks:
        raise _none_usable(storage)
    storage.taskmanager_id = taskmanager_id(storage.directories)
    if storage.has_unused_memory:
        _remove_memory(storage)
    if storage.remote is not None:
        storage.remote.taskmanager_id = storage.taskmanager_id


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


def _open_disk(storage: OpenedStorage, directory: Path, config: StorageConfig) -> None:
    def locked() -> tuple[DirectoryLock, DiskTier]:
        lock = DirectoryLock(directory)
        try:
            return lock, storage.open_disk(directory, config)
        except BaseException:
            lock.release()
            raise

    def close(opened: tuple[DirectoryLock, DiskTier]) -> None:
        lock, tier = opened
        tier.close()
        lock.release()

    try:
        slow_seconds = config.slow_disk_seconds
        lock, tier = while_it_answers(directory, slow_seconds, locked, close)
        storage.locks.append(lock)
        storage.disks.append(tier)
    except StorageInUse:
        raise  # the configuration is wrong, the disk is not broken
    except StorageUnavailable as error:
        storage.refused.append(error)
        storage.leave_out(DiskTier.kind, directory, error)


def _open_memory(storage: OpenedStorage, directory: Path, capacity_bytes: int) -> None:
    try:
        _lock(storage, directory)
        storage.memory = storage.open_memory(directory, capacity_bytes)
    except StorageInUse:
        raise
    except StorageUnavailable as error:
        storage.leave_out(MemoryTier.kind, directory, error, "running without a memory tier")


def _has_arena(directory: Path) -> bool:
    """Return whether a directory has an arena."""
    try:
        return bool(arenas_in(directory))
    except OSError:
        return False


def _open_left_memory(storage: OpenedStorage, directory: Path) -> None:
    """Open a memory tier that is turned off, to serve its remaining map outputs.

    The default directory is the same for all TaskManagers of a host, so do not open another's tier.
    """
    if not has_same_id(directory, [disk.directory for disk in storage.disks]):
        logger.info("memory_tier_bytes is 0: %s is left to another TaskManager", directory)
        return
    try:
        _open_memory(storage, directory, 0)
    except StorageInUse as error:
        logger.warning("memory_tier_bytes is 0, but %s cannot be emptied: %s", directory, error)


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


def _lock(storage: OpenedStorage, directory: Path) -> DirectoryLock:
    storage.locks.append(DirectoryLock(directory))
    return storage.locks[-1]


def _recover(storage: OpenedStorage, slow_seconds: float) -> None:
    """Adopt the map outputs in the journals, and open the journals for appending."""
    found = _find_journals(storage, slow_seconds)
    arenas = {tier.tier_id: tier for tier in storage.tiers}
    tiers: dict[bytes, Tier] = {**arenas}
    if storage.remote is not None:
        tiers[storage.remote.tier_id] = storage.remote
    replayed = replay(found)
    storage.lost = lost_arenas(found.values())
    for application_id, released in replayed.released.items():
        storage.index.releases.adopt(application_id, released)
    adoption = Adoption(tiers, storage.accounts, storage.index)
    doubted = {arena: arenas[arena] for arena, each in found.items() if each.damage}
    adoption.adopt(replayed.commits, replayed.secured, doubted)
    storage.forgotten = adoption.forgotten + replayed.broken
    for tier in arenas.values():
        _finish(tier, slow_seconds)
        report_excess(tier)
    counts = (storage.index.map_outputs, storage.index.stored_bytes, storage.forgotten)
    if any(counts):
        message = "adopted %d map outputs (%d bytes); %d others are incomplete and were dropped"
        logger.info(message, *counts)
    for arena, tier in arenas.items():
        each = found.get(arena)
        # Forgotten map outputs must not come back after their space was reused.
        stale = bool(storage.forgotten or (each and (each.damage or each.uneven)))
        stale |= arena in replayed.undone or arena in storage.stale
        stale |= storage.has_unused_memory  # its journal is removed with the releases in it
        if tier.healthy:
            journal = _journal_of(storage, tier, each, adoption, stale, slow_seconds)
            if journal is not None:
                storage.journals[arena] = journal
    if not storage.left_out and all(tier.healthy for tier in arenas.values()):
        used = [journal.path.parent for journal in storage.journals.values()]
        remove_unused([disk.directory for disk in storage.disks], used)


def _finish(tier: ArenaTier, slow_seconds: float) -> None:
    """Truncate an arena, and report what other versions left beside it."""

    def finish() -> None:
        tier.finish_adoption()
        report_other_formats(tier.directory)

    try:
        while_it_answers(tier.directory, slow_seconds, finish)
    except DirectoryHangs as error:
        tier.fail(error.reason)


def _find_journals(storage: OpenedStorage, slow_seconds: float) -> dict[bytes, FoundJournal]:
    """Read the journals of all directories, and choose the number of the new run.

    Rows of a directory that was missing in the last run are ignored: its map outputs were reported
    lost then, and it does not have the releases of that run.
    """
    found: dict[bytes, FoundJournal] = {}
    tiers = storage.tiers
    with ThreadPoolExecutor(max(1, len(tiers)), "sluice-recovery") as threads:
        opened = [
            threads.submit(_open_journal, tier, _other_places(storage, tier), slow_seconds)
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


def _open_journal(tier: ArenaTier, others: list[Path], slow_seconds: float) -> FoundJournal | None:
    def close(found: FoundJournal | None) -> None:
        if found is not None:
            found.journal.close()

    read = partial(open_journal, tier.directory, tier.tier_id, others)
    return while_it_answers(tier.directory, slow_seconds, read, close)


def _other_places(storage: OpenedStorage, tier: ArenaTier) -> list[Path]:
    """Return where the journal may be if there was no room for it beside its arena."""
    others = (disk.directory for disk in storage.disks if disk is not tier)
    return [place_on(directory, tier.tier_id) for directory in others]


def _leave_out(storage: OpenedStorage, tier: ArenaTier, error: StorageUnavailable) -> None:
    storage.leave_out(tier.kind, tier.directory, error)
    if tier is storage.memory:
        storage.memory = None
    else:
        storage.refused.append(error)
        storage.disks = [disk for disk in storage.disks if disk is not tier]
    tier.close()


def _journal_of(
    storage: OpenedStorage,
    tier: ArenaTier,
    found: FoundJournal | None,
    adoption: Adoption,
    is_stale: bool,
    slow_seconds: float,
) -> Journal | None:
    """Return the journal of this run: the existing one, or its next generation.

    A tier without a journal accepts no new regions, but its map outputs can still be read. If it
    hangs now, its journal is rewritten when it answers.
    """

    def begin() -> Journal | None:
        return _begun_journal(storage, tier, found, adoption, is_stale=is_stale)

    def close(late: Journal | None) -> None:
        if late is not None:
            late.close()

    try:
        return while_it_answers(tier.directory, slow_seconds, begin, close)
    except DirectoryHangs as error:
        tier.fail(error.reason)
        return None


def _begun_journal(
    storage: OpenedStorage,
    tier: ArenaTier,
    found: FoundJournal | None,
    adoption: Adoption,
    *,
    is_stale: bool,
) -> Journal | None:
    old = None if found is None else found.journal
    is_good = old is not None and not is_stale and old.tier_id == tier.tier_id
    try:
        if old is not None and is_good and old.path.parent == tier.directory:
            live = storage.index.live_bytes(tier.tier_id)
            if old.size_bytes <= max(2 * live, COMPACTION_FLOOR_BYTES):
                old.begin_run(storage.run)
                return old
        new = _next_generation(storage, tier, old, adoption)
    except OSError as error:
        if old is not None and is_good and error.errno in FULL:
            with contextlib.suppress(OSError):
                old.begin_run(storage.run)
                return old
        tier.fail(f"its journal cannot be written: {error.strerror or error}")
        new = None
    if old is not None:
        if found is not None and found.damage:
            keep_damaged(old.path)
        old.remove()
    return new


def _next_generation(
    storage: OpenedStorage, tier: ArenaTier, old: Journal | None, adoption: Adoption
) -> Journal:
    """Write a journal's next generation beside its arena, or on a disk with room.

    Raises:
        OSError: It cannot be written anywhere.
    """
    gone = [entry for arena, entry in storage.lost.items() if arena != tier.tier_id]
    above = 0 if old is None else old.generation
    failure: OSError | None = None
    for place in (tier.directory, *_other_places(storage, tier)):
        # Before the rows of this run, the first of which has the number 1.
        released = [Entry(storage.run, 0, row) for row in storage.index.released_rows()]
        rows = [*adoption.rows_in(tier.tier_id), *released]
        try:
            new = Journal.create(place, tier.tier_id, storage.run, rows, gone, above)
        except OSError as error:
            if error.errno not in FULL:
                raise
            failure = failure or error
            continue
        if failure is not None:
            logger.warning("the journal of %s is kept in %s: %s", tier.directory, place, failure)
        return new
    raise failure or OSError("no directory has room for it")
