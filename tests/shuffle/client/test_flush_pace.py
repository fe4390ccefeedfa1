"""Which intervals flush: all of them, but for the time after a flush that was slow and needless."""

from __future__ import annotations

import pytest

from shuffle.client.flush_pace import MOST_PAUSE_SECONDS, PAUSE_FLUSHES, FlushPace

BUFFERS = 100


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def pace(clock):
    return FlushPace(clock)


def slow_flush(pace, clock, seconds, complete_before, complete_after):
    """Flush, and come back when the last buffer has gone; return whether to flush again at once."""
    pace.began(BUFFERS, complete_before)
    assert not pace.is_due(BUFFERS - 1, complete_before)
    clock.seconds += seconds
    return pace.is_due(0, complete_after)


def test_a_flush_that_is_out_by_the_next_interval_has_no_pause_behind_it(pace):
    for complete in range(0, 10 * BUFFERS, BUFFERS):
        assert pace.is_due(0, complete)
        assert not pace.is_pausing
        pace.began(BUFFERS, complete)


def test_no_flush_begins_while_one_is_under_way(pace):
    pace.began(BUFFERS, 0)
    assert not pace.is_due(BUFFERS, 0)
    assert not pace.is_due(1, 0)
    assert not pace.is_pausing
    assert pace.is_due(0, 0)


def test_a_slow_flush_of_buffers_that_fill_is_followed_by_a_pause(pace, clock):
    assert not slow_flush(pace, clock, 0.01, 0, BUFFERS)
    assert pace.is_pausing
    clock.seconds += 0.99 * PAUSE_FLUSHES * 0.01
    assert not pace.is_due(0, BUFFERS)
    clock.seconds += 0.02 * PAUSE_FLUSHES * 0.01
    assert pace.is_due(0, BUFFERS)
    assert not pace.is_pausing
    assert pace.is_due(0, BUFFERS)


@pytest.mark.parametrize(("complete", "pauses"), [(0, False), (24, False), (25, True)])
def test_a_slow_flush_of_buffers_that_hardly_fill_is_not(pace, clock, complete, pauses):
    assert slow_flush(pace, clock, 0.01, 0, complete) is not pauses
    assert pace.is_pausing is pauses


def test_what_became_full_during_the_flush_before_counts_too(pace, clock):
    assert not slow_flush(pace, clock, 0.01, 0, BUFFERS)
    clock.seconds += MOST_PAUSE_SECONDS
    assert pace.is_due(0, BUFFERS)
    # Written to in turn, all became full at once: none does this time.
    assert not slow_flush(pace, clock, 0.01, BUFFERS, BUFFERS)
    clock.seconds += MOST_PAUSE_SECONDS
    assert pace.is_due(0, BUFFERS)
    assert slow_flush(pace, clock, 0.01, BUFFERS, BUFFERS)  # nor then: it has become slow


def test_a_flush_that_stood_still_is_followed_by_a_short_pause(pace, clock):
    assert not slow_flush(pace, clock, 60.0, 0, BUFFERS)
    clock.seconds += 1.01 * MOST_PAUSE_SECONDS
    assert pace.is_due(0, BUFFERS)
