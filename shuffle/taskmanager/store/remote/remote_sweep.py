"""Removes orphans of the remote tier in the background.

An orphan is old, by the clock of the remote store, and either

- is a region of this TaskManager, and no extent here has its number, because of an upload without
  a commit, a crash between upload and row, or a failed deletion; or
- belongs to an application that no TaskManager has known for this time. If it is a region of
  another TaskManager, that one has not been seen for this time either.

With each sweep, a TaskManager touches its own marker, and one for each application that it knows.
"""

import datetime
import logging
from collections.abc import Callable, Iterable

from ..objects.remote_names import (
    APPLICATIONS,
    MOVED,
    REGIONS,
    TASKMANAGERS,
    application_marker,
    name_of_application,
    number_in,
)
from ..tiers.remote_tier import RemoteTier

logger = logging.getLogger(__name__)


class RemoteSweep:
    """Sweeps one remote tier.

    Args:
        tier: The tier.
        applications: Returns the applications that this TaskManager knows.
        orphan_seconds: Age of orphans.
    """

    def __init__(
        self, tier: RemoteTier, applications: Callable[[], Iterable[str]], orphan_seconds: float
    ) -> None:
        self._tier = tier
        self._applications = applications
        self._age = datetime.timedelta(seconds=orphan_seconds)

    async def touch(self) -> datetime.datetime:
        """Write this TaskManager's marker; return the time of the remote store.

        Raises:
            RemoteFailure: A request failed.
        """
        return await self._tier.marker.touch()

    async def run(self) -> None:
        """Sweep once.

        Raises:
            RemoteFailure: It failed partway; the next sweep does the rest.
        """
        now = await self.touch()
        before = now - self._age
        known = {name_of_application(each) for each in self._applications() if each}
        for name in known:
            await self._tier.objects.put(application_marker(name), b"")
        await self._sweep_own(before, now)
        await self._sweep_gone(before, known)

    async def _sweep_own(self, before: datetime.datetime, now: datetime.datetime) -> None:
        own = f"{REGIONS}/{self._tier.taskmanager_id}"
        orphans: list[str] = []
        async for each in self._tier.objects.listed(own):
            number = number_in(each.name.rpartition("/")[2])
            if each.modified < before and number is not None and not self._tier.is_live(number):
                orphans.append(each.name)
        await self._remove(orphans)
        # Only this process writes below its id, so what it does not write is a killed process's.
        await self._remove_unfinished(own, now, self._is_written)
        for prefix in (MOVED, APPLICATIONS, TASKMANAGERS):
            await self._remove_unfinished(prefix, before)

    def _is_written(self, name: str) -> bool:
        number = number_in(name)
        return number is None or self._tier.is_live(number)

    async def _remove_unfinished(
        self,
        prefix: str,
        before: datetime.datetime,
        is_live: Callable[[str], bool] = lambda name: False,
    ) -> None:
        removed = await self._tier.objects.remove_unfinished(prefix, before, is_live)
        self._tier.removed_orphans += removed

    async def _sweep_gone(self, before: datetime.datetime, known: set[str]) -> None:
        objects = self._tier.objects
        stale: list[str] = []
        async for each in objects.listed(APPLICATIONS):
            if each.modified >= before:
                known.add(each.name.rpartition("/")[2])
            else:
                stale.append(each.name)
        for name in await objects.parts_below(MOVED):
            if name not in known:
                await self._remove_old(f"{MOVED}/{name}", before)
        here = {self._tier.taskmanager_id}
        async for each in objects.listed(TASKMANAGERS):
            if each.modified >= before:
                here.add(each.name.rpartition("/")[2])
            else:
                stale.append(each.name)
        for taskmanager_id in await objects.parts_below(REGIONS):
            if taskmanager_id not in here:
                await self._remove_unfinished(f"{REGIONS}/{taskmanager_id}", before)
                for name in await objects.parts_below(f"{REGIONS}/{taskmanager_id}"):
                    if name not in known:
                        await self._remove_old(f"{REGIONS}/{taskmanager_id}/{name}", before)
        await objects.delete(stale)

    async def _remove_old(self, prefix: str, before: datetime.datetime) -> None:
        objects = self._tier.objects
        await self._remove([o.name async for o in objects.listed(prefix) if o.modified < before])

    async def _remove(self, names: list[str]) -> None:
        if names:
            await self._tier.objects.delete(names)
            self._tier.removed_orphans += len(names)
            logger.info("%s: removed %d orphans", self._tier, len(names))
