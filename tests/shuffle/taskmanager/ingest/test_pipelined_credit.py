"""Segments of a pool as credit of a producer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.protocol.credit import MAX_OVERDRAFT_EVENTS
from sluice.protocol.errors import CreditExceeded
from sluice.shuffle.memory import MemorySegment, NetworkBufferPool
from sluice.shuffle.taskmanager.ingest.pipelined_credit import PipelinedCredit

TOTAL = 32


class Rig:
    def __init__(self, maximum: int, window: int) -> None:
        self.network_pool = NetworkBufferPool(TOTAL, 16)
        self.pool = self.network_pool.create_local_pool("partition", 1, maximum)
        self.granted: list[int] = []
        self.credit = PipelinedCredit(self.pool, self.granted.append, window)
        self.queued: list[MemorySegment] = []

    def arrive(self) -> None:
        segment = self.credit.take()
        assert segment is not None
        self.queued.append(segment)
        self.credit.fill()

    def consume(self) -> None:
        self.pool.recycle(self.queued.pop(0))

    def close(self) -> None:
        self.credit.close()
        while self.queued:
            self.consume()
        self.pool.destroy()
        assert self.network_pool.available_segments == TOTAL


@pytest.fixture
def rig():
    rig = Rig(6, 4)
    yield rig
    rig.close()


def test_no_more_than_the_window_lies_ready(rig):
    rig.credit.fill()
    rig.credit.fill()
    assert rig.granted == [4]
    assert rig.pool.lent_segments == 4


def test_priority_events_on_account_are_granted_again_when_they_are_read(rig):
    rig.credit.fill()
    for _ in range(4 + MAX_OVERDRAFT_EVENTS):
        rig.credit.overdraw()
    rig.credit.fill()
    assert rig.granted == [4]
    with pytest.raises(CreditExceeded):
        rig.credit.overdraw()
    assert rig.credit.take() is None
    for _ in range(4 + MAX_OVERDRAFT_EVENTS):
        rig.credit.event_taken()
    assert sum(rig.granted) == 2 * 4 + MAX_OVERDRAFT_EVENTS
    assert rig.credit.outstanding == rig.credit.ready == 4


def test_credit_is_granted_by_half_windows_and_stops_when_all_buffers_wait(rig):
    rig.credit.fill()
    for _ in range(6):
        rig.arrive()
    assert rig.granted == [4, 2]  # 6 in all: the pool has no more
    assert rig.credit.outstanding == 0
    assert rig.credit.take() is None
    rig.consume()
    rig.consume()
    assert rig.granted == [4, 2, 1, 1]  # the first that is free is told at once
    assert rig.credit.outstanding == 2


def test_closing_gives_back_what_was_not_used(rig):
    rig.credit.fill()
    rig.arrive()
    rig.credit.close()
    rig.credit.close()
    rig.credit.fill()
    assert rig.credit.take() is None
    assert rig.pool.lent_segments == 1
    assert rig.pool.waiting_listeners == 0
    assert rig.granted == [4]


@given(st.lists(st.booleans(), max_size=80), st.integers(1, 8), st.integers(1, 8))
def test_the_producer_never_starves_while_there_is_memory(steps, maximum, window):
    rig = Rig(maximum, window)
    rig.credit.fill()
    for arrives in steps:
        if arrives and rig.credit.outstanding:
            rig.arrive()
        elif rig.queued:
            rig.consume()
        used = len(rig.granted) and sum(rig.granted) - rig.credit.outstanding
        assert used >= 0
        assert rig.credit.outstanding <= window
        # Conservation: each segment that the pool lent is queued, or lies ready.
        assert rig.pool.lent_segments <= min(maximum, len(rig.queued) + window)
        if rig.credit.outstanding == 0:
            assert len(rig.queued) == maximum
    rig.close()
