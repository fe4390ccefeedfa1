"""Adds up the times of waits, including those that still last.

A sum of finished waits only would hide a wait that does not end.
"""

from time import monotonic


class Waiting:
    """The number of waiters now, and the time that all have waited together.

    Attributes:
        count: The number of waiters now.
    """

    __slots__ = ("_seconds", "_since", "count")

    def __init__(self) -> None:
        self.count = 0
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
    """

    __slots__ = ("_alone", "_everybody")

    def __init__(self, everybody: Waiting) -> None:
        self._everybody = everybody
        self._alone = Waiting()

    @property
    def is_waiting(self) -> bool:
        """Whether it waits now."""
        return self._alone.count > 0

    @property
    def seconds(self) -> float:
        """The time that it has waited, up to now; only grows."""
        return self._alone.seconds

    def begin(self) -> None:
        """Begin to wait. Idempotent."""
        if not self._alone.count:
            self._change(1)

    def end(self) -> None:
        """End the wait. Idempotent."""
        if self._alone.count:
            self._change(-1)

    def _change(self, by: int) -> None:
        now = monotonic()
        self._alone.change(by, now)
        self._everybody.change(by, now)
