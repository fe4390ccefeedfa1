"""The numbers by which a client's partition decides when to flush."""

from __future__ import annotations

from sluice.shuffle.client.send_queue import SendQueue
from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.partition.shared_buffer import BufferBuilder


def test_each_open_buffer_that_becomes_complete_counts_once():
    pool = NetworkBufferPool(8, 16).create_local_pool("queue", 1, 8)
    queue = SendQueue(lambda: None)
    builders = []
    for subpartition in range(3):
        buffer = pool.request_buffer_nowait()
        assert buffer is not None
        builder = BufferBuilder(buffer)
        queue.add(builder.create_consumer(), subpartition)
        builder.append_and_commit(b"abc")
        builders.append(builder)
    assert queue.completed_buffers == 0
    queue.flush_all()
    queue.flush_all()
    assert (queue.unread_flushed(), len(queue)) == (3, 3)
    for complete, builder in enumerate(builders, 1):
        builder.finish()
        assert queue.completed_buffers == complete
    assert queue.unread_flushed() == 0
    assert not queue.has_open_buffers
    queue.clear()
    assert pool.lent_segments == 0
