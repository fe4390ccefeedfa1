"""Listeners and tasks that wait for a local pool, and the network pool that serves them."""

import asyncio

import pytest

from sluice.shuffle.memory import NetworkBufferPool, NetworkBufferTimeout, PoolDestroyed
from tests.shuffle.memory.rig import Waiter, drained
from tests.support.network_memory import conserved, take_exclusive

LONG_SECONDS = 30.0  # never reached: the tested event comes first
SHORT_SECONDS = 0.02


# ---- listeners and the network pool


def test_pools_that_wait_are_served_in_turn():
    network = NetworkBufferPool(12, 64)
    greedy, segments = drained(network, "greedy")
    order: list = []
    for name in "abc":
        local = network.create_local_pool(name, 1)
        for _ in range(2):
            local.add_listener(Waiter(order, name))
    for _ in range(6):
        greedy.recycle(segments.pop())
    assert order == ["a", "b", "c", "a", "b", "c"]
    conserved(network)


def test_a_listener_that_takes_more_cannot_overtake_the_listeners_of_other_pools():
    network = NetworkBufferPool(6, 64)
    exclusive = take_exclusive(network, 2)
    over_full, _ = drained(network, "over-full")
    first = network.create_local_pool("first", 1)
    second = network.create_local_pool("second", 1)
    waiter = Waiter()
    overtaken: list = []

    def greedy(_segment):
        overtaken.append(first.request_segment_nowait())
        return True

    first.add_listener(greedy)
    second.add_listener(waiter)
    network.recycle_segments(exclusive)  # two free segments, both limits at 2
    assert (first.size_segments, over_full.held_segments) == (2, 4)
    assert overtaken == [None]
    assert len(waiter.segments) == 1
    conserved(network)


# ---- waiting in a task


async def test_request_segment_times_out_with_a_typed_error_and_without_effect():
    network = NetworkBufferPool(1, 64)
    local, (segment,) = drained(network, "gate 9")
    with pytest.raises(NetworkBufferTimeout, match="gate 9") as caught:
        await local.request_segment(SHORT_SECONDS)
    assert caught.value.timeout_seconds == SHORT_SECONDS
    assert local.waiting_listeners == 0
    local.recycle(segment)
    assert local.idle_segments == 1


async def test_cancelling_a_waiting_request_has_no_effect():
    network = NetworkBufferPool(1, 64)
    local, (segment,) = drained(network)
    task = asyncio.ensure_future(local.request_segment(LONG_SECONDS))
    await asyncio.sleep(0)
    task.cancel()
    local.recycle(segment)  # in the same turn as the cancel
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (local.idle_segments, local.waiting_listeners) == (1, 0)


async def test_cancelling_after_the_segment_was_handed_over_gives_it_back():
    network = NetworkBufferPool(1, 64)
    local, (segment,) = drained(network)
    task = asyncio.ensure_future(local.request_segment(LONG_SECONDS))
    await asyncio.sleep(0)
    local.recycle(segment)
    assert local.lent_segments == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (local.idle_segments, local.lent_segments) == (1, 0)


async def test_destroy_fails_a_waiting_request():
    network = NetworkBufferPool(1, 64)
    local, _ = drained(network)
    task = asyncio.ensure_future(local.request_segment(LONG_SECONDS))
    await asyncio.sleep(0)
    local.destroy()
    with pytest.raises(PoolDestroyed):
        await task
    with pytest.raises(PoolDestroyed):
        await local.request_segment(LONG_SECONDS)


async def test_concurrent_release_and_arrival_lose_no_segment():
    """Tasks, cancels and destroys coincide."""
    network = NetworkBufferPool(8, 64)
    pools = [network.create_local_pool(str(i), 1) for i in range(3)]

    async def use(pool, turns):
        for _ in range(turns):
            segment = await pool.request_segment(LONG_SECONDS)
            try:
                await asyncio.sleep(0)
            finally:
                pool.recycle(segment)

    async def use_exclusive():
        for _ in range(10):
            segments = await network.request_segments_within(2, LONG_SECONDS)
            try:
                await asyncio.sleep(0)
            finally:
                network.recycle_segments(segments)

    tasks = [asyncio.ensure_future(use(pools[i % 3], 20)) for i in range(24)]
    tasks += [asyncio.ensure_future(use_exclusive()) for _ in range(4)]
    for turn in range(40):
        await asyncio.sleep(0)
        conserved(network)
        if turn % 4 == 0:
            tasks[turn // 2].cancel()
    pools[2].destroy()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(r is None or isinstance(r, asyncio.CancelledError | PoolDestroyed) for r in results)
    assert sum(r is None for r in results) > 8
    for pool in pools:
        pool.destroy()
    assert network.available_segments == 8
    assert conserved(network).waiting_requests == 0
