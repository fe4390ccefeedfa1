"""The opened directories, tiers and journals from which a store starts."""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from .....transport.errors import code_field
from ...bounds.accounts import Accounts
from ...config.storage_config import StorageConfig
from ..errors import DirectoryHangs, StorageUnavailable
from ..files.directory_threads import StorageThreads
from ..files.journal_places import directory_of
from ..health.directories import DirectoryLock, keep_id
from ..output_index import OutputIndex
from ..store_status import TierKind, TierStatus
from ..tiers.arena_files import remove_arenas
from ..tiers.arena_tier import ArenaTier
from ..tiers.disk_tier import DiskTier
from ..tiers.memory_tier import MemoryTier
from ..tiers.upkeep import Upkeep
from .journal import Entry, Journal
from .journal_sync import JournalSync
from .power_cuts import begin_writing

if TYPE_CHECKING:
    from ..tiers.remote_tier import RemoteTier
    from .journal_reader import FoundJournal

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class OpenedStorage:
    """The opened directories, tiers and journals from which a store starts.

    Attributes:
        taskmanager_id: Stable id, from the data directories.
        memory: The memory tier, if there is one.
        disks: One tier per usable data directory, in the order of the configuration.
        remote: The remote tier, if there is one.
        threads: The threads of all directories.
        upkeep: The upkeep of the tiers.
        left_out: Directories that cannot be used, or the URL of the remote tier.
        refused: The errors of left-out data directories.
        index: The adopted map outputs.
        accounts: The accounts of their applications.
        run: Number of this run.
        journals: Open for appending, by the ids of their arenas.
        stale: Arenas that were missing in the last run, so their journals are out of date.
        forgotten: Number of committed map outputs whose bytes are gone.
        lost: The rows of arenas that were lost while a TaskManager ran.
        locks: Locks of the directories.
        hanging: Directories that were left out because they did not answer.
        earlier: Releases in the journals at the start, for the directories that did not answer.
        last_run: Number of the last run of the journals that were read.
        unseen: Releases that a journal that is missing or not rewritten may lack.
        replaced: Closed journals of tiers that have no journal in this run, by the ids of their
            arenas. They are removed when the next generation is in place.
        generations: Latest generations of journals that a call which was given up may yet write.
        sync: What must survive a power cut.
    """

    accounts: Accounts
    index: OutputIndex
    threads: StorageThreads
    upkeep: Upkeep
    taskmanager_id: str = ""
    memory: MemoryTier | None = None
    disks: list[DiskTier] = field(default_factory=list)
    remote: "RemoteTier | None" = None
    left_out: dict[Path | str, TierStatus] = field(default_factory=dict)
    refused: list[StorageUnavailable] = field(default_factory=list)
    run: int = 1
    journals: dict[bytes, Journal] = field(default_factory=dict)
    stale: set[bytes] = field(default_factory=set)
    forgotten: int = 0
    lost: dict[bytes, Entry] = field(default_factory=dict)
    locks: list[DirectoryLock] = field(default_factory=list)
    hanging: set[Path] = field(default_factory=set)
    earlier: "dict[bytes, FoundJournal]" = field(default_factory=dict)
    last_run: int = 0
    unseen: list[Entry] = field(default_factory=list)
    replaced: dict[bytes, Journal] = field(default_factory=dict)
    _told: set[bytes] = field(default_factory=set)
    generations: dict[bytes, int] = field(default_factory=dict)
    sync: JournalSync = field(default_factory=JournalSync)

    @property
    def tiers(self) -> list[ArenaTier]:
        """All tiers with an arena, in the order in which they are filled."""
        return [*([] if self.memory is None else [self.memory]), *self.disks]

    @property
    def has_unused_memory(self) -> bool:
        """Whether the memory tier is turned off and holds no extents."""
        if self.memory is None:
            return False
        status = self.memory.status()
        return not status.capacity_bytes and not status.extents

    @property
    def directories(self) -> list[Path]:
        """The directories of all local tiers, disks first."""
        memory = [] if self.memory is None else [self.memory.directory]
        return [*(disk.directory for disk in self.disks), *memory]

    def open_anew(self, directory: Path, config: StorageConfig) -> DiskTier | MemoryTier:
        """Open a lost or left-out directory with a new, empty arena.

        Raises:
            StorageUnavailable: It still cannot be used.
            StorageInUse: Another process uses it.
        """
        self.lock_again(directory)
        # A new file with a new id: readers and writers may still use the lost one.
        remove_arenas(directory)
        tier = self.open_tier(directory, config)
        try:
            tier.finish_adoption()
            keep_id(self.taskmanager_id, directory)
            begin_writing(tier, self.sync)
        except OSError as error:
            tier.close()
            raise StorageUnavailable(directory, str(error)) from error
        except BaseException:
            tier.close()
            raise
        return tier

    def lock_again(self, directory: Path) -> None:
        """Lock a directory, of which an earlier lock may be at another file.

        Raises:
            StorageUnavailable: It cannot be used.
            StorageInUse: Another process uses it.
        """
        for lock in [lock for lock in self.locks if lock.directory == directory]:
            self.locks.remove(lock)
            lock.release()
        self.locks.append(DirectoryLock(directory))

    def open_tier(self, directory: Path, config: StorageConfig) -> DiskTier | MemoryTier:
        """Open the arena of a locked directory.

        Raises:
            StorageUnavailable: It cannot be opened.
        """
        if directory in config.data_directories:
            return self.open_disk(directory, config)
        return self.open_memory(directory, config.memory_tier_bytes)

    def open_disk(self, directory: Path, config: StorageConfig) -> DiskTier:
        """Open the arena of a locked data directory.

        Raises:
            StorageUnavailable: It cannot be opened.
        """
        trim = self.upkeep.trim_soon
        tier = DiskTier.open(
            directory, config.disk_quota_bytes, config.min_free_bytes, trim, config.disk_sharers
        )
        tier.threads = self.threads.of(directory).data
        return tier

    def open_memory(self, directory: Path, capacity_bytes: int) -> MemoryTier:
        """Open the arena of a locked directory on tmpfs.

        Raises:
            StorageUnavailable: It cannot be opened.
        """
        tier = MemoryTier.open(directory, capacity_bytes, self.upkeep.trim_soon)
        tier.threads = self.threads.of(directory).data
        return tier

    def leave_out(
        self, kind: TierKind, place: Path | str, error: StorageUnavailable, what: str = "left out"
    ) -> None:
        """Record that a tier cannot be used, and log it as ``what``."""
        logger.error("%s: %s", what, error, extra=code_field(error))
        hangs = isinstance(error, DirectoryHangs)
        if hangs and isinstance(place, Path):
            self.hanging.add(place)
        self.left_out[place] = TierStatus.left_out(kind, place, error.reason, unread=hangs)

    def is_lacking(self, row: bytes) -> bool:
        """Return whether a directory that does not answer may need a release, once for each."""
        if not self.hanging or row in self._told:
            return False
        self._told.add(row)
        return True

    def answers(self, directory: Path) -> None:
        """Record that a directory that did not answer at the start is used again."""
        self.hanging.discard(directory)
        if not self.hanging:
            self.earlier.clear()
            self._told.clear()

    def set_aside(self, arena: bytes, journal: Journal) -> None:
        """Close a journal that gets no rows; its file stays until the next one is in place."""
        self.journals.pop(arena, None)
        self.replaced[arena] = journal
        self.generations[arena] = max(journal.generation, self.generations.get(arena, 0))
        self.threads.of(directory_of(journal.path.parent)).when_idle(journal.close)

    def unlock(self) -> None:
        """Unlock each directory as soon as none of its threads can write to it."""
        for lock in self.locks:
            self.threads.of(lock.directory).when_idle(lock.release)

    @contextlib.contextmanager
    def closed_on_error(self) -> Iterator[Self]:
        """Close everything if a ``with`` block fails."""
        try:
            yield self
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the journals and the arenas, and unlock the directories."""
        for journal in self.journals.values():
            directory = directory_of(journal.path.parent)
            self.threads.of(directory).when_idle(journal.close)
        for tier in self.tiers:
            self.threads.of(tier.directory).when_idle(tier.close)
        self.unlock()
