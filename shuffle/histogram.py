"""Histograms of times: how often waits and calls took how long.

The bounds are powers of two. So they are the bounds of Prometheus' native histograms of schema 0,
and equal everywhere: the histograms of several processes are added up bucket by bucket.
"""

from bisect import bisect_left
from typing import Final

BOUNDS_SECONDS: Final = (
    2.0**-14, 2.0**-13, 2.0**-12, 2.0**-11, 2.0**-10, 2.0**-9, 2.0**-8, 2.0**-7, 2.0**-6, 2.0**-5,
    2.0**-4, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0,
)  # fmt: skip
"""Upper bounds of the buckets, which contain them: 61 µs to 128 s. One more bucket has no bound."""


class Histogram:
    """Counts times by their length. Only one thread may write it.

    Attributes:
        counts: Number of times in each bucket; the last one has no bound.
        sum_seconds: Sum of all times.
        max_seconds: The longest time.
    """

    __slots__ = ("counts", "max_seconds", "sum_seconds")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * (len(BOUNDS_SECONDS) + 1)
        self.sum_seconds = 0.0
        self.max_seconds = 0.0

    def record(self, seconds: float) -> None:
        """Count a time.

        Args:
            seconds: The difference of two readings of a clock that never goes back.
        """
        self.counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self.sum_seconds += seconds
        if seconds > self.max_seconds:
            self.max_seconds = seconds
