"""One buffer that is read while it is being filled: its builder, its consumers and their slices.

::

    segment   |#########################|------------------|..............|
              0          committed_bytes|           written|              |capacity_bytes
               consumers may read this    appended, unseen

One producer appends and commits; any number of :class:`BufferConsumer` read the committed bytes,
each at its own position. The builder, every consumer, every copy of a consumer and every slice that
a consumer builds hold a reference to the buffer of their own, so that each can be given up without
regard to the others. The segment goes back to its pool when the builder is finished, every consumer
closed and every slice recycled.
"""

from collections.abc import Callable
from typing import Final

from ...protocol.schema import DATA
from ..errors import BufferBuilderFinished
from ..memory import BufferAlreadyRecycled, NetworkBuffer


class BufferBuilder:
    """Fills one buffer. It owns one reference to the buffer and releases it when it is finished.

    Args:
        buffer: An empty buffer; the builder takes over its reference.
    """

    __slots__ = (
        "_buffer",
        "_finish_listeners",
        "_memory",
        "_written",
        "capacity_bytes",
        "committed_bytes",
        "is_finished",
    )

    def __init__(self, buffer: NetworkBuffer) -> None:
        segment = buffer.segment
        self.capacity_bytes = segment.size_bytes
        """Bytes that fit."""
        self.committed_bytes = 0
        """Bytes that consumers may read."""
        self.is_finished = False
        """True once nothing more can be appended. A buffer or event that is added behind this one
        finishes it too, so look here before appending."""
        self._buffer = buffer
        self._memory = segment.memory
        self._written = 0
        self._finish_listeners: list[Callable[[], None]] = []

    def append(self, data: bytes | bytearray | memoryview) -> int:
        """Copy as many bytes as fit; consumers see them after :meth:`commit`.

        Args:
            data: Bytes, or a contiguous view of bytes.

        Returns:
            The number of bytes taken: all of them, or fewer when the buffer is full now.

        Raises:
            BufferBuilderFinished: The builder is finished.
        """
        if self.is_finished:
            raise BufferBuilderFinished("append()")
        written = self._written
        count = len(data)
        room = self.capacity_bytes - written
        if count > room:
            if room == 0:
                return 0
            count = room
            data = memoryview(data)[:room]
        end = written + count
        self._memory[written:end] = data
        self._written = end
        return count

    def commit(self) -> None:
        """Let consumers see all appended bytes."""
        self.committed_bytes = self._written

    def append_and_commit(self, data: bytes | bytearray | memoryview) -> int:
        """Append, and commit at once; see :meth:`append`."""
        count = self.append(data)
        self.committed_bytes = self._written
        return count

    def finish(self) -> int:
        """Commit, end writing and release the builder's reference; idempotent.

        Returns:
            The bytes of the buffer, as committed.
        """
        if self.is_finished:
            return self.committed_bytes
        self.committed_bytes = self._written
        self.is_finished = True
        listeners, self._finish_listeners = self._finish_listeners, []
        buffer = self._buffer
        buffer.length = self._written
        try:
            for listener in listeners:
                listener()
        finally:
            buffer.recycle()
        return self.committed_bytes

    def recycle(self) -> None:
        """Stop filling the builder; the same as :meth:`finish`."""
        self.finish()

    @property
    def is_full(self) -> bool:
        """Whether nothing more fits; a full builder is still to be finished."""
        return self._written >= self.capacity_bytes

    @property
    def writable_bytes(self) -> int:
        """Bytes that still fit."""
        return self.capacity_bytes - self._written

    def create_consumer(self) -> "BufferConsumer":
        """Make a consumer that reads the buffer from its first byte.

        Raises:
            BufferBuilderFinished: The builder is finished.
        """
        if self.is_finished:
            raise BufferBuilderFinished("create_consumer()")
        return BufferConsumer(self._buffer.retain(), self)

    def add_finish_listener(self, listener: Callable[[], None]) -> None:
        """Register a callback that :meth:`finish` calls once, when the buffer is complete."""
        self._finish_listeners.append(listener)

    def __repr__(self) -> str:
        state = "finished" if self.is_finished else "open"
        return (
            f"<BufferBuilder {state}, {self.committed_bytes} of {self.capacity_bytes} bytes"
            f" committed>"
        )


class BufferSlice:
    """A range of a buffer's bytes, with one reference to the buffer. Recycle it exactly once.

    Attributes:
        payload: The bytes, uncopied; they stay as they are until :meth:`recycle`.
        data_type: Type of the bytes, ``DATA``.
    """

    __slots__ = ("_buffer", "data_type", "payload")

    def __init__(self, buffer: NetworkBuffer, payload: memoryview, data_type: int) -> None:
        self.payload: Final = payload
        self.data_type: Final = data_type
        self._buffer: NetworkBuffer | None = buffer

    @property
    def length(self) -> int:
        """Length of the slice in bytes."""
        return len(self.payload)

    @property
    def buffer(self) -> NetworkBuffer:
        """The buffer of the bytes.

        Raises:
            BufferAlreadyRecycled: The slice was recycled.
        """
        if self._buffer is None:
            raise BufferAlreadyRecycled("buffer of a slice")
        return self._buffer

    @property
    def is_shared(self) -> bool:
        """Whether another reference to the buffer exists, so that its bytes must not change."""
        return self._buffer is None or self._buffer.reference_count > 1

    def recycle(self) -> None:
        """Release the reference.

        Raises:
            BufferAlreadyRecycled: It was released before. (The buffer would release the reference
                of another slice instead.)
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
        builder: Fills the buffer; None if the buffer is complete.
        position: Offset of the first byte to read.
        data_type: Type of the buffer's bytes.
    """

    __slots__ = (
        "_buffer",
        "_builder",
        "_position",
        "data_type",
    )

    def __init__(
        self,
        buffer: NetworkBuffer,
        builder: "BufferBuilder | None",
        position: int = 0,
        data_type: int = DATA,
    ) -> None:
        self.data_type = data_type
        self._buffer: NetworkBuffer | None = buffer
        self._builder = builder
        self._position = position

    @property
    def builder(self) -> "BufferBuilder | None":
        """The builder that fills the buffer; None if it was complete from the start."""
        return self._builder

    @property
    def is_finished(self) -> bool:
        """Whether the buffer is complete, so that no byte comes after those unread now."""
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
        """Whether committed bytes are unread."""
        return self.unread_bytes > 0

    @property
    def is_closed(self) -> bool:
        """Whether :meth:`close` or :meth:`build_last` was called."""
        return self._buffer is None

    def build(self) -> BufferSlice:
        """Take the committed, unread bytes, perhaps none, and move behind them.

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
        """Take the committed, unread bytes and close the consumer; the slice gets its reference.

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
        """Make another consumer at the same position; from then on each moves by itself.

        Raises:
            BufferAlreadyRecycled: The consumer is closed.
        """
        buffer = self._buffer
        if buffer is None:
            raise BufferAlreadyRecycled("copy()")
        return BufferConsumer(buffer.retain(), self._builder, self._position, self.data_type)

    def extend(self, data: memoryview) -> bool:
        """Copy bytes behind those of a complete buffer, if only this consumer refers to it.

        Args:
            data: The bytes to copy.

        Returns:
            False, with nothing copied, if others refer to the buffer or the bytes do not fit.
        """
        buffer = self._buffer
        if self._builder is not None or buffer is None or buffer.reference_count > 1:
            return False
        start = buffer.length
        end = start + len(data)
        if end > buffer.segment.size_bytes:
            return False
        buffer.segment.memory[start:end] = data
        buffer.length = end
        return True

    def close(self) -> None:
        """Release the consumer's reference. Idempotent; slices built stay valid."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            buffer.recycle()

    def __repr__(self) -> str:
        state = "finished" if self.is_finished else "open"
        return f"<BufferConsumer {state}, {self.unread_bytes} bytes unread>"


def finished_consumer(buffer: NetworkBuffer, data_type: int = DATA) -> BufferConsumer:
    """Make a consumer of a complete buffer; it takes over the caller's reference."""
    return BufferConsumer(buffer, None, 0, data_type)
