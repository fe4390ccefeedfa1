"""Histograms of times: each time is counted once, in the bucket that contains it."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from sluice.shuffle.histogram import BOUNDS_SECONDS, Histogram

TIMES = st.floats(0, 1000) | st.sampled_from(BOUNDS_SECONDS)


def recorded(times: list[float]) -> Histogram:
    histogram = Histogram()
    for each in times:
        histogram.record(each)
    return histogram


@given(times=st.lists(TIMES))
def test_each_time_is_counted_once_in_the_bucket_that_contains_it(times):
    lower = (-math.inf, *BOUNDS_SECONDS)
    upper = (*BOUNDS_SECONDS, math.inf)
    assert recorded(times).counts == [
        sum(above < each <= up_to for each in times)
        for above, up_to in zip(lower, upper, strict=True)
    ]


@given(times=st.lists(TIMES, min_size=1))
def test_sum_and_longest_time_are_exact(times):
    histogram = recorded(times)
    added = 0.0
    for each in times:
        added += each
    assert histogram.sum_seconds == added
    assert histogram.max_seconds == max(times)


def test_the_bounds_are_those_of_native_histograms_of_schema_0():
    assert [math.frexp(bound) for bound in BOUNDS_SECONDS] == [
        (0.5, exponent) for exponent in range(-13, 9)
    ]


def test_a_histogram_begins_empty():
    histogram = Histogram()
    assert histogram.counts == [0] * (len(BOUNDS_SECONDS) + 1)
    assert (histogram.sum_seconds, histogram.max_seconds) == (0, 0)
