import asyncio
import random

import pytest

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.shuffle.memory import (
    InsufficientNetworkBuffers,
    InvalidPoolSize,
    NetworkBufferPool,
    NetworkBufferTimeout,
    PoolDestroyed,
    SegmentNotLent,
)
from tests.shuffle.memory.rig import declining, take
from tests.support.network_memory import conserved, take_exclusive

LONG_SECONDS = 30.0  # never reached: the tested event comes first
SHORT_SECONDS = 0.02


def sizes(*pools):
    return [pool.size_segments for pool in pools]


# ---- making pools


def test_the_default_pool_is_allocated_once_at_start():
    pool = NetworkBufferPool(2048, 32 * 1024)
    assert pool.available_segments == 2048
    segments = take_exclusive(pool, 2048)
    assert len({segment.index for segment in segments}) == 2048
    assert len({id(segment.memory.obj) for segment in segments}) == 1
    assert {segment.memory.nbytes for segment in segments} == {32 * 1024}
    pool.recycle_segments(segments)
    assert pool.available_segments == 2048


@pytest.mark.parametrize(("total", "size"), [(0, 64), (-1, 64), (4, 0)])
def test_a_pool_without_memory_is_refused(total, size):
    with pytest.raises(InvalidPoolSize) as caught:
        NetworkBufferPool(total, size)
    assert caught.value.value == min(total, size)
    assert caught.value.limit == 1


def test_insufficient_network_buffers_names_the_numbers_and_the_remedy():
    pool = NetworkBufferPool(10, 64)
    pool.create_local_pool("a", 4)
    take_exclusive(pool, 3)
    with pytest.raises(InsufficientNetworkBuffers) as caught:
        pool.create_local_pool("b", 4)
    error = caught.value
    assert (error.required, error.available, error.total) == (4, 3, 10)
    assert (error.value, error.limit) == (4, 3)
    assert error.code is ErrorCode.INSUFFICIENT_BUFFERS
    assert isinstance(error, SluiceError)
    assert "insufficient number of network buffers: required 4, available 3" in str(error)
    assert "Raise network_segments" in str(error)
    assert len(pool.local_pools) == 1
    pool.create_local_pool("c", 3)  # exactly the rest


# ---- distribution


def test_ten_segments_shared_by_unbounded_pools_and_exclusive_requests():
    pool = NetworkBufferPool(10, 64)
    first = pool.create_local_pool("first", 1)
    assert sizes(first) == [10]
    taken = [take_exclusive(pool, 2)]
    assert sizes(first) == [8]
    second = pool.create_local_pool("second", 1)
    assert sizes(first, second) == [4, 4]
    taken.append(take_exclusive(pool, 2))
    assert sizes(first, second) == [3, 3]
    taken.append(take_exclusive(pool, 2))
    assert sizes(first, second) == [2, 2]
    for expected in (3, 4, 5):
        pool.recycle_segments(taken.pop())
        assert sizes(first, second) == [expected, expected]
    first.destroy()
    assert sizes(second) == [10]


def test_limits_move_at_once_and_segments_follow_lazily():
    pool = NetworkBufferPool(10, 64)
    local = pool.create_local_pool("a", 2)
    assert sizes(local) == [10]
    assert pool.available_segments == 10
    segments = [take(local) for _ in range(10)]
    assert pool.available_segments == 0
    other = pool.create_local_pool("b", 2)
    assert sizes(local, other) == [5, 5]
    assert other.request_segment_nowait() is None
    assert not other.is_available
    # An over-full pool gives back as its buffers are recycled, and only down to its limit.
    for back in range(1, 6):
        local.recycle(segments.pop())
        assert pool.available_segments == back
    local.recycle(segments.pop())
    assert pool.available_segments == 5
    assert local.idle_segments == 1
    assert other.is_available


async def test_distribution_error_is_at_most_one_over_a_thousand_random_orders():
    rng = random.Random(22)
    for _ in range(1000):
        total = rng.randrange(8, 60)
        pool = NetworkBufferPool(total, 1)
        alive, exclusive = [], []
        for _ in range(rng.randrange(2, 14)):
            action = rng.random()
            try:
                if action < 0.5:
                    required = rng.randrange(0, 5)
                    maximum = rng.choice([None, None, required + rng.randrange(1, 9)])
                    alive.append(pool.create_local_pool("p", required, maximum))
                elif action < 0.65 and alive:
                    alive.pop(rng.randrange(len(alive))).destroy()
                elif action < 0.85:
                    exclusive.append(await pool.request_segments_within(rng.randrange(1, 6), 0))
                elif exclusive:
                    pool.recycle_segments(exclusive.pop(rng.randrange(len(exclusive))))
            except (InsufficientNetworkBuffers, NetworkBufferTimeout):
                continue
            finally:
                check_distribution(pool, alive, sum(map(len, exclusive)))


def check_distribution(pool, alive, exclusive):
    spare = pool.total_segments - exclusive - sum(p.bounds.required_segments for p in alive)
    shares = [p.size_segments - p.bounds.required_segments for p in alive]
    assert sum(shares) == min(spare, sum(p.room for p in alive))
    growing = [share for share, p in zip(shares, alive, strict=True) if share < p.room]
    if growing:
        assert max(shares) - min(growing) <= 1
    for p in alive:
        assert p.bounds.required_segments <= p.size_segments
        assert p.bounds.maximum_segments is None or p.size_segments <= p.bounds.maximum_segments


# ---- exclusive segments


async def test_exclusive_request_is_all_or_nothing():
    pool = NetworkBufferPool(10, 64)
    local = pool.create_local_pool("a", 2)
    lent = [take(local) for _ in range(6)]
    for count in (9, 5):  # only 8 can be promised, and only 4 are free
        with pytest.raises(NetworkBufferTimeout) as caught:
            await pool.request_segments_within(count, 0)
        assert (caught.value.required, caught.value.available) == (count, 4)
    assert pool.available_segments == 4
    assert sizes(local) == [10]
    assert len(await pool.request_segments_within(4, 0)) == 4
    assert len(lent) == local.lent_segments
    assert await pool.request_segments_within(0, 0) == []
    with pytest.raises(InvalidPoolSize):
        await pool.request_segments_within(-1, 0)


def test_recycling_an_exclusive_segment_twice_is_refused_and_the_others_are_back():
    pool = NetworkBufferPool(4, 64)
    one, two = take_exclusive(pool, 2)
    with pytest.raises(SegmentNotLent) as caught:
        pool.recycle_segments([one, one, two])
    assert caught.value.segment_index == one.index
    assert pool.available_segments == 4
    conserved(pool)


def test_a_segment_of_a_local_pool_is_refused_as_an_exclusive_one():
    pool = NetworkBufferPool(4, 64)
    local = pool.create_local_pool("a", 1)
    lent = take(local)
    (exclusive,) = take_exclusive(pool, 1)
    with pytest.raises(SegmentNotLent):
        pool.recycle_segments([lent])
    with pytest.raises(SegmentNotLent):
        local.recycle(exclusive)
    assert conserved(pool).lent_segments == 2


async def test_exclusive_request_times_out_with_a_typed_error_and_without_effect():
    pool = NetworkBufferPool(10, 64)
    local = pool.create_local_pool("a", 1)
    lent = [take(local) for _ in range(7)]
    with pytest.raises(NetworkBufferTimeout) as caught:
        await pool.request_segments_within(5, SHORT_SECONDS)
    assert isinstance(caught.value, TimeoutError)
    assert (caught.value.required, caught.value.available) == (5, 3)
    assert caught.value.timeout_seconds == SHORT_SECONDS
    assert conserved(pool).reserved_segments == 0
    assert sizes(local) == [10]
    assert (len(lent), pool.available_segments, pool.waiting_requests) == (7, 3, 0)


async def test_exclusive_request_waits_for_over_full_pools_to_give_back():
    pool = NetworkBufferPool(10, 64)
    local = pool.create_local_pool("a", 1)
    lent = [take(local) for _ in range(10)]
    waiting = asyncio.ensure_future(pool.request_segments_within(4, LONG_SECONDS))
    await asyncio.sleep(0)
    assert sizes(local) == [6]
    for _ in range(3):
        local.recycle(lent.pop())
        assert local.request_segment_nowait() is None  # the promised ones are not lent again
    assert not waiting.done()
    assert pool.available_segments == 3
    local.recycle(lent.pop())
    assert len(await waiting) == 4
    assert conserved(pool).exclusive_segments == 4


async def test_segments_collected_for_an_exclusive_request_are_not_lent_to_other_pools():
    pool = NetworkBufferPool(10, 64)
    other = pool.create_local_pool("other", 1)
    local = pool.create_local_pool("a", 1)
    lent = [take(local) for _ in range(5)]
    waiting = asyncio.ensure_future(pool.request_segments_within(6, LONG_SECONDS))
    await asyncio.sleep(0)
    assert (other.size_segments, other.held_segments, pool.available_segments) == (2, 0, 5)
    assert not other.is_available
    assert other.request_segment_nowait() is None
    local.recycle(lent.pop())
    assert len(await waiting) == 6
    local.recycle(lent.pop())
    assert other.request_segment_nowait() is not None
    conserved(pool)


@pytest.mark.parametrize("end", ["cancel", "expire"])
async def test_the_promise_of_a_request_that_just_ended_is_given_up_once(end):
    pool = NetworkBufferPool(10, 64)
    local = pool.create_local_pool("a", 1)
    lent = [take(local) for _ in range(10)]
    loop = asyncio.get_running_loop()
    waiting = asyncio.ensure_future(
        pool.request_segments_within(4, LONG_SECONDS if end == "cancel" else SHORT_SECONDS)
    )
    await asyncio.sleep(0)
    assert sizes(local) == [6]
    if end == "cancel":
        waiting.cancel()
        local.recycle(lent.pop())  # in the same turn as the cancel
    else:
        # A timer for the same moment, set after the request's, runs right behind it.
        recycled = asyncio.Event()

        def recycle_one():
            local.recycle(lent.pop())
            recycled.set()

        loop.call_later(SHORT_SECONDS, recycle_one)
        await asyncio.wait_for(recycled.wait(), LONG_SECONDS)
    await asyncio.wait([waiting])
    if end == "cancel":
        assert waiting.cancelled()
    else:
        assert isinstance(waiting.exception(), NetworkBufferTimeout)
    assert sizes(local) == [10]
    assert conserved(pool).reserved_segments == 0


async def test_exclusive_requests_are_served_in_order_of_arrival():
    pool = NetworkBufferPool(4, 64)
    held = take_exclusive(pool, 4)
    order: list = []

    async def take(count):
        segments = await pool.request_segments_within(count, LONG_SECONDS)
        order.append(count)
        return segments

    tasks = [asyncio.ensure_future(take(count)) for count in (3, 1)]
    await asyncio.sleep(0)
    pool.recycle_segments([held.pop()])
    await asyncio.sleep(0)
    assert order == []  # the smaller one does not overtake
    pool.recycle_segments(held)
    await asyncio.gather(*tasks)
    assert order == [3, 1]


async def test_a_cancelled_head_of_the_queue_lets_the_next_one_through():
    pool = NetworkBufferPool(4, 64)
    held = take_exclusive(pool, 2)
    first = asyncio.ensure_future(pool.request_segments_within(4, LONG_SECONDS))
    second = asyncio.ensure_future(pool.request_segments_within(2, LONG_SECONDS))
    await asyncio.sleep(0)
    first.cancel()
    assert len(await second) == 2
    assert first.cancelled()
    assert conserved(pool).exclusive_segments == 4
    assert len(held) == 2


async def test_cancelling_after_the_segments_were_handed_over_gives_them_back():
    pool = NetworkBufferPool(4, 64)
    held = take_exclusive(pool, 4)
    waiting = asyncio.ensure_future(pool.request_segments_within(3, LONG_SECONDS))
    await asyncio.sleep(0)
    pool.recycle_segments(held)
    assert pool.available_segments == 1  # handed over; the task has not run yet
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert pool.available_segments == 4
    assert conserved(pool).reserved_segments == 0


async def test_segments_recycled_in_the_turn_of_a_cancel_go_to_the_next_request():
    pool = NetworkBufferPool(4, 64)
    held = take_exclusive(pool, 4)
    first = asyncio.ensure_future(pool.request_segments_within(3, LONG_SECONDS))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(pool.request_segments_within(4, LONG_SECONDS))
    await asyncio.sleep(0)
    first.cancel()
    pool.recycle_segments(held)
    assert len(await second) == 4
    assert pool.waiting_requests == 0


# ---- the end


async def test_destroy_fails_requests_calls_listeners_and_unmaps_after_the_last_segment():
    pool = NetworkBufferPool(4, 64)
    local = pool.create_local_pool("a", 1)
    lent = take(local)
    exclusive = take_exclusive(pool, 3)
    told: list = []
    local.add_listener(declining(told))
    waiting = asyncio.ensure_future(pool.request_segments_within(2, LONG_SECONDS))
    await asyncio.sleep(0)
    pool.destroy()
    pool.destroy()
    assert told == [None]
    with pytest.raises(PoolDestroyed):
        await waiting
    with pytest.raises(PoolDestroyed):
        pool.create_local_pool("b", 1)
    with pytest.raises(PoolDestroyed):
        await pool.request_segments_within(1, LONG_SECONDS)
    assert conserved(pool).lent_segments == 4
    assert [p.name for p in pool.draining_pools] == ["a"]
    pool.recycle_segments(exclusive)
    assert lent.memory[0] == 0  # still there for its holder
    local.recycle(lent)
    assert conserved(pool).available_segments == 4
    with pytest.raises(ValueError, match="released"):
        lent.memory[0]
