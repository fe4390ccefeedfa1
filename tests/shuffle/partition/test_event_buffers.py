"""The memory of events: the partition's pool, and a little beside it."""

from __future__ import annotations

import pytest

from sluice.protocol.schema import EVENT, PRIORITY_EVENT
from sluice.shuffle.errors import TooManyEvents
from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.partition.event_buffers import MAX_EVENTS_BESIDE_POOL, EventBuffers
from tests.shuffle.partition.rig import Notifications

SEGMENTS = 2


def test_a_task_that_does_not_wait_has_some_memory_for_events_and_no_more():
    network = NetworkBufferPool(SEGMENTS, 64)
    pool = network.create_local_pool("partition", 1, SEGMENTS)
    taken = Notifications()
    events = EventBuffers(pool, taken)
    waiting = [events.consumer_of(b"x", EVENT) for _ in range(SEGMENTS + MAX_EVENTS_BESIDE_POOL)]
    assert (pool.lent_segments, events.beside_pool) == (SEGMENTS, MAX_EVENTS_BESIDE_POOL)
    for data_type in (EVENT, PRIORITY_EVENT):
        with pytest.raises(TooManyEvents, match=f"limit {MAX_EVENTS_BESIDE_POOL}"):
            events.consumer_of(b"x", data_type)
    waiting.pop().close()
    assert taken.take() == 1
    waiting.append(events.consumer_of(b"y", PRIORITY_EVENT))
    for consumer in waiting:
        consumer.close()
    assert taken.take() == MAX_EVENTS_BESIDE_POOL
    assert (pool.lent_segments, events.beside_pool) == (0, 0)


@pytest.mark.parametrize("data_type", [EVENT, PRIORITY_EVENT])
def test_the_memory_of_a_broadcast_event_is_free_when_all_have_taken_it(data_type):
    network = NetworkBufferPool(SEGMENTS, 64)
    pool = network.create_local_pool("partition", 1, SEGMENTS)
    events = EventBuffers(pool)
    first = events.consumer_of(b"event", data_type)
    second = first.copy()
    piece = first.build_last()
    assert (bytes(piece.payload), piece.data_type) == (b"event", data_type)
    piece.recycle()
    assert pool.lent_segments + events.beside_pool == 1
    second.close()
    assert pool.lent_segments + events.beside_pool == 0
