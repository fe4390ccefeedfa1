"""Reading committed map outputs: the view of a stored partition.

Map outputs are read in the order of the request, so that a reader gets the same bytes in the same
order wherever the tiers hold them. The requested range of every region is one slice; that of a
broadcast region is read once for each subpartition.

Slices of the memory tier are sent straight from the mapping, without a copy, if they have
MIN_PIECE_BYTES; smaller ones are joined densely, so that a thousand blocks of 1 KB fill 32
buffers of 32 KiB. A group of buffers leaves room at its end, so that its receiver needs one read of
the socket for it and for the head of the next message.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ....protocol.errors import SluiceError
from ....protocol.events import encode_end_of_partition
from ....protocol.limits import MAX_U32
from ....protocol.schema import DATA, EVENT
from ...names import ShuffleKey
from ...partition.view import DataListener, OutgoingBuffer
from ..store.tiers.tier import Extent

MIN_PIECE_BYTES: Final = 8 * 1024
"""A copy of this length takes about as long as one more piece of a message."""

MAX_COPIED_BYTES: Final = 256 * 1024
"""Most bytes of a message that are copied: they are memory that no budget counts."""


class ReadSizes(NamedTuple):
    """The units of one view, in bytes.

    Attributes:
        segment_bytes: Bytes to read into one segment from the disk tier.
        buffer_bytes: Largest buffer, or group of buffers, to give.
        credit_bytes: Bytes that one credit pays for: a buffer of a group.
    """

    segment_bytes: int
    buffer_bytes: int
    credit_bytes: int


class Slice(NamedTuple):
    """Bytes of an extent, to be read ``times`` times before the next slice."""

    extent: Extent
    offset: int
    length: int
    times: int


class StoredPartitionView:
    """A view over slices that all lie in memory, and the base of one over slices of any tier.

    Args:
        shuffle: The shuffle that is read.
        slices: What to read, in order; the view takes over the references to their extents.
        sizes: How much a segment, a buffer and a credit stand for.
        listener: Called when the view has something again.
        on_released: Called with the view when it is released.
    """

    is_local = True

    def __init__(
        self,
        shuffle: ShuffleKey,
        slices: Sequence[Slice],
        sizes: ReadSizes,
        listener: DataListener,
        on_released: "Callable[[StoredPartitionView], None]",
    ) -> None:
        self.failure: SluiceError | None = None
        self.shuffle = shuffle
        self._on_released = on_released
        self._buffer_size_bytes = self._message_bytes = sizes.buffer_bytes
        self._credit_bytes = sizes.credit_bytes
        self._listener = listener
        self._slices = slices
        self._left_bytes = sum(each.length * each.times for each in slices)
        self._total_bytes = self._left_bytes
        self._total_buffers = 0
        self._index = 0
        self._used = 0  # bytes taken from the slice at the index
        self._copied_bytes = 0  # of the message under way
        self._repeated = 0  # times that this slice was taken before
        self._end_sent = False
        self._released = False

    @property
    def slices(self) -> Sequence[Slice]:
        """The slices that the view reads; empty after its release."""
        return self._slices

    @property
    def backlog(self) -> int:
        """Data buffers still to come, if they are full; at most the wire's largest number."""
        return min(self._buffers_of(self._left_bytes), MAX_U32)

    @property
    def holds_segments(self) -> bool:
        """Whether bytes have been read, or are being read, into segments and not taken."""
        return False

    def limit_message(self, buffers: int) -> None:
        """Give at most so many buffers together; more may be read ahead."""
        self._message_bytes = min(self._buffer_size_bytes, buffers * self._credit_bytes)

    def is_available(self, credit: int) -> bool:
        """True if there is a buffer for the credit or the end, or if a read can begin."""
        if self._end_sent or self._released:
            return False
        return self.failure is not None or credit > 0 or self._left_bytes == 0

    def next_buffer(self, credit: int) -> OutgoingBuffer | None:
        """Take the next buffer; None while a read is under way, or without credit."""
        if self.failure is not None:
            raise self.failure
        if self._end_sent or self._released:
            return None
        if not self._left_bytes:
            return self._end()
        self._copied_bytes = 0
        return self._next_from_memory(credit) if credit > 0 else None

    def take_more(self, most_bytes: int) -> OutgoingBuffer | None:
        """Take data that is in memory, for a message with the data taken before."""
        if not self._left_bytes or self.failure is not None or self._released:
            return None
        if self._copied_bytes >= MAX_COPIED_BYTES:
            return None
        return self._take_from_memory(most_bytes)

    def _end(self) -> OutgoingBuffer:
        self._end_sent = True
        event = encode_end_of_partition(self._total_bytes, self._total_buffers)
        return OutgoingBuffer(event, None, EVENT)

    def fail(self, error: SluiceError) -> None:
        """Let the reader have an error in place of what is left."""
        if self.failure is None and not self._end_sent and not self._released:
            self.failure = error
            self._listener()

    def release(self) -> None:
        """Release what the view holds. Idempotent."""
        if self._released:
            return
        self._released = True
        self._on_released(self)
        for each in self._slices:
            each.extent.release()
        self._slices = []
        self._left_bytes = 0

    def _buffers_of(self, length: int) -> int:
        return -(-length // self._credit_bytes)

    def _next_from_memory(self, credit: int) -> OutgoingBuffer:
        return self._take_from_memory(min(self._message_bytes, credit * self._credit_bytes))

    def _take_from_memory(self, most_bytes: int) -> OutgoingBuffer:
        extent, offset, length, _ = self._slices[self._index]
        left = length - self._used
        if left >= MIN_PIECE_BYTES or left >= most_bytes or self._left_bytes == left:
            count = min(most_bytes, left)
            start = offset + self._used
            self._total_buffers += self._buffers_of(count)
            piece = mapped(extent)[start : start + count]
            extent.retain()
            self._advance(count)
            return OutgoingBuffer(piece, extent.release, DATA)
        joined = self._joined_from_memory(min(most_bytes, MAX_COPIED_BYTES - self._copied_bytes))
        self._copied_bytes += len(joined)
        self._total_buffers += self._buffers_of(len(joined))
        return OutgoingBuffer(joined, None, DATA)

    def _joined_from_memory(self, size: int) -> bytes:
        """Join the next small slices of the memory tier; each map output may have one."""
        pieces: list[memoryview] = []
        room = size
        slices = self._slices
        index, used, repeated = self._index, self._used, self._repeated
        while room and index < len(slices):
            extent, offset, length, times = slices[index]
            if not extent.in_memory or length - used >= MIN_PIECE_BYTES:
                break
            start = offset + used
            count = min(length - used, room)
            pieces.append(mapped(extent)[start : start + count])
            room -= count
            used += count
            if used == length:
                used = 0
                repeated += 1
                if repeated == times:
                    repeated = 0
                    index += 1
        self._index, self._used, self._repeated = index, used, repeated
        self._left_bytes -= size - room
        return b"".join(pieces)

    def _advance(self, count: int) -> None:
        self._left_bytes -= count
        self._used += count
        current = self._slices[self._index]
        if self._used == current.length:
            self._used = 0
            self._repeated += 1
            if self._repeated == current.times:
                self._repeated = 0
                self._index += 1


def mapped(extent: Extent) -> memoryview:
    """Return the bytes of an extent in memory.

    Raises:
        SluiceError: It was released.
    """
    view = extent.view
    if view is None:
        raise SluiceError("An extent of the memory tier has no mapping", value=repr(extent))
    return view
