"""Remembers released map attempts, to refuse later commits and copies."""

from collections import OrderedDict
from typing import Final

from ...names import MapAttemptKey, ShuffleKey

MAX_KEPT: Final = 4096
"""Number of released shuffles remembered; the oldest is dropped first."""


class Releases:
    """The latest releases of shuffles: of all map attempts, or of those below a number.

    A client that releases a shuffle without a number may reuse the shuffle's id. So later commits
    of its producers are accepted. Later copies are refused: they come from a TaskManager that does
    not know of the release. With a number, commits and copies below it are refused.
    """

    def __init__(self) -> None:
        self._ends: OrderedDict[ShuffleKey, int | None] = OrderedDict()

    def add(self, key: ShuffleKey, end: int | None) -> None:
        """Record a release of the map attempts below ``end``; None for all."""
        before = self._ends.pop(key, None)
        if end is not None and before is not None:
            end = max(before, end)
        self._ends[key] = end
        if len(self._ends) > MAX_KEPT:
            self._ends.popitem(last=False)

    def has(self, attempt: MapAttemptKey) -> bool:
        """Return whether a map attempt can no longer be committed."""
        end = self._ends.get(attempt.shuffle)
        return end is not None and attempt.map_attempt_id < end

    def has_copy(self, attempt: MapAttemptKey) -> bool:
        """Return whether a copy of a map output is refused."""
        return attempt.shuffle in self._ends and (
            self._ends[attempt.shuffle] is None or self.has(attempt)
        )
