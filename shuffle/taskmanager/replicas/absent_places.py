"""The TaskManagers that did not answer one application, and when it tries each of them again."""

import asyncio
from typing import Final

from ....transport.backoff import Backoff
from ...names import TaskManagerPlace
from ..cluster.taskmanager_watch import Presence

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0


class _Absence:
    """The absence of one TaskManager: times of the event loop, and the pauses between attempts."""

    __slots__ = ("backoff", "place", "retry_at", "since")

    def __init__(self, place: TaskManagerPlace, now: float) -> None:
        self.place = place
        self.since = now
        self.retry_at = now
        self.backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)


class AbsentPlaces:
    """The places of one application where no TaskManager answered.

    Args:
        lost_after_seconds: Time away after which a TaskManager counts as lost.
    """

    def __init__(self, lost_after_seconds: float) -> None:
        self._lost_after_seconds: Final = lost_after_seconds
        self._absences: Final[dict[str, _Absence]] = {}
        """By TaskManager, each at the place that was tried last: a driver may name many places."""

    def __len__(self) -> int:
        return len(self._absences)

    def record(self, place: TaskManagerPlace) -> None:
        """Record a failed attempt; the next one follows after a pause that doubles."""
        now = asyncio.get_running_loop().time()
        absence = self._of(place)
        if absence is None:
            absence = self._absences[place.taskmanager_id] = _Absence(place, now)
        absence.retry_at = now + absence.backoff.next_seconds()

    def forget(self, place: TaskManagerPlace) -> None:
        """Forget an absence: the TaskManager answers, or a driver named it again."""
        if self._of(place) is not None:
            del self._absences[place.taskmanager_id]

    def presence(self, place: TaskManagerPlace) -> Presence:
        """Return AWAY or LOST until the TaskManager may be tried again, then UNKNOWN."""
        absence = self._of(place)
        now = asyncio.get_running_loop().time()
        if absence is None or now >= absence.retry_at:
            return Presence.UNKNOWN
        return Presence.LOST if self.is_lost(place) else Presence.AWAY

    def is_lost(self, place: TaskManagerPlace) -> bool:
        """Return whether a TaskManager has not answered for so long that it counts as lost."""
        absence = self._of(place)
        now = asyncio.get_running_loop().time()
        return absence is not None and now - absence.since >= self._lost_after_seconds

    def _of(self, place: TaskManagerPlace) -> _Absence | None:
        absence = self._absences.get(place.taskmanager_id)
        return absence if absence is not None and absence.place == place else None
