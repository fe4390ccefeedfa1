"""Removes released map outputs from the remote tier that another TaskManager copied there.

The TaskManager that copied them may be gone. So every TaskManager that gets the release lists the
objects of the shuffle, one shuffle at a time. What a failed listing leaves is removed when the
application ends, or by a sweep.
"""

import logging
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from ....names import ShuffleKey
from ..objects.remote_names import attempt_in, moved_shuffle
from ..objects.remote_objects import RemoteFailure
from ..tiers.remote_tier import MAX_DELETES, RemoteTier

if TYPE_CHECKING:
    from asyncio import Task

logger = logging.getLogger(__name__)

MAX_RELEASES: Final = 10_000
"""Shuffles that wait to be listed; the end of the application removes the others."""


class RemoteReleases:
    """Removes the objects of released shuffles.

    Args:
        tier: The remote tier.
        is_in_use: Returns whether a map attempt was committed again since the release.
        start: Starts a task, and cancels it when the store is closed.
    """

    def __init__(
        self,
        tier: RemoteTier,
        is_in_use: Callable[[ShuffleKey, int], bool],
        start: Callable[[Coroutine[Any, Any, None]], "Task[None]"],
    ) -> None:
        self._tier: Final = tier
        self._is_in_use: Final = is_in_use
        self._start: Final = start
        self._waiting: dict[ShuffleKey, int | None] = {}
        self._running = False

    def add(self, key: ShuffleKey, end: int | None) -> None:
        """Remove the objects of a shuffle, or of its map attempts below ``end``."""
        if len(self._waiting) >= MAX_RELEASES:
            logger.warning("%s: too many releases wait; %s stays until its end", self._tier, key)
            return
        self._waiting[key] = end
        if not self._running:
            self._running = True
            self._start(self._run())

    def forget(self, application_id: str) -> None:
        """Forget the releases of an application: its end removes everything."""
        for key in [key for key in self._waiting if key.application_id == application_id]:
            del self._waiting[key]

    async def _run(self) -> None:
        try:
            while self._waiting:
                key = next(iter(self._waiting))
                end = self._waiting.pop(key)
                try:
                    await self._remove(key, end)
                except RemoteFailure as failure:
                    logger.warning(
                        "%s: objects of %s are removed later: %s", self._tier, key, failure
                    )
        finally:
            self._running = False

    async def _remove(self, key: ShuffleKey, end: int | None) -> None:
        prefix = moved_shuffle(key)
        manifests: list[str] = []
        regions: list[str] = []
        async with aclosing(self._tier.objects.listed(prefix)) as listed:
            async for each in listed:
                attempt = attempt_in(each.name, prefix)
                if attempt is None or (end is not None and attempt >= end):
                    continue
                if self._is_in_use(key, attempt):
                    continue
                (manifests if each.name.endswith("/manifest") else regions).append(each.name)
                if len(manifests) + len(regions) >= MAX_DELETES:
                    break  # the end of the application removes the others
        # Manifests first, so that a half deleted map output is not found.
        self._tier.delete_soon([*manifests, *regions])
