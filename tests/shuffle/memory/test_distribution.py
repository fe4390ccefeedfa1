"""Bounds of pools, fair shares, and the demand; counters of refusals."""

import asyncio
import logging
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.shuffle.memory import (
    InsufficientNetworkBuffers,
    InvalidPoolSize,
    MemoryDemand,
    NetworkBufferPool,
    NetworkBufferTimeout,
    PoolBounds,
)
from sluice.shuffle.memory.distribution import WARNING_INTERVAL_SECONDS, Sharing, fair_shares
from tests.support.clock import Clock
from tests.support.network_memory import take_exclusive

SHORT_SECONDS = 0.02


# ---- bounds


@pytest.mark.parametrize(
    ("bounds", "least"),
    [
        (PoolBounds(-1), 0),
        (PoolBounds(0, 0), 1),
        (PoolBounds(3, 2), 3),
        (PoolBounds(1, None, -1), 0),
        (PoolBounds(1, None, 0, 0), 1),
    ],
)
def test_impossible_bounds_are_refused_with_the_least_number(bounds, least):
    with pytest.raises(InvalidPoolSize, match=f"gate 7.*Set at least {least}") as caught:
        bounds.check("gate 7")
    assert caught.value.limit == least


# ---- shares


@given(spare=st.integers(0, 5000), rooms=st.lists(st.integers(1, 400), max_size=60))
def test_shares_are_even_capped_and_use_all_that_can_be_used(spare, rooms):
    rooms.sort()
    shares = list(fair_shares(spare, rooms))
    assert len(shares) == len(rooms)
    assert sum(shares) == min(spare, sum(rooms))
    assert all(0 <= share <= room for share, room in zip(shares, rooms, strict=True))
    below_their_room = [s for s, room in zip(shares, rooms, strict=True) if s < room]
    if below_their_room:
        assert max(shares) - min(below_their_room) <= 1


@dataclass(eq=False)
class Pool:
    room: int
    share: int = 0


STEPS = st.tuples(st.integers(0, 9), st.integers(0, 40), st.integers(0, 200))


@given(steps=st.lists(STEPS, max_size=40))
def test_a_share_that_is_left_out_has_not_changed(steps):
    """Pools come and go and the spare segments change: each pool knows its share at any time."""
    sharing: Sharing[Pool] = Sharing()
    pools: list[Pool] = []
    for what, room, spare in steps:
        if what < 5:
            pools.append(Pool(room))
            sharing.add(pools[-1])
        elif what < 9 and pools:
            sharing.remove(pools.pop(room % len(pools)))
        for pool, share in sharing.shares(spare):
            pool.share = share
        sharers = sorted((pool for pool in pools if pool.room), key=lambda pool: pool.room)
        rooms = [pool.room for pool in sharers]
        assert [pool.share for pool in sharers] == list(fair_shares(spare, rooms))


# ---- demand


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, logger="sluice.shuffle.memory.distribution")
    return caplog


def levels(log):
    return [record.levelname for record in log.records]


def test_the_warning_has_the_numbers_and_the_remedy(log):
    demand = MemoryDemand(200, Clock())
    demand.update(200)
    assert log.records == []
    demand.update(250)
    assert levels(log) == ["WARNING"]
    assert "250 segments are wanted and there are 200 (125 %)" in log.text
    assert "raise network_segments" in log.text
    assert (demand.wanted_segments, demand.warnings) == (250, 1)


def test_a_growing_demand_is_logged_again_after_the_interval(log):
    clock = Clock()
    demand = MemoryDemand(10, clock)
    for wanted in range(11, 100):
        demand.update(wanted)
    assert demand.warnings == 1
    clock.now += WARNING_INTERVAL_SECONDS
    demand.update(90)
    assert demand.warnings == 2
    clock.now += WARNING_INTERVAL_SECONDS
    demand.update(90)
    demand.update(50)
    assert demand.warnings == 2  # it has not grown
    demand.update(10)
    assert levels(log) == ["WARNING", "WARNING", "INFO"]


def test_a_demand_that_rises_and_falls_does_not_fill_the_log(log):
    clock = Clock()
    demand = MemoryDemand(10, clock)
    for _ in range(100):
        demand.update(11)
        demand.update(9)
    assert levels(log) == ["WARNING", "INFO"]
    clock.now += WARNING_INTERVAL_SECONDS
    demand.update(11)
    assert levels(log) == ["WARNING", "INFO", "WARNING"]


def test_demand_adds_up_pools_and_exclusive_requests(log):
    network = NetworkBufferPool(100, 64)
    network.create_local_pool("unbounded", 10)
    assert network.demand.wanted_segments == 20  # an estimate: twice the required segments
    network.create_local_pool("fixed", 5, 5)
    bounded = network.create_local_pool("bounded", 1, 60)
    exclusive = take_exclusive(network, 15)
    assert (network.demand.wanted_segments, log.records) == (100, [])
    more = take_exclusive(network, 1)
    assert levels(log) == ["WARNING"]
    assert "101 segments are wanted and there are 100 (101 %)" in log.text
    network.recycle_segments(more)
    assert levels(log) == ["WARNING", "INFO"]
    bounded.destroy()
    network.recycle_segments(exclusive)
    assert network.demand.wanted_segments == 25


async def test_a_waiting_request_is_demand_until_it_expires():
    network = NetworkBufferPool(10, 64)
    network.create_local_pool("a", 6, 6)
    task = asyncio.ensure_future(network.request_segments_within(5, SHORT_SECONDS))
    await asyncio.sleep(0)
    assert network.demand.wanted_segments == 11
    with pytest.raises(NetworkBufferTimeout):
        await task
    assert network.demand.wanted_segments == 6
    assert (network.expired_requests, network.refused_requests) == (1, 0)


async def test_refusals_are_counted():
    network = NetworkBufferPool(10, 64)
    with pytest.raises(InsufficientNetworkBuffers):
        network.create_local_pool("a", 11)
    with pytest.raises(InsufficientNetworkBuffers):
        await network.request_segments_within(11, SHORT_SECONDS)
    assert (network.refused_requests, network.expired_requests) == (2, 0)
    assert network.demand.wanted_segments == 0
