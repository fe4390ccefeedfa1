"""Writing a buffer that is read while it is being filled: the producer's half.

::

    segment   |#########################|------------------|..............|
              0          committed_bytes|           written|              |capacity_bytes
               consumers may read this    appended, unseen

One producer appends and commits; any number of :class:`~shuffle.partition.buffer_consumer.
BufferConsumer` read what is committed, each at its own position. The segment goes back to its pool
when the builder is finished, every consumer closed and every slice recycled.
"""

from collections.abc import Callable

from shuffle.memory import NetworkBuffer
from shuffle.partition.buffer_consumer import BufferConsumer
from shuffle.partition.errors import BufferBuilderFinished


class BufferBuilder:
    """Fills one buffer. It owns one reference to the buffer and gives it up when it is finished.

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
        """Bytes that fit, less after :meth:`trim`."""
        self.committed_bytes = 0
        """Bytes that consumers may read."""
        self.is_finished = False
        """True once nothing more will be appended. Adding something behind the buffer in its
        subpartition finishes it too, so look here before appending."""
        self._buffer = buffer
        self._memory = segment.memory
        self._written = 0
        self._finish_listeners: list[Callable[[], None]] = []

    def append(self, data: bytes | bytearray | memoryview) -> int:
        """Copy as much as fits; consumers see it after :meth:`commit`.

        Args:
            data: Bytes, or a contiguous view of bytes.

        Returns:
            How many bytes were taken: all of them, or fewer when the buffer is full now.

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
        """Let consumers see all that was appended."""
        self.committed_bytes = self._written

    def append_and_commit(self, data: bytes | bytearray | memoryview) -> int:
        """Append, and commit at once; see :meth:`append`."""
        count = self.append(data)
        self.committed_bytes = self._written
        return count

    def finish(self) -> int:
        """Commit, end writing and give up the builder's reference; idempotent.

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
        """Give the builder up: the same as :meth:`finish`, for one that is not wanted any more."""
        self.finish()

    @property
    def is_full(self) -> bool:
        """Whether nothing more fits; a full builder is still to be finished."""
        return self._written >= self.capacity_bytes

    @property
    def writable_bytes(self) -> int:
        """Bytes that still fit."""
        return self.capacity_bytes - self._written

    def trim(self, size_bytes: int) -> None:
        """Make the buffer smaller, down to what is written; it never grows.

        Args:
            size_bytes: The new capacity wanted, at least 1.
        """
        self.capacity_bytes = min(self.capacity_bytes, max(size_bytes, self._written, 1))

    def create_consumer(self) -> BufferConsumer:
        """Make a consumer that reads from what is committed by now on.

        Raises:
            BufferBuilderFinished: The builder is finished.
        """
        return self._create_consumer(self.committed_bytes)

    def create_consumer_from_beginning(self) -> BufferConsumer:
        """Make a consumer that reads the buffer from its first byte.

        Raises:
            BufferBuilderFinished: The builder is finished.
        """
        return self._create_consumer(0)

    def add_finish_listener(self, listener: Callable[[], None]) -> None:
        """Have a callback called once, inside :meth:`finish`, when the buffer is complete."""
        self._finish_listeners.append(listener)

    def _create_consumer(self, position: int) -> BufferConsumer:
        if self.is_finished:
            raise BufferBuilderFinished("create_consumer()")
        return BufferConsumer(self._buffer.retain(), self, position)

    def __repr__(self) -> str:
        state = "finished" if self.is_finished else "open"
        return (
            f"<BufferBuilder {state}, {self.committed_bytes} of {self.capacity_bytes} bytes"
            f" committed>"
        )
