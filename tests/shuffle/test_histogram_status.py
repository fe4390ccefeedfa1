"""Percentiles of a histogram: as close to the true ones as its buckets allow."""

from __future__ import annotations

import math
from bisect import bisect_left

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.shuffle.histogram import BOUNDS_SECONDS, Histogram
from sluice.shuffle.histogram_status import BUCKETS, HistogramStatus, percentile

TIMES = st.lists(st.floats(0, 1000) | st.sampled_from(BOUNDS_SECONDS), min_size=1)


def recorded(times: list[float]) -> Histogram:
    histogram = Histogram()
    for each in times:
        histogram.record(each)
    return histogram


def bounds_around(seconds: float) -> tuple[float, float]:
    """Return the bounds of the bucket of a time."""
    bucket = bisect_left(BOUNDS_SECONDS, seconds)
    return (0.0, *BOUNDS_SECONDS)[bucket], (*BOUNDS_SECONDS, math.inf)[bucket]


@given(times=TIMES, percent=st.integers(1, 100))
def test_a_percentile_is_in_the_bucket_of_the_true_one(times, percent):
    histogram = recorded(times)
    true = sorted(times)[-(-percent * len(times) // 100) - 1]
    lower, upper = bounds_around(true)
    found = percentile(histogram.counts, histogram.max_seconds, percent)
    assert lower <= found <= min(upper, histogram.max_seconds)


@given(times=TIMES)
def test_percentiles_do_not_fall_from_one_to_the_next(times):
    status = HistogramStatus.taken(recorded(times))
    found = status.p50_seconds, status.p90_seconds, status.p99_seconds, status.max_seconds
    assert sorted(found) == list(found)
    assert (status.count, status.max_seconds) == (len(times), max(times))


@pytest.mark.parametrize(
    ("times", "percent", "expected"),
    [
        ([1.0] * 4 + [3.0], 80, 1.0),
        ([1.5, 1.75, 2.0, 2.0], 50, 1.5),
        ([200.0, 300.0], 50, 300.0),  # nothing bounds the last bucket but the longest time
        ([1.1], 99, 1.1),
        ([0.0], 50, 0.0),
    ],
)
def test_times_of_a_bucket_count_as_spread_evenly(times, percent, expected):
    histogram = recorded(times)
    assert percentile(histogram.counts, histogram.max_seconds, percent) == expected


@given(times=TIMES)
def test_the_last_cumulative_count_is_that_of_all_times(times):
    found = HistogramStatus.taken(recorded(times)).cumulative()
    assert [bound for bound, _ in found] == [*BOUNDS_SECONDS, math.inf]
    assert [count for _, count in found] == [
        sum(each <= bound for each in times) for bound, _ in found
    ]


def test_without_times_everything_is_zero():
    status = HistogramStatus.taken(Histogram())
    assert status == HistogramStatus()
    assert status.cumulative() == [(bound, 0) for bound in (*BOUNDS_SECONDS, math.inf)]
    assert len(status.cumulative()) == BUCKETS


@given(times=TIMES)
def test_the_json_form_has_counts_and_percentiles(times):
    status = HistogramStatus.taken(recorded(times))
    document = msgspec.json.decode(msgspec.json.encode(status))
    assert document["bucket_counts"] == recorded(times).counts
    assert document["p99_seconds"] == status.p99_seconds
    assert msgspec.convert(document, HistogramStatus) == status
