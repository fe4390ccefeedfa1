"""The pace of flushes: every interval, unless flushes are slow and buffers fill anyway."""

from __future__ import annotations

import pytest

from sluice.shuffle.partition.flush_pace import (
    BUSY_SHARE,
    FLUSHED_FOR_A_COMPLETE_ONE,
    MAX_PAUSE_SECONDS,
    PAUSE_TIMES,
    SECONDS_A_FLUSHED_BUFFER,
    FlushPace,
)

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
def work():
    """The clock of a thread that never works."""
    return Clock()


@pytest.fixture
def pace(clock, work):
    return FlushPace(BUFFERS, clock, work)


def pause_after(pace, clock, seconds, complete):
    """Make a flush that takes some time, in which buffers become complete."""
    assert pace.is_due(0, 0)
    pace.flushed(BUFFERS)
    assert not pace.is_due(BUFFERS, complete)
    clock.seconds += seconds
    assert not pace.is_due(1, complete)
    assert not pace.is_pausing
    assert not pace.is_due(0, complete)
    assert pace.is_pausing


def test_fast_flushes_are_made_every_interval(pace):
    for complete in range(0, 10 * BUFFERS, BUFFERS):
        assert pace.is_due(0, complete)
        assert not pace.is_pausing
        pace.flushed(BUFFERS)


def test_slow_flushes_are_made_every_interval_while_few_buffers_fill(pace):
    complete = 0
    for _ in range(100):
        pace.flushed(BUFFERS)
        complete += BUFFERS // FLUSHED_FOR_A_COMPLETE_ONE
        assert pace.is_due(BUFFERS, complete)
    assert not pace.is_pausing


def test_a_slow_flush_delays_the_next_one_and_a_pause_follows(pace, clock):
    pause_after(pace, clock, 0.01, BUFFERS)
    clock.seconds += 0.99 * PAUSE_TIMES * 0.01
    assert not pace.is_due(0, BUFFERS)
    clock.seconds += 0.02 * PAUSE_TIMES * 0.01
    assert pace.is_due(0, BUFFERS)
    assert not pace.is_pausing


def test_buffers_that_fill_together_count_until_as_many_are_flushed(pace):
    pace.flushed(BUFFERS)
    complete = BUFFERS
    for _ in range(FLUSHED_FOR_A_COMPLETE_ONE - 1):
        assert not pace.is_due(BUFFERS, complete)
        pace.flushed(BUFFERS)


def test_a_writer_that_has_become_slow_or_fast_is_noticed_soon(pace):
    assert pace.is_due(0, 1000 * BUFFERS)
    for _ in range(FLUSHED_FOR_A_COMPLETE_ONE):
        pace.flushed(BUFFERS)
    assert pace.is_due(1, 1000 * BUFFERS)
    for _ in range(1000):
        pace.flushed(BUFFERS)
    assert pace.is_due(1, 1001 * BUFFERS)
    assert not pace.is_due(1, 1001 * BUFFERS + 1)


def test_the_pause_after_a_stopped_reader_is_short(pace, clock):
    pause_after(pace, clock, 60.0, BUFFERS)
    clock.seconds += 1.01 * MAX_PAUSE_SECONDS
    assert pace.is_due(0, BUFFERS)


def spend(clock, work, seconds, share):
    """Let time go by, of which the thread works a share."""
    clock.seconds += seconds
    work.seconds += seconds * share


def test_a_busy_thread_flushes_the_less_often_the_more_it_flushes(pace, clock, work):
    """Though every buffer goes at once."""
    assert pace.is_due(0, 0)
    pace.flushed(BUFFERS)
    spend(clock, work, 0.9 * BUFFERS * SECONDS_A_FLUSHED_BUFFER, 1.0)
    assert not pace.is_due(0, BUFFERS)
    assert pace.is_pausing
    spend(clock, work, 0.2 * BUFFERS * SECONDS_A_FLUSHED_BUFFER, 1.0)
    assert pace.is_due(0, BUFFERS)
    assert not pace.is_pausing
    pace.flushed(1)
    spend(clock, work, 1.1 * SECONDS_A_FLUSHED_BUFFER, 1.0)
    assert pace.is_due(0, BUFFERS)


def test_a_thread_with_time_to_spare_flushes_every_interval(pace, clock, work):
    for _ in range(10):
        assert pace.is_due(0, 0)
        pace.flushed(BUFFERS)
        spend(clock, work, 0.001, 0.9 * BUSY_SHARE)
    spend(clock, work, 0.001, 1.0)
    assert not pace.is_due(0, 0)
    spend(clock, work, 0.001, 0.0)  # it has become idle
    assert pace.is_due(0, 0)


def test_the_longest_space_is_that_of_the_default_interval(pace, clock, work):
    assert pace.is_due(0, 0)
    pace.flushed(1_000_000)
    spend(clock, work, 1.01 * MAX_PAUSE_SECONDS, 1.0)
    assert pace.is_due(0, 0)
