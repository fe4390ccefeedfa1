"""Tasks that wait until a local pool is available, and the events that wake them."""

import asyncio

import pytest

from sluice.shuffle.memory import (
    NetworkBufferPool,
    NetworkBufferTimeout,
    PoolDestroyed,
)
from tests.shuffle.memory.rig import take, take_many

LONG_SECONDS = 30.0  # never reached: the tested event comes first
SHORT_SECONDS = 0.02


async def waiting_for(*pools):
    """Start tasks that wait for the pools, and check that they wait."""
    tasks = [asyncio.ensure_future(pool.wait_available()) for pool in pools]
    await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    return tasks


async def done(*tasks):
    async with asyncio.timeout(LONG_SECONDS):
        await asyncio.gather(*tasks)


async def test_an_available_pool_makes_nobody_wait():
    network = NetworkBufferPool(2, 64)
    local = network.create_local_pool("a", 1)
    await local.wait_available()
    assert local.held_segments == 0
    segments = take_many(local, 2)
    local.recycle(segments.pop())
    await local.wait_available()
    assert local.waiting_for_availability == 0


async def test_a_recycle_wakes_a_waiting_task():
    network = NetworkBufferPool(2, 64)
    local = network.create_local_pool("a", 1)
    segments = take_many(local, 2)
    (task,) = await waiting_for(local)
    local.recycle(segments.pop())
    await done(task)
    assert (local.is_available, local.waiting_for_availability) == (True, 0)
    local.recycle(segments.pop())
    assert local.idle_segments == 2


@pytest.mark.parametrize("end", ["cancel", "expire"])
async def test_an_exclusive_request_that_ends_without_its_segments_wakes_a_waiting_task(end):
    network = NetworkBufferPool(6, 64)
    take_many(network.create_local_pool("greedy", 1), 5)
    local = network.create_local_pool("a", 1)
    exclusive = asyncio.ensure_future(
        network.request_segments_within(2, LONG_SECONDS if end == "cancel" else SHORT_SECONDS)
    )
    await asyncio.sleep(0)
    (task,) = await waiting_for(local)
    # One is free, but the request collects.
    assert (network.available_segments, local.size_segments, local.is_available) == (1, 2, False)
    if end == "cancel":
        exclusive.cancel()
    await asyncio.wait([exclusive])
    await done(task)
    assert local.is_available
    assert network.expired_requests == (end == "expire")
    assert exclusive.cancelled() or isinstance(exclusive.exception(), NetworkBufferTimeout)


async def test_cancelling_a_wait_has_no_effect_on_the_pool():
    network = NetworkBufferPool(2, 64)
    local = network.create_local_pool("a", 1)
    segments = take_many(local, 2)
    tasks = await waiting_for(local, local)
    assert local.waiting_for_availability == 2
    tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    assert local.waiting_for_availability == 1
    tasks[1].cancel()
    local.recycle(segments.pop())  # in the same turn as the cancel
    with pytest.raises(asyncio.CancelledError):
        await tasks[1]
    assert (local.waiting_for_availability, local.is_available) == (0, True)
    assert (local.idle_segments, local.lent_segments) == (1, 1)


async def test_a_woken_task_that_finds_no_segment_waits_on():
    network = NetworkBufferPool(1, 64)
    local = network.create_local_pool("a", 1)
    segment = take(local)
    order = []

    async def use(number):
        await local.wait_available()
        mine = take(local)  # there is one, whichever tasks were woken
        order.append(number)
        await asyncio.sleep(0)
        local.recycle(mine)

    tasks = [asyncio.ensure_future(use(number)) for number in range(20)]
    await asyncio.sleep(0)
    local.recycle(segment)
    await done(*tasks)
    assert sorted(order) == list(range(20))
    assert (local.idle_segments, local.waiting_for_availability) == (1, 0)


@pytest.mark.parametrize("which", ["local", "network"])
async def test_destroy_fails_waiting_tasks_with_a_typed_error(which):
    network = NetworkBufferPool(2, 64)
    local = network.create_local_pool("gate 4", 1)
    segments = take_many(local, 2)
    tasks = await waiting_for(local, local)
    (local if which == "local" else network).destroy()
    for task in tasks:
        with pytest.raises(PoolDestroyed, match="gate 4"):
            await task
    with pytest.raises(PoolDestroyed):
        await local.wait_available()
    for segment in segments:
        local.recycle(segment)
    assert network.available_segments == 2


async def test_a_task_cancelled_when_its_pool_is_destroyed_is_cancelled():
    network = NetworkBufferPool(1, 64)
    local = network.create_local_pool("a", 1)
    take(local)
    (task,) = await waiting_for(local)
    local.destroy()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert local.waiting_for_availability == 0
