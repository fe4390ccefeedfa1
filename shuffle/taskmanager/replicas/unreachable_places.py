"""The TaskManagers that did not answer one application, and when it tries each of them again."""

import asyncio
from typing import Final

from ....transport.backoff import Backoff
from ...names import TaskManagerPlace
from ..cluster.taskmanager_watch import Presence

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0


class _Unreachable:
    """One unreachable TaskManager: times of the event loop, and the pauses between attempts."""

    __slots__ = ("backoff", "place", "retry_at", "since")

    def __init__(self, place: TaskManagerPlace, now: float) -> None:
        self.place = place
        self.since = now
        self.retry_at = now
        self.backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)


class UnreachablePlaces:
    """The places of one application where no TaskManager answered.

    Args:
        lost_after_seconds: Time away after which a TaskManager counts as lost.
    """

    def __init__(self, lost_after_seconds: float) -> None:
        self._lost_after_seconds: Final = lost_after_seconds
        self._by_id: Final[dict[str, _Unreachable]] = {}
        """By TaskManager, each at the place that was tried last: a driver may name many places."""

    def __len__(self) -> int:
        return len(self._by_id)

    def record(self, place: TaskManagerPlace) -> None:
        """Record a failed attempt; the next one follows after a pause that doubles."""
        now = asyncio.get_running_loop().time()
        found = self._of(place)
        if found is None:
            found = self._by_id[place.taskmanager_id] = _Unreachable(place, now)
        found.retry_at = now + found.backoff.next_seconds()

    def forget(self, place: TaskManagerPlace) -> None:
        """Forget a failure: the TaskManager answers, or a driver named it again."""
        if self._of(place) is not None:
            del self._by_id[place.taskmanager_id]

    def presence(self, place: TaskManagerPlace) -> Presence:
        """Return AWAY or LOST until the TaskManager may be tried again, then UNKNOWN."""
        found = self._of(place)
        now = asyncio.get_running_loop().time()
        if found is None or now >= found.retry_at:
            return Presence.UNKNOWN
        return Presence.LOST if self.is_lost(place) else Presence.AWAY

    def is_lost(self, place: TaskManagerPlace) -> bool:
        """Return whether a TaskManager has not answered for so long that it counts as lost."""
        found = self._of(place)
        now = asyncio.get_running_loop().time()
        return found is not None and now - found.since >= self._lost_after_seconds

    def _of(self, place: TaskManagerPlace) -> _Unreachable | None:
        found = self._by_id.get(place.taskmanager_id)
        return found if found is not None and found.place == place else None
