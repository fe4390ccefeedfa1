"""Removes released map outputs from the remote tier that another TaskManager copied there.

The TaskManager that copied them may be gone. So every TaskManager that gets the release lists the
objects of the shuffle, one shuffle at a time; applications take turns. What a failed listing leaves
is removed when the application ends, or by a sweep.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from ....names import ShuffleKey
from ..objects.remote_failure import RemoteFailure
from ..objects.remote_names import attempt_in, moved_shuffle
from ..tiers.remote_tier import MAX_DELETES, RemoteTier

if TYPE_CHECKING:
    from asyncio import Task

logger = logging.getLogger(__name__)

MAX_RELEASES: Final = 10_000
"""Maximum shuffles that wait to be listed. If more are released, the newest ones of the application
with the most are removed at its end."""


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
        self._waiting: OrderedDict[str, OrderedDict[int, int | None]] = OrderedDict()
        """The applications in their turns; the bound of each shuffle's release, None: no bound."""
        self._count = 0
        self._running = False

    def __len__(self) -> int:
        return self._count

    def add(self, key: ShuffleKey, end: int | None) -> None:
        """Remove the objects of a shuffle, or of its map attempts below ``end``."""
        shuffles = self._waiting.setdefault(key.application_id, OrderedDict())
        if key.shuffle_id in shuffles:
            before = shuffles[key.shuffle_id]
            is_unbounded = before is None or end is None
            shuffles[key.shuffle_id] = None if is_unbounded else max(before or 0, end or 0)
            return
        shuffles[key.shuffle_id] = end
        self._count += 1
        if self._count > MAX_RELEASES:
            self._leave_one()
        if not self._running:
            self._running = True
            self._start(self._run())

    def forget(self, application_id: str) -> None:
        """Forget the releases of an application: its end removes everything."""
        self._count -= len(self._waiting.pop(application_id, ()))

    def _leave_one(self) -> None:
        """Leave the newest release of the application with the most until its end."""
        most = max(self._waiting, key=lambda each: len(self._waiting[each]))
        shuffle_id, _ = self._waiting[most].popitem()
        if not self._waiting[most]:
            del self._waiting[most]
        self._count -= 1
        logger.warning(
            "%s: too many releases wait; shuffle %d of %s stays until its end",
            self._tier,
            shuffle_id,
            most,
            extra=ShuffleKey(most, shuffle_id).log_fields,
        )

    def _next(self) -> tuple[ShuffleKey, int | None]:
        """Take the oldest release of the application whose turn it is."""
        application_id, shuffles = self._waiting.popitem(last=False)
        shuffle_id, end = shuffles.popitem(last=False)
        self._count -= 1
        if shuffles:
            self._waiting[application_id] = shuffles
        return ShuffleKey(application_id, shuffle_id), end

    async def _run(self) -> None:
        try:
            while self._waiting:
                key, end = self._next()
                try:
                    await self._remove(key, end)
                except RemoteFailure as failure:
                    logger.warning(
                        "%s: objects of %s are removed later: %s",
                        self._tier,
                        key,
                        failure,
                        extra=key.log_fields,
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
