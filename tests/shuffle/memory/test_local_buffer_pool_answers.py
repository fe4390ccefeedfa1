"""What a local pool answers in the middle of things: in a listener's call, above its limit."""

from __future__ import annotations

from sluice.shuffle.memory import NetworkBufferPool
from tests.shuffle.memory.rig import conserved, keeping, take_many


def test_a_segment_that_is_due_to_the_next_listener_makes_no_pool_available():
    network = NetworkBufferPool(4, 64)
    pool = network.create_local_pool("a", 1, 2)
    lent = take_many(pool, 2)
    seen: list[tuple[bool, int]] = []
    taken = []

    def listener(segment) -> bool:
        seen.append((pool.is_available, pool.idle_segments))
        taken.append(segment)
        return True

    for _ in range(2):
        pool.add_listener(listener)
    pool.recycle_together(lent)
    assert seen == [(False, 1), (False, 0)]
    pool.recycle_together(taken)
    assert pool.is_available
    conserved(network)


def test_a_segment_above_the_limit_does_not_come_back_to_the_only_listener():
    network = NetworkBufferPool(4, 64)
    pool = network.create_local_pool("a", 1)
    lent = take_many(pool, 4)
    handle = pool.add_listener(keeping([]))
    assert pool.is_only_waiting(handle)
    network.create_local_pool("b", 2, 2)
    assert pool.held_segments > pool.size_segments
    assert not pool.is_only_waiting(handle)
    pool.recycle_together(lent[:2])
    assert pool.held_segments == pool.size_segments
    assert pool.is_only_waiting(handle)
    pool.destroy()
    assert not pool.is_only_waiting(handle)


def test_a_buffer_is_empty_whether_its_segment_is_new_or_was_used():
    network = NetworkBufferPool(4, 64)
    pool = network.create_local_pool("a", 1, 1)
    for _ in range(2):
        buffer = pool.request_buffer_nowait()
        assert buffer is not None
        assert len(buffer.payload) == 0
        buffer.recycle()
        assert pool.idle_segments == 1
