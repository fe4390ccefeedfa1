"""What one payload arrived in: a run of neighbouring segments, seen as one piece of memory."""

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import TypeAlias

from shuffle.memory.counted import ReferenceCounted
from shuffle.memory.errors import BufferAlreadyRecycled
from shuffle.memory.segment import MemorySegment

GroupRecycler: TypeAlias = Callable[[Sequence[MemorySegment]], None]
"""Takes the segments when the last reference to their group is recycled."""

_index = attrgetter("index")


class BufferGroup(ReferenceCounted[Sequence[MemorySegment]]):
    """Bytes in neighbouring segments, shared by reference counting; the count starts at 1.

    Args:
        segments: Neighbours in the pool's mapping, in order; each is one buffer, and one credit.
        length: Bytes of payload in them.
        recycler: Called with the segments when the count reaches 0.

    Attributes:
        memory: The segments and the spare bytes behind them; the payload is at its start.
    """

    __slots__ = ("length", "memory", "segments")

    def __init__(
        self, segments: Sequence[MemorySegment], length: int, recycler: GroupRecycler
    ) -> None:
        self.segments = self._lent = segments
        first = segments[0]
        self.memory = first.room if len(segments) == 1 else first.run(len(segments))
        self.length = length
        self.recycler = recycler
        self._references = 1

    @property
    def payload(self) -> memoryview:
        """View of the bytes; valid until the last reference is recycled.

        Raises:
            BufferAlreadyRecycled: After the last :meth:`recycle`.
        """
        if self._references < 1:
            raise BufferAlreadyRecycled("payload")
        return self.memory[: self.length]

    def extend(self, other: "BufferGroup") -> bool:
        """Copy another group's bytes behind these; False if they do not fit, or are being read."""
        start = self.length
        end = start + other.length
        segments = self.segments
        if end > len(segments) * segments[0].size_bytes or self._references != 1:
            return False
        self.memory[start:end] = other.payload
        self.length = end
        return True


def runs_of_neighbours(segments: list[MemorySegment]) -> Iterator[list[MemorySegment]]:
    """Cut segments into runs of neighbours, in order; they are sorted in place."""
    segments.sort(key=_index)
    begin = 0
    for end in range(1, len(segments) + 1):
        if end == len(segments) or segments[end].index != segments[end - 1].index + 1:
            yield segments[begin:end]
            begin = end


def group_neighbours(
    segments: list[MemorySegment], length: int, recycler: GroupRecycler
) -> list[BufferGroup]:
    """Make groups that together hold a payload, as few as there are runs of neighbours.

    Args:
        segments: As many as the payload needs; sorted in place.
        length: Bytes of payload; all segments but the last one will be full.
        recycler: Of each group.
    """
    segments.sort(key=_index)
    if segments[-1].index - segments[0].index == len(segments) - 1:
        return [BufferGroup(segments, length, recycler)]
    groups: list[BufferGroup] = []
    size = segments[0].size_bytes
    for run in runs_of_neighbours(segments):
        count = min(length, len(run) * size)
        groups.append(BufferGroup(run, count, recycler))
        length -= count
    return groups


def memory_to_receive(groups: list[BufferGroup]) -> memoryview | list[memoryview]:
    """Say where the payload of groups is received: in pieces of which all but the last are full.

    The last piece has spare bytes behind it (:class:`protocol.framing.FrameDecoder`).
    """
    last = groups[-1].memory
    if len(groups) == 1:
        return last
    return [*(group.payload for group in groups[:-1]), last]
