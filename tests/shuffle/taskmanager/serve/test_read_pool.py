"""The pool of one connection for reads of the disk tier."""

from __future__ import annotations

import pytest

from sluice.shuffle.errors import InsufficientNetworkBuffers
from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.taskmanager.serve.read_pool import ReadPool

SEGMENTS = 3


def test_the_pool_is_made_when_it_is_needed_and_lends_no_more_than_its_maximum():
    network_pool = NetworkBufferPool(SEGMENTS, 1024)
    read_pool = ReadPool(network_pool, "reads", SEGMENTS - 1)
    assert not network_pool.local_pools
    pool = read_pool()
    assert read_pool() is pool
    segments = [pool.request_segment_nowait() for _ in range(SEGMENTS)]
    assert [segment is None for segment in segments] == [False, False, True]
    read_pool.destroy()
    read_pool.destroy()
    for segment in segments:
        if segment is not None:
            pool.recycle(segment)
    assert network_pool.available_segments == SEGMENTS
    network_pool.destroy()


def test_a_pool_without_a_segment_left_is_an_error_and_can_be_asked_for_again():
    network_pool = NetworkBufferPool(1, 1024)
    taken = network_pool.create_local_pool("others", 1, 1)
    read_pool = ReadPool(network_pool, "reads", 1)
    with pytest.raises(InsufficientNetworkBuffers):
        read_pool()
    taken.destroy()
    segment = read_pool().request_segment_nowait()
    assert segment is not None
    read_pool().recycle(segment)
    read_pool.destroy()
    network_pool.destroy()
