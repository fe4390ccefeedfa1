"""The buffers of a pipelined partition's events.

An event takes a buffer of the partition's pool, as data does: so unread events hold up a writer
that waits for the pool to be available, and the pool bounds them. A priority event must not wait.
It has a little memory of its own, as does an event that finds no free buffer.
"""

from collections.abc import Callable
from typing import Final

from ...protocol.schema import PRIORITY_EVENT
from ..errors import TooManyEvents
from ..memory import LocalBufferPool, MemorySegment, NetworkBuffer
from .shared_buffer import BufferConsumer, finished_consumer

MAX_EVENTS_BESIDE_POOL: Final = 1024
"""Unread events of a partition in memory of their own: 1 MiB of the longest ones."""


class EventBuffers:
    """Makes the buffers of one partition's events.

    Args:
        pool: The partition's pool.
        taken: Called when all readers of an event in memory of its own have taken or dropped it.
    """

    __slots__ = ("_pool", "_taken", "beside_pool")

    def __init__(self, pool: LocalBufferPool, taken: Callable[[], None] | None = None) -> None:
        self.beside_pool = 0
        """Unread events in memory of their own."""
        self._pool = pool
        self._taken = taken

    def consumer_of(self, payload: bytes, data_type: int) -> BufferConsumer:
        """Put an event into a buffer, and make its first consumer.

        Raises:
            TooManyEvents: The pool has no buffer, and too many wait already in memory of their own.
        """
        buffer = None
        if data_type != PRIORITY_EVENT and not self._pool.is_destroyed:
            buffer = self._pool.request_buffer_nowait()
        length = len(payload)
        if buffer is not None and length <= buffer.segment.size_bytes:
            buffer.segment.memory[:length] = payload
            buffer.length = length
        else:
            if buffer is not None:  # its segment is shorter than the longest event
                buffer.recycle()
            buffer = self._beside_pool(payload)
        return finished_consumer(buffer, data_type)

    def _beside_pool(self, payload: bytes) -> NetworkBuffer:
        if self.beside_pool >= MAX_EVENTS_BESIDE_POOL:
            raise TooManyEvents(
                "More events wait for their readers than are kept",
                value=self.beside_pool + 1,
                limit=MAX_EVENTS_BESIDE_POOL,
                remedy="Await wait_available() between events; see why the reader does not read",
            )
        self.beside_pool += 1
        memory = memoryview(bytearray(payload))
        return NetworkBuffer(MemorySegment(0, memory, len(payload)), len(payload), self._recycle)

    def _recycle(self, segment: MemorySegment) -> None:
        self.beside_pool -= 1
        if self._taken is not None:
            self._taken()
