"""The status of a histogram: its buckets, and the percentiles that they show."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Final

import msgspec

from .histogram import BOUNDS_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .histogram import Histogram

BUCKETS: Final = len(BOUNDS_SECONDS) + 1
"""Number of buckets; the last one has no bound."""


class HistogramStatus(msgspec.Struct, frozen=True, gc=False):
    """Times since the start. A percentile is at most one bucket, a factor of 2, from the true one.

    Combining the histograms of several processes adds their buckets; :meth:`of` then computes the
    percentiles of all.
    """

    count: int = 0
    """Number of times."""
    sum_seconds: float = 0.0
    p50_seconds: float = 0.0
    """Half of the times were not longer; 0 without any."""
    p90_seconds: float = 0.0
    p99_seconds: float = 0.0
    max_seconds: float = 0.0
    """The longest time."""
    bucket_counts: tuple[int, ...] = ()
    """Number of times of each bucket: up to 2^-14 s, above that up to 2^-13 s, … up to 128 s, and
    longer ones. Empty without any."""

    @classmethod
    def of(cls, counts: Sequence[int], sum_seconds: float, max_seconds: float) -> HistogramStatus:
        """Return the status for the number of times in each bucket, their sum and the longest."""
        count = sum(counts)
        if not count:
            return cls(sum_seconds=sum_seconds, max_seconds=max_seconds)
        p50, p90, p99 = (percentile(counts, max_seconds, each) for each in (50, 90, 99))
        return cls(count, sum_seconds, p50, p90, p99, max_seconds, tuple(counts))

    @classmethod
    def taken(cls, histogram: Histogram) -> HistogramStatus:
        """Return the status of a histogram now."""
        return cls.of(histogram.counts, histogram.sum_seconds, histogram.max_seconds)

    def cumulative(self) -> list[tuple[float, int]]:
        """Return each bound, infinity last, with the number of times that are not longer."""
        counts = itertools.chain(self.bucket_counts, itertools.repeat(0))
        below = list(itertools.accumulate(itertools.islice(counts, BUCKETS - 1)))
        return [*zip(BOUNDS_SECONDS, below, strict=True), (math.inf, sum(self.bucket_counts))]


def percentile(counts: Sequence[int], max_seconds: float, percent: int) -> float:
    """Return the time that a percentage of the counted times does not exceed; 0 without any.

    It is in the bucket of the true one: as far from its lower bound as if the times of the bucket
    were spread evenly, and never above the longest.
    """
    rank = percent * sum(counts)  # in hundredths, so that no rounding moves it to a neighbor
    lower = 0.0
    for upper, count in zip(BOUNDS_SECONDS, counts, strict=False):
        if 0 < rank <= 100 * count:
            return min(lower + (upper - lower) * rank / (100 * count), max_seconds)
        rank -= 100 * count
        lower = upper
    return max_seconds
