"""How long something waits, added up, the waits that still last included.

A wait that shows only when it is over would hide the one that matters: the one that does not end.
"""

from time import monotonic


class Waiting:
    """How many wait now, and how long all have waited together.

    Attributes:
        count: How many wait now.
    """

    __slots__ = ("_seconds", "_since", "count")

    def __init__(self) -> None:
        self.count = 0
        self._seconds = 0.0
        self._since = 0.0

    @property
    def seconds(self) -> float:
        """What all have waited, up to now; only grows."""
        if not self.count:
            return self._seconds
        return self._seconds + self.count * (monotonic() - self._since)

    def change(self, by: int, now: float) -> None:
        """So many more wait from ``now`` on, or fewer."""
        self._seconds += self.count * (now - self._since)
        self._since = now
        self.count += by


class Waiter:
    """One of those who wait; the clock is read when a wait begins and when it ends.

    Args:
        everybody: Whom it belongs to.
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
        """What it has waited, up to now; only grows."""
        return self._alone.seconds

    def begin(self) -> None:
        """It waits from now on; nothing happens if it does already."""
        if not self._alone.count:
            self._change(1)

    def end(self) -> None:
        """It waits no more; nothing happens if it does not."""
        if self._alone.count:
            self._change(-1)

    def _change(self, by: int) -> None:
        now = monotonic()
        self._alone.change(by, now)
        self._everybody.change(by, now)
