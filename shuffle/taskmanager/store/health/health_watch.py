"""Probes the storage directories while the TaskManager runs, and applies the results.

Each directory has its own task and thread, so that a disk that does not answer does not delay the
others. A probe that takes too long counts as failed, and the next one starts when it has ended. Its
time counts only while the event loop is on time: a late loop says nothing about a disk.

A directory *hangs* if a probe or another call takes too long. Its calls fail then, until a probe is
in time again and the threads of all failed calls have ended. Before that, while a probe is late,
new regions go to other disks if they have room.
"""

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final, Protocol

from .....transport.loop import done_on_time, start_shared, start_task
from ...config.storage_config import StorageConfig
from ..files.directory_threads import DirectoryThreads, StorageThreads
from ..tiers.arena_tier import ArenaTier
from ..tiers.disk_tier import DiskTier
from .directory_health import Change, Condition, DirectoryHealth, Finding, HealthState
from .directory_probe import PROBE_BYTES, ProbedDirectory, free_bytes, probe

logger = logging.getLogger(__name__)

LATE_PART: Final = 4
"""While a probe takes longer than this part of ``slow_disk_seconds``, other disks are preferred."""


class WatchedStore(Protocol):
    """The part of a store that the watch uses."""

    def watched(self, directory: Path) -> tuple[ArenaTier | None, ProbedDirectory]:
        """Return the tier of a directory, if it has one, and the expected files."""

    def leave_out(self, tier: ArenaTier, reason: str) -> None:
        """Store nothing new in a directory."""

    def lose(self, tier: ArenaTier, reason: str) -> None:
        """Forget the content of a lost directory."""

    def unlocked(self, tier: ArenaTier, reason: str) -> None:
        """Stop using all directories: the lock of one is gone."""

    async def take_back(self, tier: ArenaTier) -> bool:
        """Use a directory again; return whether that succeeded."""

    async def make_anew(self, directory: Path) -> bool:
        """Use a directory again with an empty arena; return whether that succeeded."""


class HealthWatch:
    """Watches the directories of a store.

    Args:
        store: The store.
        directories: The directories, each with whether it could be used at the start.
        threads: The threads of the directories.
        config: Interval of probes, and the limit for slow disks.
    """

    def __init__(
        self,
        store: WatchedStore,
        directories: dict[Path, bool],
        threads: StorageThreads,
        config: StorageConfig,
    ) -> None:
        self._store = store
        self._threads = threads
        self._interval_seconds = config.health_check_seconds
        self._slow_seconds = config.slow_disk_seconds
        self._slow = Finding(
            Condition.BAD,
            f"it is slow: {PROBE_BYTES} bytes took longer than "
            f"slow_disk_seconds = {config.slow_disk_seconds:g}",
        )
        self._hangs = Finding(
            Condition.BAD,
            f"it hangs: a call took longer than slow_disk_seconds = {config.slow_disk_seconds:g}",
        )
        self._tasks = [
            start_task(self._watch(directory, DirectoryHealth(_state(usable))))
            for directory, usable in directories.items()
        ]

    async def close(self) -> None:
        """Stop watching, and wait for running probes until they are abandoned.

        Cancellation: safe; the watch has stopped.
        """
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _watch(self, directory: Path, health: DirectoryHealth) -> None:
        threads = self._threads.of(directory)
        while True:
            await asyncio.sleep(self._interval_seconds)  # a disk does not tell when it fails
            tier, probed = self._store.watched(directory)
            if tier is not None and not tier.healthy:
                health.failed()
            under_way = start_shared(threads.probe.run(_look, probed))
            try:
                soon_seconds = self._slow_seconds / LATE_PART
                soon = await done_on_time(under_way, soon_seconds)
                if tier is not None:
                    tier.answers = soon
                left_seconds = self._slow_seconds - soon_seconds
                is_slow = not soon and not await done_on_time(under_way, left_seconds)
                if is_slow:
                    threads.abandon(self._slow.reason)
                    await self._draw(directory, tier, health, self._slow)
                finding, free = await asyncio.shield(under_way)
            except asyncio.CancelledError:
                await asyncio.wait({under_way})  # it ends: the store closes and has abandoned it
                raise
            if isinstance(tier, DiskTier) and free is not None:
                tier.note_free(free)
            is_stuck = not is_slow and self._is_stuck(threads)
            if self._store.watched(directory)[1] != probed:
                continue  # a journal was rewritten meanwhile, or the directory was replaced
            if finding.condition is Condition.GOOD and (is_slow or is_stuck):
                finding = self._slow if is_slow else self._hangs
            await self._draw(directory, tier, health, finding)

    def _is_stuck(self, threads: DirectoryThreads) -> bool:
        """Return whether calls hang although a probe was in time, and give them up."""
        if threads.count_time(self._interval_seconds, self._slow_seconds):
            threads.abandon(self._hangs.reason)
        return not threads.resume()

    async def _draw(
        self, directory: Path, tier: ArenaTier | None, health: DirectoryHealth, finding: Finding
    ) -> None:
        """Apply the result of a probe. An error here must not end the watch."""
        change = health.take(finding)
        try:
            done = await self._change(directory, tier, change, finding.reason)
        except Exception:
            logger.exception("storage directory %s: %s failed", directory, change.value)
            done = False
        if not done:
            health.stays_out(empty=change is Change.MAKE_ANEW)

    async def _change(
        self, directory: Path, tier: ArenaTier | None, change: Change, reason: str
    ) -> bool:
        if change is Change.MAKE_ANEW:
            return await self._in_time(directory, self._store.make_anew(directory))
        if tier is not None:
            match change:
                case Change.LEAVE_OUT:
                    self._store.leave_out(tier, reason)
                case Change.LOSE:
                    self._store.lose(tier, reason)
                case Change.STOP:
                    self._store.unlocked(tier, reason)
                case Change.TAKE_BACK:
                    return await self._in_time(directory, self._store.take_back(tier))
        return True

    async def _in_time(self, directory: Path, work: Coroutine[Any, Any, bool]) -> bool:
        """Use a directory again; give its calls up if it hangs meanwhile.

        Cancellation: waits until the work has ended, which it does when it is abandoned.
        """
        threads, task = self._threads.of(directory), start_shared(work)
        try:
            while not await done_on_time(task, self._interval_seconds):
                if threads.count_time(self._interval_seconds, self._slow_seconds):
                    threads.abandon(self._hangs.reason)
        except asyncio.CancelledError:
            await asyncio.wait({task})
            raise
        return task.result()


def _look(probed: ProbedDirectory) -> tuple[Finding, int | None]:
    """Return the result of a probe, and the free bytes of the disk. Blocks."""
    finding = probe(probed)
    return finding, free_bytes(probed.directory) if finding.condition is Condition.GOOD else None


def _state(usable: bool) -> HealthState:
    return HealthState.IN_USE if usable else HealthState.LOST
