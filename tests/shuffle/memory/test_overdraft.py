"""Overdraft: a few segments beyond the limit, to end a record that has begun."""

import asyncio

import pytest

from sluice.shuffle.memory import InvalidPoolSize, NetworkBufferPool
from tests.shuffle.memory.rig import take_many
from tests.support.network_memory import conserved

LONG_SECONDS = 30.0  # never reached: the tested event comes first


def test_at_the_limit_the_overdraft_is_lent_and_no_more():
    network = NetworkBufferPool(20, 64)
    local = network.create_local_pool("a", 1, 3, max_overdraft_buffers=5)
    take_many(local, 3)
    assert (local.overdraft_segments, local.overdrafts) == (0, 0)
    take_many(local, 5)
    assert local.request_segment_nowait() is None
    assert local.request_buffer_nowait() is None
    assert (local.lent_segments, local.size_segments) == (8, 3)
    assert (local.overdraft_segments, local.overdrafts) == (5, 5)
    assert network.available_segments == 12
    conserved(network)


def test_overdraft_comes_back_first_and_the_pool_is_unavailable_until_then():
    network = NetworkBufferPool(20, 64)
    local = network.create_local_pool("a", 1, 3, max_overdraft_buffers=2)
    segments = take_many(local, 2)
    assert local.is_available
    segments += take_many(local, 1)
    assert not local.is_available  # the rest is overdraft
    segments += take_many(local, 2)
    for home in (16, 17):
        local.recycle(segments.pop(0))  # any of them
        assert network.available_segments == home
        assert (local.idle_segments, local.is_available) == (0, False)
    assert local.overdraft_segments == 0
    local.recycle(segments.pop(0))
    assert network.available_segments == 17
    assert (local.idle_segments, local.is_available) == (1, True)
    assert local.overdrafts == 2


async def test_overdraft_takes_nothing_that_an_exclusive_request_collects():
    network = NetworkBufferPool(10, 64)
    local = network.create_local_pool("a", 1, 3, max_overdraft_buffers=5)
    other = network.create_local_pool("b", 1, 6)
    lent = take_many(other, 6)
    take_many(local, 3)
    waiting = asyncio.ensure_future(network.request_segments_within(2, LONG_SECONDS))
    await asyncio.sleep(0)
    assert network.available_segments == 1
    assert local.request_segment_nowait() is None
    while not waiting.done():
        other.recycle(lent.pop())
        await asyncio.sleep(0)
    assert len(await waiting) == 2


def test_overdraft_below_zero_is_refused():
    network = NetworkBufferPool(10, 64)
    with pytest.raises(InvalidPoolSize, match="overdraft") as caught:
        network.create_local_pool("a", 1, max_overdraft_buffers=-1)
    assert (caught.value.value, caught.value.limit) == (-1, 0)
    assert not network.local_pools
    assert network.unpromised_segments == 10
