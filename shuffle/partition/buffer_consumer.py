"""Reading a buffer that is still being filled: the consumer's half.

Every consumer, every copy of one and every slice it builds holds a reference to the buffer of its
own, so that each can be given up without regard to the others.
"""

from typing import TYPE_CHECKING, Final

from protocol.messages import DATA
from shuffle.errors import PartitionError
from shuffle.memory import BufferAlreadyRecycled, NetworkBuffer

if TYPE_CHECKING:
    from shuffle.partition.buffer_builder import BufferBuilder


class BufferSlice:
    """Some bytes of a buffer, with one reference to it. To be recycled exactly once.

    Attributes:
        payload: The bytes, uncopied; they stay as they are until :meth:`recycle`.
        data_type: ``DATA``; what a slice of a segment is.
    """

    __slots__ = ("_buffer", "data_type", "payload")

    def __init__(self, buffer: NetworkBuffer, payload: memoryview, data_type: int) -> None:
        self.payload: Final = payload
        self.data_type: Final = data_type
        self._buffer: NetworkBuffer | None = buffer

    @property
    def length(self) -> int:
        """Bytes of the slice."""
        return len(self.payload)

    @property
    def is_shared(self) -> bool:
        """Whether somebody else has a reference to the buffer, so that it must stay as it is."""
        return self._buffer is None or self._buffer.reference_count > 1

    def recycle(self) -> None:
        """Give the reference up.

        Raises:
            BufferAlreadyRecycled: It was given up before. (Passing this on to the buffer would take
                the reference of another slice.)
        """
        buffer = self._buffer
        if buffer is None:
            raise BufferAlreadyRecycled("recycle() of a slice")
        self._buffer = None
        buffer.recycle()


class BufferConsumer:
    """A reading position on a buffer. Made by a builder, or by :func:`finished_consumer`.

    Args:
        buffer: The buffer; the consumer takes over one reference.
        builder: Who fills it; None for a buffer that is complete.
        position: Where to begin to read, in bytes.
        data_type: What the buffer holds.
    """

    __slots__ = (
        "_buffer",
        "_builder",
        "_position",
        "data_type",
        "partial_record_bytes",
    )

    def __init__(
        self,
        buffer: NetworkBuffer,
        builder: "BufferBuilder | None",
        position: int = 0,
        data_type: int = DATA,
    ) -> None:
        self.data_type = data_type
        self.partial_record_bytes = 0
        """Bytes at the start that end a record begun in an earlier buffer."""
        self._buffer: NetworkBuffer | None = buffer
        self._builder = builder
        self._position = position

    @property
    def builder(self) -> "BufferBuilder | None":
        """Who fills the buffer; None if it was complete from the start."""
        return self._builder

    @property
    def is_finished(self) -> bool:
        """Whether the buffer is complete: what is unread now is all that will ever come."""
        builder = self._builder
        return builder is None or builder.is_finished

    @property
    def unread_bytes(self) -> int:
        """Committed bytes that this consumer has not read."""
        buffer = self._buffer
        if buffer is None:
            return 0
        builder = self._builder
        committed = buffer.length if builder is None else builder.committed_bytes
        return committed - self._position

    @property
    def has_unread(self) -> bool:
        """Whether there is something to read."""
        return self.unread_bytes > 0

    @property
    def is_closed(self) -> bool:
        """Whether :meth:`close` or :meth:`build_last` was called."""
        return self._buffer is None

    def build(self) -> BufferSlice:
        """Take what is committed and unread, perhaps nothing, and move behind it.

        Raises:
            BufferAlreadyRecycled: The consumer is closed.
        """
        buffer = self._buffer
        if buffer is None:
            raise BufferAlreadyRecycled("build()")
        start = self._position
        builder = self._builder
        end = self._position = buffer.length if builder is None else builder.committed_bytes
        return BufferSlice(buffer.retain(), buffer.segment.memory[start:end], self.data_type)

    def build_last(self) -> BufferSlice:
        """Take what is committed and unread and close the consumer: its reference moves on.

        Raises:
            BufferAlreadyRecycled: The consumer is closed.
        """
        buffer = self._buffer
        if buffer is None:
            raise BufferAlreadyRecycled("build_last()")
        self._buffer = None
        builder = self._builder
        end = buffer.length if builder is None else builder.committed_bytes
        return BufferSlice(buffer, buffer.segment.memory[self._position : end], self.data_type)

    def copy(self) -> "BufferConsumer":
        """Make another consumer at the same position, which then moves by itself.

        Raises:
            BufferAlreadyRecycled: The consumer is closed.
        """
        buffer = self._buffer
        if buffer is None:
            raise BufferAlreadyRecycled("copy()")
        other = BufferConsumer(buffer.retain(), self._builder, self._position, self.data_type)
        other.partial_record_bytes = self.partial_record_bytes
        return other

    def skip(self, count: int) -> None:
        """Pass over bytes as if they had been read.

        Raises:
            PartitionError: Fewer are committed and unread.
        """
        if not 0 <= count <= self.unread_bytes:
            raise PartitionError(
                "A consumer cannot skip more than is unread", value=count, limit=self.unread_bytes
            )
        self._position += count

    def extend(self, data: memoryview, most_bytes: int) -> bool:
        """Copy bytes behind those of a complete buffer that is this consumer's alone.

        Args:
            data: What to copy.
            most_bytes: What the buffer may hold then.

        Returns:
            False, with nothing done, if somebody else sees the buffer or not all of them fit.
        """
        buffer = self._buffer
        if self._builder is not None or buffer is None or buffer.reference_count > 1:
            return False
        start = buffer.length
        end = start + len(data)
        if end > most_bytes or end > buffer.segment.size_bytes:
            return False
        buffer.segment.memory[start:end] = data
        buffer.length = end
        return True

    def close(self) -> None:
        """Give the consumer's reference up; idempotent. Slices built stay valid."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            buffer.recycle()

    def __repr__(self) -> str:
        state = "finished" if self.is_finished else "open"
        return f"<BufferConsumer {state}, {self.unread_bytes} bytes unread>"


def finished_consumer(buffer: NetworkBuffer, data_type: int = DATA) -> BufferConsumer:
    """Make a consumer of a complete buffer; it takes over the caller's reference."""
    return BufferConsumer(buffer, None, 0, data_type)
