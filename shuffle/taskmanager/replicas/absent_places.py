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

    __slots__ = ("backoff", "retry_at", "since")

    def __init__(self, now: float) -> None:
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
        self._absences: Final[dict[TaskManagerPlace, _Absence]] = {}

    def record(self, place: TaskManagerPlace) -> None:
        """Record a failed attempt; the next one follows after a pause that doubles."""
        now = asyncio.get_running_loop().time()
        absence = self._absences.setdefault(place, _Absence(now))
        absence.retry_at = now + absence.backoff.next_seconds()

    def forget(self, place: TaskManagerPlace) -> None:
        """Forget an absence: the TaskManager answers, or a driver named it again."""
        self._absences.pop(place, None)

    def presence(self, place: TaskManagerPlace) -> Presence:
        """Return AWAY or LOST until the TaskManager may be tried again, then UNKNOWN."""
        absence = self._absences.get(place)
        now = asyncio.get_running_loop().time()
        if absence is None or now >= absence.retry_at:
            return Presence.UNKNOWN
        return Presence.LOST if self.is_lost(place) else Presence.AWAY

    def is_lost(self, place: TaskManagerPlace) -> bool:
        """Return whether a TaskManager has not answered for so long that it counts as lost."""
        absence = self._absences.get(place)
        now = asyncio.get_running_loop().time()
        return absence is not None and now - absence.since >= self._lost_after_seconds
