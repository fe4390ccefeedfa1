"""Calls in threads: all are made, in order, and those that hang are left."""

from __future__ import annotations

import threading
from functools import partial

from sluice.cli.deadline_calls import MAX_CALLS, call_all


def test_more_calls_than_threads_are_all_made_in_order():
    calls = [partial(str, number) for number in range(3 * MAX_CALLS)]
    assert call_all(calls, 60) == [str(number) for number in range(3 * MAX_CALLS)]


def test_a_call_that_hangs_has_no_result():
    released = threading.Event()
    others = [threading.Event() for _ in range(2)]

    def hang() -> bool:
        return released.wait(60)

    found = call_all([others[0].is_set, hang, others[1].is_set], 0.1)
    released.set()
    assert found == [False, None, False]


def test_without_calls_there_are_no_results():
    assert call_all([], 1) == []
