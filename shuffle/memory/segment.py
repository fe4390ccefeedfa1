"""A memory segment: one slot of the network buffer pool's mapping."""

import mmap
from contextlib import suppress
from typing import Final

from ...protocol.errors import ErrorCode, SluiceError
from ...protocol.limits import RECEIVE_TAIL_BYTES


class MemorySegment:
    """A fixed-size piece of network memory, made by :class:`SegmentMapping`.

    Attributes:
        index: Position in the pool, from 0; stable for the life of the pool.
        memory: Writable view of the segment's ``size_bytes`` bytes.
        room: View of ``memory`` and the spare bytes behind it, which a receiver may read ahead
            into.
        size_bytes: Payload capacity.
        holder: The pool that has lent the segment, or the account of the channel that has it;
            ``None`` while it is in a pool. The pools set it: thanks to it a second recycle is an
            error instead of memory with two owners.
    """

    __slots__ = ("_mapping", "_start", "holder", "index", "memory", "room", "size_bytes")

    def __init__(self, index: int, mapping: memoryview, size_bytes: int) -> None:
        self.index: Final = index
        self.size_bytes: Final = size_bytes
        self.holder: object | None = None
        self._mapping = mapping
        self._start = start = index * (size_bytes + RECEIVE_TAIL_BYTES)
        self.memory: Final = mapping[start : start + size_bytes]
        self.room: Final = self.run(1)

    def is_held_by(self, holder: object) -> bool:
        """Return whether ``holder`` still has the segment.

        After ``segment.holder = pool`` mypyc takes ``segment.holder`` for the pool, and raises if a
        call has changed it meanwhile; this method reads it again.
        """
        return self.holder is holder

    def run(self, segments: int) -> memoryview:
        """Return a view of this segment and the ``segments`` - 1 behind it, with all spare bytes.

        A payload lies in it without gaps, from its start. The caller must hold all the segments.
        """
        stride = self.size_bytes + RECEIVE_TAIL_BYTES
        return self._mapping[self._start : self._start + segments * stride]

    def __repr__(self) -> str:
        return f"<MemorySegment {self.index} of {self.size_bytes} bytes>"


def from_the_end(segment: MemorySegment) -> int:
    """Sort segments by this key to have the lowest index last."""
    return -segment.index


class SegmentMapping:
    """The anonymous memory mapping that all segments of a pool are slices of.

    RECEIVE_TAIL_BYTES lie behind each segment, so that one ``recv`` can fill a segment and bring
    the head of the next message as well. Without them each buffer takes two reads, which costs its
    receiver 1 to 2 µs of CPU time more, and pipelined data 4 % more (``bench-path-cpu``, five pairs
    of runs).

    Pages become resident when they are first written. Pools lend the most recently returned segment
    first, so the resident memory follows the load and stays in the CPU's cache.

    Args:
        total_segments: Number of segments, at least 1.
        segment_size_bytes: Payload capacity of each, at least 1.

    Raises:
        SluiceError: The operating system refuses the memory.
    """

    __slots__ = ("_mapping", "_view", "segments")

    def __init__(self, total_segments: int, segment_size_bytes: int) -> None:
        stride = segment_size_bytes + RECEIVE_TAIL_BYTES
        try:
            self._mapping = mmap.mmap(-1, total_segments * stride)
        except OSError as error:
            raise SluiceError(
                f"The operating system refuses the memory of the network segments: {error}",
                code=ErrorCode.CONFIGURATION,
                value=total_segments * stride,
                remedy="Lower network_segments, or raise the limit of the address space "
                "(ulimit -v)",
            ) from error
        self._view = memoryview(self._mapping)
        self.segments: tuple[MemorySegment, ...] = tuple(
            MemorySegment(index, self._view, segment_size_bytes) for index in range(total_segments)
        )

    def close(self) -> None:
        """Return the memory to the system; idempotent.

        A view that is still in use keeps the mapping alive: a late reader sees old bytes, never a
        crash.
        """
        for segment in self.segments:
            segment.memory.release()
            segment.room.release()
        self._view.release()
        with suppress(BufferError):
            self._mapping.close()
