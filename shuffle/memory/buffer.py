"""A network buffer: a memory segment with a length, a reference count and a recycler."""

from collections.abc import Callable
from typing import TypeAlias

from shuffle.memory.counted import ReferenceCounted
from shuffle.memory.errors import BufferAlreadyRecycled, InvalidPoolSize
from shuffle.memory.segment import MemorySegment

Recycler: TypeAlias = Callable[[MemorySegment], None]
"""Takes the segment when the last reference to its buffer is recycled."""


class NetworkBuffer(ReferenceCounted[MemorySegment]):
    """Bytes in a segment, shared by reference counting; the count starts at 1.

    Attributes:
        segment: The memory. Not to be touched after the last :meth:`recycle`.
        length: Bytes of payload, 0 to ``segment.size_bytes``; set by whoever fills the segment.
        recycler: Called with the segment when the count reaches 0.
    """

    __slots__ = ("length", "segment")

    def __init__(self, segment: MemorySegment, length: int, recycler: Recycler) -> None:
        self.segment = self._lent = segment
        self.length = length
        self.recycler = recycler
        self._references = 1

    @property
    def payload(self) -> memoryview:
        """View of the first ``length`` bytes; valid until the last reference is recycled.

        Raises:
            BufferAlreadyRecycled: After the last :meth:`recycle`.
            InvalidPoolSize: ``length`` is outside the segment: the bytes would be cut in silence.
        """
        segment = self.segment
        length = self.length
        if self._references < 1:
            raise BufferAlreadyRecycled("payload")
        if not 0 <= length <= segment.size_bytes:
            raise InvalidPoolSize(
                "length of a network buffer outside its segment",
                value=length,
                limit=segment.size_bytes,
            )
        return segment.memory[:length]

    def __repr__(self) -> str:
        return (
            f"<NetworkBuffer {self.length} bytes in segment {self.segment.index},"
            f" {self._references} references>"
        )
