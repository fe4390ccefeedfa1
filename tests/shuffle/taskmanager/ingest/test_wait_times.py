"""Times of waits, added up while they last."""

from __future__ import annotations

import pytest

from sluice.shuffle.taskmanager.ingest import wait_times as waiting
from sluice.shuffle.taskmanager.ingest.wait_times import Waiter, Waiting
from tests.support.clock import Clock


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(waiting, "monotonic", clock)
    return clock


def test_waits_of_several_are_added_up(clock):
    everybody = Waiting()
    first, second = Waiter(everybody), Waiter(everybody)
    first.begin()
    clock.now += 2
    second.begin()
    clock.now += 3
    first.end()
    clock.now += 4
    second.end()
    clock.now += 5
    assert (first.seconds, second.seconds) == (5, 7)
    assert (everybody.seconds, everybody.count) == (12, 0)
    assert (sum(everybody.waits.counts), everybody.waits.sum_seconds) == (2, 12)
    assert everybody.waits.max_seconds == 7


def test_a_wait_that_lasts_counts_already(clock):
    everybody = Waiting()
    waiter = Waiter(everybody)
    waiter.begin()
    clock.now += 60
    assert (waiter.is_waiting, waiter.seconds) == (True, 60)
    assert (everybody.count, everybody.seconds) == (1, 60)
    assert not sum(everybody.waits.counts)


def test_beginning_and_ending_twice_is_once(clock):
    everybody = Waiting()
    waiter = Waiter(everybody)
    waiter.end()
    waiter.begin()
    clock.now += 1
    waiter.begin()
    clock.now += 1
    waiter.end()
    waiter.end()
    clock.now += 1
    assert (everybody.count, everybody.seconds, waiter.seconds) == (0, 2, 2)
