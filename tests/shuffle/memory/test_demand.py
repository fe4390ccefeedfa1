"""Warnings when more network memory is wanted than there is; counters of what was refused."""

import asyncio
import logging

import pytest

from sluice.shuffle.memory import (
    InsufficientNetworkBuffers,
    MemoryDemand,
    NetworkBufferPool,
    NetworkBufferTimeout,
)
from sluice.shuffle.memory.distribution import WARNING_INTERVAL_SECONDS
from tests.support.clock import Clock

SHORT_SECONDS = 0.02


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, logger="sluice.shuffle.memory.distribution")
    return caplog


def levels(log):
    return [record.levelname for record in log.records]


def test_the_warning_has_the_numbers_and_the_remedy(log):
    demand = MemoryDemand(200, Clock())
    demand.update(200)
    assert (log.records, demand.is_exceeded) == ([], False)
    demand.update(250)
    assert levels(log) == ["WARNING"]
    assert "250 segments are wanted and there are 200 (125 %)" in log.text
    assert "raise network_segments" in log.text
    assert (demand.is_exceeded, demand.wanted_segments, demand.warnings) == (True, 250, 1)


def test_back_to_normal_is_said_once_and_only_after_a_warning(log):
    demand = MemoryDemand(10, Clock())
    for wanted in (5, 11, 10, 9, 8):
        demand.update(wanted)
    assert levels(log) == ["WARNING", "INFO"]
    assert "back to normal, 10 of 10" in log.text


def test_a_demand_that_grows_on_is_told_again_after_the_interval(log):
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
    assert demand.warnings == 2  # no news
    demand.update(10)
    assert levels(log) == ["WARNING", "WARNING", "INFO"]


def test_a_demand_that_comes_and_goes_does_not_fill_the_log(log):
    clock = Clock()
    demand = MemoryDemand(10, clock)
    for _ in range(100):
        demand.update(11)
        demand.update(9)
    assert levels(log) == ["WARNING", "INFO"]
    clock.now += WARNING_INTERVAL_SECONDS
    demand.update(11)
    assert levels(log) == ["WARNING", "INFO", "WARNING"]


def test_what_pools_and_exclusive_requests_want_together(log):
    network = NetworkBufferPool(100, 64)
    network.create_local_pool("unbounded", 10)
    assert network.demand.wanted_segments == 20  # an estimate: twice what it must have
    network.create_local_pool("fixed", 5, 5)
    bounded = network.create_local_pool("bounded", 1, 60)
    exclusive = network.request_segments(15)
    assert (network.demand.wanted_segments, log.records) == (100, [])
    more = network.request_segments(1)
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
    assert network.demand.is_exceeded
    with pytest.raises(NetworkBufferTimeout):
        await task
    assert (network.demand.is_exceeded, network.demand.wanted_segments) == (False, 6)
    assert (network.expired_requests, network.refused_requests) == (1, 0)


async def test_refusals_are_counted():
    network = NetworkBufferPool(10, 64)
    with pytest.raises(InsufficientNetworkBuffers):
        network.create_local_pool("a", 11)
    with pytest.raises(InsufficientNetworkBuffers):
        network.request_segments(11)
    with pytest.raises(InsufficientNetworkBuffers):
        await network.request_segments_within(11, SHORT_SECONDS)
    assert (network.refused_requests, network.expired_requests) == (3, 0)
    assert network.demand.wanted_segments == 0
