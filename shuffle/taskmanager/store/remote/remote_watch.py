"""Probes the remote tier, and leaves it out while it does not answer.

The tier is left out after a failed request. Then it is probed, and used again after three good
probes. A working tier is probed rarely, because each probe is two requests.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from .....transport.loop import start_task
from ...config.storage_config import StorageConfig
from ..health.directory_health import Change, Condition, DirectoryHealth, Finding
from ..objects.remote_failure import RemoteFailure
from ..tiers.remote_tier import RemoteTier
from .remote_sweep import RemoteSweep

logger = logging.getLogger(__name__)

SELDOM: Final = 60
"""A working tier is probed at this multiple of the probe interval."""

SWEEPS: Final = 24
"""Number of sweeps in the time after which an object without a map output is an orphan."""

MIN_SWEEP_SECONDS: Final = 0.2


class RemoteWatch:
    """Watches and sweeps the remote tier until it is closed.

    Args:
        tier: The tier.
        known_applications: Returns the applications whose objects must be kept.
        config: Time between two probes of a tier that is left out, and the age of orphans.
    """

    def __init__(
        self,
        tier: RemoteTier,
        known_applications: Callable[[], set[str]],
        config: StorageConfig,
    ) -> None:
        self._tier = tier
        self._sweep = RemoteSweep(tier, known_applications, config.remote_orphan_seconds)
        self._interval_seconds = config.health_check_seconds
        self._sweep_seconds = max(config.remote_orphan_seconds / SWEEPS, MIN_SWEEP_SECONDS)
        self._tasks = [start_task(self._watch()), start_task(self._clean())]

    async def close(self) -> None:
        """Stop watching."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def _watch(self) -> None:
        health = DirectoryHealth()
        while True:
            finding = await self._probe()
            if not self._tier.healthy:
                health.failed()
            change = health.take(finding)
            if change is Change.LEAVE_OUT:
                self._tier.fail(finding.reason)
            elif change is Change.TAKE_BACK:
                self._tier.recover()
            if self._tier.healthy:
                self._tier.failed.clear()
                try:
                    async with asyncio.timeout(SELDOM * self._interval_seconds):
                        await self._tier.failed.wait()
                except TimeoutError:
                    continue
            await asyncio.sleep(self._interval_seconds)

    async def _probe(self) -> Finding:
        """Write this TaskManager's marker, and query its time."""
        try:
            await self._sweep.touch()
        except RemoteFailure as failure:
            return Finding(Condition.BAD, failure.reason)
        return Finding(Condition.GOOD)

    async def _clean(self) -> None:
        while True:
            await asyncio.sleep(self._sweep_seconds)
            if not self._tier.healthy:
                continue
            try:
                await self._sweep.run()
            except RemoteFailure as failure:
                logger.warning("%s: a sweep failed partway: %s", self._tier, failure)
            except Exception:
                logger.exception("%s: a sweep failed", self._tier)
