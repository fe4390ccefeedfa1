"""Applies changes in the health of directories to a store."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ....transport.errors import code_field
from ..config.storage_config import StorageConfig
from .errors import StorageError
from .health.directories import DirectoryLock
from .health.directory_probe import ProbedDirectory
from .health.health_watch import HealthWatch
from .journal.journal_writer import JournalWriter
from .journal.late_adoption import LateDirectory, adopt_late, open_late
from .journal.opened_storage import OpenedStorage
from .journal.power_cuts import begin_writing
from .output_index import WITH_DIRECTORY, Lost
from .stored_outputs import MapOutput, arenas_of, release_regions
from .tiers.arena_tier import ArenaTier
from .tiers.disk_tier import DiskTier
from .tiers.tiers import Tiers

if TYPE_CHECKING:
    from ...names import ShuffleKey

logger = logging.getLogger(__name__)


class StoreHealth:
    """The store as the health watch sees it: a ``WatchedStore``.

    Args:
        storage: Has the index, and reopens directories.
        tiers: All tiers of the store.
        journal: Its journals.
        config: Interval of probes, and the limit for slow disks.
    """

    def __init__(
        self, storage: OpenedStorage, tiers: Tiers, journal: JournalWriter, config: StorageConfig
    ) -> None:
        self._storage = storage
        self._index = storage.index
        self._tiers = tiers
        self._journal = journal
        self._config = config
        self._watch: HealthWatch | None = None
        self._on_lost: Callable[[Lost], None] | None = None
        self._on_unlocked: Callable[[str], None] | None = None
        self._on_adopted: Callable[[Sequence[MapOutput]], None] | None = None
        self._refusals: dict[Path, str] = {}
        """The last logged reason why a directory could not be used again."""

    def watch(
        self,
        on_lost: Callable[[Lost], None],
        on_unlocked: Callable[[str], None] | None = None,
        on_adopted: Callable[[Sequence[MapOutput]], None] | None = None,
    ) -> None:
        """Probe the directories from now on, until the store is closed.

        Args:
            on_lost: Called with the map attempts that were lost with a directory, by shuffle.
            on_unlocked: Called with a description when the lock of a directory is gone.
            on_adopted: Called with the map outputs of a directory that did not answer at the start.
        """
        self._on_lost = on_lost
        self._on_adopted = on_adopted
        self._on_unlocked = on_unlocked
        directories = {tier.directory: True for tier in self._tiers.tiers()}
        directories |= dict.fromkeys(self._tiers.left_out(), False)
        for tier in self._tiers.tiers():
            if isinstance(tier, DiskTier):
                tier.note_free()
        self._watch = HealthWatch(self, directories, self._storage.threads, self._config)

    def watched(self, directory: Path) -> tuple[ArenaTier | None, ProbedDirectory]:
        """Return the tier of a directory, if it has one, and the expected files."""
        tier = next((each for each in self._tiers.tiers() if each.directory == directory), None)
        if tier is None or tier.lost:
            # Recreate a directory that RemoveIPC or a cleaner removed from a tmpfs. A missing data
            # directory may be an unmounted disk, whose mount point must stay empty.
            make = directory not in self._config.data_directories
            return tier, ProbedDirectory(directory, make=make)
        files = [(tier.path, tier.identity)]
        journal = self._journal.files.journals.get(tier.tier_id)
        is_renumbered = self._journal.files.is_renumbered(tier.tier_id)
        if journal is not None and journal.path.parent == directory and not is_renumbered:
            files.append((journal.path, journal.identity()))
        locks = [(each.path, each.identity()) for each in self._locks_of(directory)]
        return tier, ProbedDirectory(
            directory, tier.directory_identity, tuple(files), locks[0] if locks else None
        )

    def _locks_of(self, directory: Path) -> list[DirectoryLock]:
        return [each for each in self._storage.locks if each.directory == directory]

    def leave_out(self, tier: ArenaTier, reason: str) -> None:
        """Store nothing new in a directory; its content can still be read."""
        tier.fail(reason)

    def lose(self, tier: ArenaTier, reason: str) -> None:
        """Forget the map outputs that have bytes in a directory that is gone."""
        tier.fail(reason)
        tier.lost = True
        self._journal.lose(tier.tier_id)
        arena = tier.tier_id
        self.lose_outputs(
            lambda output: arena in arenas_of(output.regions),
            f"{tier.directory}: {reason}",
        )

    def unlocked(self, tier: ArenaTier, reason: str) -> None:
        """Report that the lock of a directory is gone."""
        if self._on_unlocked is not None:
            self._on_unlocked(f"{tier.directory}: {reason}")

    def lose_outputs(self, is_lost: Callable[[MapOutput], bool], why: str) -> None:
        """Forget map outputs whose bytes are gone, and report it."""
        outputs = [each for each in self._index.outputs() if is_lost(each)]
        logger.error("%d map outputs are lost with %s", len(outputs), why)
        lost: dict[ShuffleKey, list[int]] = {}
        for output in outputs:
            self._index.lose(output, WITH_DIRECTORY)
            lost.setdefault(output.key, []).append(output.map_attempt_id)
            release_regions(output.regions)
        if lost:
            self.report_lost(lost)

    def report_lost(self, lost: Lost) -> None:
        """Report map outputs that are no longer here."""
        if self._on_lost is not None:
            self._on_lost(lost)

    async def take_back(self, tier: ArenaTier) -> bool:
        """Use a directory again with its content; return whether that succeeded.

        Cancellation: safe; the journal's rewrite is completed.
        """
        if tier.sync_failed:
            return False
        if tier.tier_id not in self._journal.files.journals and not await self._journal.restore(
            tier.tier_id
        ):
            return False
        begin = partial(begin_writing, tier, self._storage.sync)
        try:  # only now: the bytes that the journal names were verified if they had to be
            await self._storage.threads.of(tier.directory).probe.run(begin)
        except (OSError, StorageError) as error:
            logger.error(
                "%s cannot be used again: %s", tier.directory, error, extra=code_field(error)
            )
            return False
        if tier.tier_id not in self._journal.files.journals or tier.sync_failed:
            return False  # it failed again meanwhile
        tier.recover()
        return True

    async def make_anew(self, directory: Path) -> bool:
        """Use a directory again with an empty arena; return whether that succeeded.

        One that did not answer at the start is used with what it holds.

        Cancellation: waits until its thread has ended, or is abandoned.
        """
        probes = self._storage.threads.of(directory).probe
        try:
            if directory in self._storage.hanging:
                late = await probes.run(open_late, self._storage, directory, self._config)
                if late is not None:
                    await self._adopt(late)
                    return True
                self._storage.answers(directory)
                self._tiers.has_answered(directory)
            tier = await probes.run(self._storage.open_anew, directory, self._config)
        except StorageError as error:
            if self._refusals.get(directory) != str(error):  # log it once, not every few seconds
                logger.error("left out: %s", error, extra=code_field(error))
                self._refusals[directory] = str(error)
            return False
        self._refusals.pop(directory, None)
        if isinstance(tier, DiskTier):
            tier.note_free()
        self._tiers.use_anew(tier)
        restored = await self._journal.restore(tier.tier_id)
        if not restored:
            tier.lost = True
        return restored

    async def _adopt(self, late: LateDirectory) -> None:
        """Adopt what a directory holds that did not answer at the start.

        If it fails meanwhile, it stays left out with its content, like any other.
        """
        storage, tier = self._storage, late.tier
        tier.fail("its map outputs are being adopted")
        releases = self._journal.kept_releases()
        outputs = adopt_late(storage, late, releases, self._journal.is_pending)
        self._tiers.use_anew(tier, len(outputs))
        storage.answers(tier.directory)
        if self._on_adopted is not None:
            self._on_adopted(outputs)
        await storage.threads.of(tier.directory).probe.run(late.finish)
        if isinstance(tier, DiskTier):
            tier.note_free()
        await self.take_back(tier)

    async def close(self) -> None:
        """Stop watching.

        Cancellation: safe; the watch has stopped.
        """
        if self._watch is not None:
            await self._watch.close()
