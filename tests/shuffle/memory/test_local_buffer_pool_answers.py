"""What a local pool answers in the middle of things: in a listener's call, above its limit."""

from __future__ import annotations

from sluice.shuffle.memory import NetworkBufferPool
from tests.shuffle.memory.rig import keeping, take_many


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
