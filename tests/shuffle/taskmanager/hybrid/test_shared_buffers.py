"""Readers of a kept partition share half of its pool, and get copies above that."""

from __future__ import annotations

from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.partition.shared_buffer import finished_consumer
from sluice.shuffle.taskmanager.hybrid.shared_buffers import SharedBuffers

SIZE = 8


def test_readers_get_copies_above_half_of_the_pool():
    network = NetworkBufferPool(4, SIZE)
    pool = network.create_local_pool("partition", 1, 4)
    shared = SharedBuffers(pool)

    def taken(content: bytes):
        buffer = pool.request_buffer_nowait()
        assert buffer is not None
        buffer.segment.memory[: len(content)] = content
        buffer.length = len(content)
        return shared.take(finished_consumer(buffer).build_last())

    first, second = taken(b"first"), taken(b"second")
    assert pool.lent_segments == shared.taken == 2
    copied = taken(b"third")
    assert (bytes(copied.payload), copied.release) == (b"third", None)
    assert pool.lent_segments == 2
    for buffer, content in ((first, b"first"), (second, b"second")):
        assert bytes(buffer.payload) == content
        buffer.release()
    assert pool.lent_segments == shared.taken == 0
    again = taken(b"again")
    assert again.release is not None
    again.release()
