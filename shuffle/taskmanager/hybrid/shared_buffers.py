"""Buffers of a full hybrid partition that its readers take from memory."""

from functools import partial
from typing import Final

from ....protocol.schema import DATA
from ...memory import LocalBufferPool
from ...partition.shared_buffer import BufferSlice
from ...partition.view import OutgoingBuffer


class SharedBuffers:
    """Counts the buffers of a partition that readers have taken and not released.

    Readers share at most half of the pool's segments; above that they get copies. Otherwise a few
    readers that stop reading their sockets, at different positions, would hold the whole pool.

    Args:
        pool: The pool of the partition.
    """

    __slots__ = ("_pool", "taken")

    def __init__(self, pool: LocalBufferPool) -> None:
        self._pool: Final = pool
        self.taken = 0
        """Buffers that were taken, one for each reader that has it."""

    def take(self, piece: BufferSlice) -> OutgoingBuffer:
        """Share a buffer with a reader, or give it a copy."""
        if 2 * self.taken >= self._pool.size_segments:
            copied = bytes(piece.payload)
            piece.recycle()
            return OutgoingBuffer(copied, None, DATA)
        self.taken += 1
        return OutgoingBuffer(piece.payload, partial(self._release, piece), DATA)

    def _release(self, piece: BufferSlice) -> None:
        self.taken -= 1
        piece.recycle()
