"""Adds up the times of waits, including those that still last.

A sum of finished waits only would hide a wait that does not end.
"""

from time import monotonic

from ...histogram import Histogram


class Waiting:
    """The number of waiters now, and the time that all have waited together.

    Attributes:
        count: The number of waiters now.
        waits: The waits that have ended.
    """

    __slots__ = ("_seconds", "_since", "count", "waits")

    def __init__(self) -> None:
        self.count = 0
        self.waits = Histogram()
        self._seconds = 0.0
        self._since = 0.0

    @property
    def seconds(self) -> float:
        """The time that all have waited, up to now; only grows."""
        if not self.count:
            return self._seconds
        return self._seconds + self.count * (monotonic() - self._since)

    def change(self, by: int, now: float) -> None:
        """Change the number of waiters by ``by``, as of ``now``."""
        self._seconds += self.count * (now - self._since)
        self._since = now
        self.count += by


class Waiter:
    """One waiter; the clock is read when a wait begins and when it ends.

    Args:
        everybody: The sum to which it adds.

    Attributes:
        is_waiting: Whether it waits now.
    """

    __slots__ = ("_began", "_everybody", "_seconds", "is_waiting")

    def __init__(self, everybody: Waiting) -> None:
        self.is_waiting = False
        self._everybody = everybody
        self._seconds = 0.0  # of waits that have ended
        self._began = 0.0

    @property
    def began_at(self) -> float | None:
        """When the wait began, as of ``time.monotonic()``; None if it does not wait."""
        return self._began if self.is_waiting else None

    @property
    def seconds(self) -> float:
        """The time that it has waited, up to now; only grows."""
        if not self.is_waiting:
            return self._seconds
        return self._seconds + monotonic() - self._began

    def begin(self) -> None:
        """Begin to wait. Idempotent."""
        if not self.is_waiting:
            self.is_waiting = True
            self._began = now = monotonic()
            self._everybody.change(1, now)

    def end(self) -> None:
        """End the wait. Idempotent."""
        if self.is_waiting:
            self.is_waiting = False
            now = monotonic()
            waited = now - self._began
            self._seconds += waited
            self._everybody.change(-1, now)
            self._everybody.waits.record(waited)
