"""Probes the storage directories while the TaskManager runs, and applies the results.

Each directory has its own task and thread, so that a disk that does not answer does not delay the
others. A probe that takes too long counts as failed, and the next one starts when it has ended. Its
time counts only while the event loop is on time: a late loop says nothing about a disk.
"""

import asyncio
import logging
from pathlib import Path
from typing import Protocol

from .....transport.loop import done_on_time, start_task
from ...config.storage_config import StorageConfig
from ..files.io_threads import IoThreads
from ..tiers.arena_tier import ArenaTier
from .directory_health import Change, Condition, DirectoryHealth, Finding, HealthState
from .directory_probe import PROBE_BYTES, ProbedDirectory, probe

logger = logging.getLogger(__name__)


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
        config: Interval of probes, and the limit for slow disks.
    """

    def __init__(
        self, store: WatchedStore, directories: dict[Path, bool], config: StorageConfig
    ) -> None:
        self._store = store
        self._interval_seconds = config.health_check_seconds
        self._slow_seconds = config.slow_disk_seconds
        self._slow = Finding(
            Condition.BAD,
            f"it is slow: {PROBE_BYTES} bytes took longer than "
            f"slow_disk_seconds = {config.slow_disk_seconds:g}",
        )
        self._threads = {each: IoThreads(1, "sluice-health") for each in directories}
        self._tasks = [
            start_task(self._watch(directory, DirectoryHealth(_state(usable))))
            for directory, usable in directories.items()
        ]

    async def close(self) -> None:
        """Stop watching, and wait for running probes."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for threads in self._threads.values():
            await asyncio.to_thread(threads.end)

    async def _watch(self, directory: Path, health: DirectoryHealth) -> None:
        while True:
            await asyncio.sleep(self._interval_seconds)
            tier, probed = self._store.watched(directory)
            if tier is not None and not tier.healthy:
                health.failed()
            under_way = start_task(self._threads[directory].run(probe, probed))
            try:
                is_slow = not await done_on_time(under_way, self._slow_seconds)
                if is_slow:
                    await self._draw(directory, tier, health, self._slow)
                finding = await asyncio.shield(under_way)
            except asyncio.CancelledError:
                await asyncio.wait({under_way})
                raise
            if self._store.watched(directory)[1] != probed:
                continue  # a journal was rewritten meanwhile, or the directory was replaced
            if is_slow and finding.condition is Condition.GOOD:
                finding = self._slow
            await self._draw(directory, tier, health, finding)

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
            return await self._store.make_anew(directory)
        if tier is not None:
            match change:
                case Change.LEAVE_OUT:
                    self._store.leave_out(tier, reason)
                case Change.LOSE:
                    self._store.lose(tier, reason)
                case Change.STOP:
                    self._store.unlocked(tier, reason)
                case Change.TAKE_BACK:
                    return await self._store.take_back(tier)
        return True


def _state(usable: bool) -> HealthState:
    return HealthState.IN_USE if usable else HealthState.LOST
