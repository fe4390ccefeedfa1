"""A local pool: taking, giving back, listeners and the end."""

import logging
import traceback

import pytest

from sluice.shuffle.memory import NetworkBufferPool, PoolDestroyed, SegmentNotLent
from tests.shuffle.memory.rig import Waiter, drained, take
from tests.support.network_memory import conserved


def no_listener_failed(caplog):
    return not [r for r in caplog.records if r.name == "sluice.shuffle.memory.segment_queue"]


# ---- taking and giving back


def test_idle_segments_are_lent_first_then_those_of_the_network_pool_up_to_the_limit():
    network = NetworkBufferPool(10, 64)
    local = network.create_local_pool("a", 1, 2)
    one = take(local)
    assert network.available_segments == 9
    local.recycle(one)
    assert (local.idle_segments, network.available_segments) == (1, 9)
    assert take(local) is one  # the idle one first: it is still in the CPU's cache
    assert local.request_segment_nowait() is not None
    assert not local.is_available
    assert local.request_segment_nowait() is None
    assert local.request_buffer_nowait() is None
    local.recycle(one)
    assert local.is_available


def test_recycling_twice_is_a_typed_error_and_lends_nothing_twice():
    network = NetworkBufferPool(4, 64)
    local, segments = drained(network)
    local.recycle(segments[0])
    with pytest.raises(SegmentNotLent) as caught:
        local.recycle(segments[0])
    assert caught.value.segment_index == segments[0].index
    assert local.idle_segments == 1
    conserved(network)


def test_recycling_to_another_pool_is_a_typed_error():
    network = NetworkBufferPool(4, 64)
    one = network.create_local_pool("one", 1)
    two = network.create_local_pool("two", 1)
    segment = take(one)
    with pytest.raises(SegmentNotLent):
        two.recycle(segment)
    assert (one.lent_segments, two.idle_segments) == (1, 0)


def test_a_cancelled_listener_is_never_called_and_leaves_nothing_behind():
    network = NetworkBufferPool(1, 64)
    local, (segment,) = drained(network)
    waiter = Waiter()
    for _ in range(3):
        handle = local.add_listener(waiter)
        handle.cancel()
        handle.cancel()
        assert not handle.is_waiting
    assert local.waiting_listeners == 0
    local.recycle(segment)
    assert waiter.segments == []
    assert take(local) is segment
    served = local.add_listener(waiter)
    local.recycle(segment)
    served.cancel()  # no effect after the call
    assert (waiter.segments, local.lent_segments) == ([segment], 1)


def test_a_listener_that_raises_has_declined_and_does_not_fail_the_recycle(caplog):
    network = NetworkBufferPool(1, 64)
    local, (segment,) = drained(network, "gate 3")

    def fail(_segment):
        raise RuntimeError("boom")

    local.add_listener(fail)
    waiter = Waiter()
    local.add_listener(waiter)
    with caplog.at_level(logging.ERROR):
        local.recycle(segment)
    assert waiter.segments == [segment]
    assert "gate 3" in caplog.text
    assert "boom" in caplog.text


def test_thousands_of_listeners_that_recycle_at_once_do_not_deepen_the_stack(caplog):
    network = NetworkBufferPool(1, 64)
    local, (segment,) = drained(network)
    order: list = []
    overtaken: list = []
    depths = set()

    def use(number):
        def callback(s):
            order.append(number)
            depths.add(len(traceback.extract_stack()))
            local.recycle(s)
            overtaken.append(local.request_segment_nowait() if number < 4999 else None)
            return True

        return callback

    for number in range(5000):
        local.add_listener(use(number))
    local.recycle(segment)
    assert order == list(range(5000))
    assert set(overtaken) == {None}
    assert len(depths) == 1
    assert no_listener_failed(caplog)
    conserved(network)


def test_a_segment_handed_through_hundreds_of_pools_does_not_deepen_the_stack(caplog):
    network = NetworkBufferPool(600, 1)
    greedy, segments = drained(network, "greedy")
    visited: list = []
    depths = set()

    def pass_on(pool):
        def callback(segment):
            visited.append(pool)
            depths.add(len(traceback.extract_stack()))
            pool.recycle(segment)
            pool.destroy()
            return True

        return callback

    pools = [network.create_local_pool(str(i), 1) for i in range(500)]
    for pool in pools:
        pool.add_listener(pass_on(pool))
    greedy.recycle(segments.pop())
    assert visited == pools
    assert len(depths) == 1
    assert no_listener_failed(caplog)
    conserved(network)


# ---- destroy


def test_destroy_gives_idle_segments_back_and_calls_each_listener_once():
    network = NetworkBufferPool(4, 64)
    local, segments = drained(network)
    local.recycle(segments.pop())
    assert local.idle_segments == 1
    keeper = Waiter()
    local.add_listener(keeper)
    waiters = [Waiter(), Waiter(), Waiter()]
    handles = [local.add_listener(waiter) for waiter in waiters]
    handles[1].cancel()
    local.destroy()
    local.destroy()
    assert [waiter.told_destroyed for waiter in waiters] == [1, 0, 1]
    assert (local.size_segments, local.is_available, local.waiting_listeners) == (0, False, 0)
    with pytest.raises(PoolDestroyed):
        local.request_segment_nowait()
    with pytest.raises(PoolDestroyed):
        local.add_listener(Waiter())
    for back, segment in enumerate([*segments, *keeper.segments], start=1):
        assert [pool.lent_segments for pool in network.draining_pools] == [5 - back]
        local.recycle(segment)
        assert network.available_segments == back
        with pytest.raises(SegmentNotLent):
            local.recycle(segment)
    assert not network.draining_pools
    conserved(network)


def test_a_listener_called_by_destroy_may_cancel_the_others():
    network = NetworkBufferPool(1, 64)
    local, _ = drained(network)
    other = Waiter()
    handles: list = []

    def cancel_the_rest(_segment):
        handles[1].cancel()
        return False

    handles.append(local.add_listener(cancel_the_rest))
    handles.append(local.add_listener(other))
    local.destroy()
    assert other.told_destroyed == 0


# ---- several segments at once


def test_recycling_together_refuses_a_segment_twice_and_keeps_the_others():
    local, segments = drained(NetworkBufferPool(4, 64))
    with pytest.raises(SegmentNotLent):
        local.recycle_together([segments[0], segments[0], segments[1]])
    assert (local.idle_segments, local.lent_segments) == (1, 3)
    assert local.take_more_nowait() is segments[0]
