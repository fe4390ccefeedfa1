"""Buffers: lent segments with a length and a reference count; the last recycle sends them home.

A :class:`NetworkBuffer` is one segment. A :class:`BufferGroup` is a run of neighbouring segments,
seen as one piece of memory, which a payload was received into. :class:`ScratchMemory` receives
payloads that nobody takes.
"""

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Final, Generic, Self, TypeAlias, TypeVar

from ...protocol.limits import RECEIVE_TAIL_BYTES
from ..errors import BufferAlreadyRecycled, InvalidPoolSize
from .segment import MemorySegment

Lent = TypeVar("Lent")


class ReferenceCounted(Generic[Lent]):
    """Lent memory with a reference count.

    Each buffer that comes or goes makes one. To save a call, the class has no constructor: a
    subclass sets the attributes in its own.

    Attributes:
        recycler: Called with the lent memory when the count reaches 0.
    """

    __slots__ = ("_lent", "_references", "recycler")

    _lent: Lent
    _references: int  # starts at 1
    recycler: Callable[[Lent], None]

    @property
    def reference_count(self) -> int:
        """Number of references that are still to be recycled."""
        return self._references

    def retain(self) -> Self:
        """Add a reference, which the new holder must recycle; return this object.

        Raises:
            BufferAlreadyRecycled: The last reference is gone; the memory may be lent again already.
        """
        if self._references < 1:
            raise BufferAlreadyRecycled("retain()")
        self._references += 1
        return self

    def recycle(self) -> None:
        """Drop one reference; with the last one the memory goes to the recycler.

        Raises:
            BufferAlreadyRecycled: The last reference is gone already.
        """
        references = self._references - 1
        if references < 0:
            raise BufferAlreadyRecycled("recycle()")
        self._references = references
        if references == 0:
            self.recycler(self._lent)

    def release(self) -> None:
        """Drop one reference, like :meth:`recycle`: threads use buffers as they use extents."""
        self.recycle()


Recycler: TypeAlias = Callable[[MemorySegment], None]
"""Takes the segment when the last reference to its buffer is recycled."""


class NetworkBuffer(ReferenceCounted[MemorySegment]):
    """Bytes in a segment, shared by reference counting; the count starts at 1.

    Attributes:
        segment: The memory; it must not be used after the last :meth:`recycle`.
        length: Bytes of payload, 0 to ``segment.size_bytes``; the one that fills the segment sets
            it.
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
            InvalidPoolSize: ``length`` is outside the segment; a slice would cut in silence.
        """
        segment = self.segment
        length = self.length
        if self._references < 1:
            raise BufferAlreadyRecycled("payload")
        if not 0 <= length <= segment.size_bytes:
            raise InvalidPoolSize(
                "The length of a network buffer is outside its segment",
                value=length,
                limit=segment.size_bytes,
            )
        return segment.memory[:length]

    def __repr__(self) -> str:
        return (
            f"<NetworkBuffer {self.length} bytes in segment {self.segment.index},"
            f" {self._references} references>"
        )


GroupRecycler: TypeAlias = Callable[[Sequence[MemorySegment]], None]
"""Takes the segments when the last reference to their group is recycled."""

_index = attrgetter("index")


class BufferGroup(ReferenceCounted[Sequence[MemorySegment]]):
    """Bytes in neighbouring segments, shared by reference counting; the count starts at 1.

    Args:
        segments: Neighbours in the pool's mapping, in order; each is one buffer and one credit.
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
        """Append another group's bytes; return False if they do not fit or this one is in use."""
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
        segments: As many segments as the payload needs; sorted in place.
        length: Bytes of payload; all segments but the last one will be full.
        recycler: Recycler of each group.
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
    """Return the memory that receives the payload of groups: all pieces but the last are full.

    The last piece has spare bytes behind it (:class:`sluice.protocol.framing.FrameDecoder`).
    """
    last = groups[-1].memory
    if len(groups) == 1:
        return last
    return [*(group.payload for group in groups[:-1]), last]


SCRATCH_BYTES: Final = 32 * 1024
"""Size of the piece of memory that receives a discarded payload, again and again."""


class ScratchMemory:
    """Memory of one connection for payloads that nobody takes; there is none before the first."""

    __slots__ = ("_memory",)

    def __init__(self) -> None:
        self._memory: memoryview | None = None

    def take(self, length: int) -> memoryview | list[memoryview]:
        """Return memory that receives ``length`` bytes: the same piece as often as needed."""
        memory = self._memory
        if memory is None:
            memory = self._memory = memoryview(bytearray(SCRATCH_BYTES + RECEIVE_TAIL_BYTES))
        if length <= SCRATCH_BYTES:
            return memory
        return [memory[:SCRATCH_BYTES]] * ((length - 1) // SCRATCH_BYTES) + [memory]
