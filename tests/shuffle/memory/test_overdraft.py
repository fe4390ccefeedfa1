"""Overdraft: a few segments beyond the limit, to end a record that has begun."""

import asyncio

import pytest

from sluice.shuffle.memory import InvalidPoolSize, MemorySegment, NetworkBufferPool
from tests.shuffle.memory.rig import conserved, keeping, take, take_many

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
    seen = local.status()
    assert (seen.overdraft_segments, seen.overdrafts) == (5, 5)
    assert network.available_segments == 12
    conserved(network)


def test_a_pool_without_overdraft_stops_at_its_limit():
    network = NetworkBufferPool(20, 64)
    local = network.create_local_pool("a", 1, 3)
    take_many(local, 3)
    assert local.request_segment_nowait() is None


def test_overdraft_takes_only_what_the_network_pool_has_to_spare():
    network = NetworkBufferPool(5, 64)
    local = network.create_local_pool("a", 1, 2, max_overdraft_buffers=5)
    other = network.create_local_pool("b", 1, 2)
    take_many(local, 2)
    take_many(other, 2)
    take(local)
    assert local.request_segment_nowait() is None
    assert network.available_segments == 0


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


def test_segments_recycled_together_pay_the_overdraft_back_first():
    network = NetworkBufferPool(20, 64)
    local = network.create_local_pool("a", 1, 3, max_overdraft_buffers=2)
    segments = take_many(local, 5)
    local.recycle_together(segments[:3])
    assert (network.available_segments, local.idle_segments) == (17, 1)
    local.recycle_together(segments[3:])
    assert (network.available_segments, local.idle_segments) == (17, 3)


def test_segments_out_since_before_the_limit_fell_count_as_overdraft():
    network = NetworkBufferPool(10, 64)
    local = network.create_local_pool("a", 1, max_overdraft_buffers=2)
    lent = take_many(local, 7)
    exclusive = network.request_segments(2)
    take(network.create_local_pool("b", 1, 1))
    assert (local.size_segments, local.overdraft_segments) == (7, 0)
    more = network.create_local_pool("c", 3, 3)
    assert (local.size_segments, local.overdraft_segments) == (4, 3)
    assert more.size_segments == 3
    network.recycle_segments(exclusive)
    assert (local.size_segments, local.overdraft_segments) == (6, 1)
    take(local)
    assert local.request_segment_nowait() is None  # one that was out, one lent beyond the limit
    assert (local.overdraft_segments, local.overdrafts) == (2, 1)
    assert len(lent) == 7


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


def test_overdraft_takes_nothing_from_pools_that_wait_within_their_limit():
    network = NetworkBufferPool(6, 64)
    local = network.create_local_pool("a", 1, 2, max_overdraft_buffers=5)
    greedy = network.create_local_pool("b", 1, max_overdraft_buffers=5)
    lent = take_many(greedy, 4) + take_many(local, 2)
    got: list[MemorySegment | None] = []
    poor = network.create_local_pool("c", 1, 1)
    poor.add_listener(keeping(got))
    assert got == []
    greedy.recycle(lent[0])
    assert len(got) == 1
    assert local.request_segment_nowait() is None


def test_a_listener_is_not_served_out_of_overdraft():
    network = NetworkBufferPool(20, 64)
    local = network.create_local_pool("a", 1, 1, max_overdraft_buffers=2)
    segment = take(local)
    got: list[MemorySegment | None] = []
    local.add_listener(keeping(got))
    assert got == []
    assert local.request_segment_nowait() is None  # overdraft does not overtake it either
    local.recycle(segment)
    assert got == [segment]


async def test_a_task_gets_overdraft_before_it_waits():
    network = NetworkBufferPool(20, 64)
    local = network.create_local_pool("a", 1, 1, max_overdraft_buffers=1)
    segments = [await local.request_segment(0) for _ in range(2)]
    assert local.overdraft_segments == 1
    local.recycle_together(segments)
    assert (local.idle_segments, network.available_segments) == (1, 19)


def test_overdraft_of_a_destroyed_pool_comes_home():
    network = NetworkBufferPool(10, 64)
    local = network.create_local_pool("a", 1, 2, max_overdraft_buffers=3)
    segments = take_many(local, 5)
    local.destroy()
    for segment in segments:
        conserved(network)
        local.recycle(segment)
    assert conserved(network).free_segments == 10
    assert network.statistics().draining_pools == ()


def test_a_growing_limit_turns_overdraft_into_ordinary_segments():
    network = NetworkBufferPool(10, 64)
    exclusive = network.request_segments(7)
    local = network.create_local_pool("a", 1, max_overdraft_buffers=2)
    assert local.size_segments == 3
    other = network.create_local_pool("b", 1)
    assert (local.size_segments, other.size_segments) == (1, 2)
    segments = take_many(local, 3)
    assert local.overdraft_segments == 2
    network.recycle_segments(exclusive)
    assert (local.size_segments, local.overdraft_segments) == (5, 0)
    local.recycle(segments.pop())
    assert local.idle_segments == 1


def test_overdraft_below_zero_is_refused():
    network = NetworkBufferPool(10, 64)
    with pytest.raises(InvalidPoolSize, match="overdraft") as caught:
        network.create_local_pool("a", 1, max_overdraft_buffers=-1)
    assert (caught.value.value, caught.value.limit) == (-1, 0)
    assert network.statistics().local_pools == ()
    assert network.unpromised_segments == 10
