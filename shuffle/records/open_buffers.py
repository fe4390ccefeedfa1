"""The buffers that a record writer is filling."""

from typing import TYPE_CHECKING, Final

from ..partition.result_partition_writer import ALL_SUBPARTITIONS, ResultPartitionWriter
from .framing import LENGTH_BYTES, SerializationResult, prefix_of
from .spanning_serializer import SpanningRecordSerializer

if TYPE_CHECKING:
    from ..partition.shared_buffer import BufferBuilder


_JOINED_BYTES: Final = 1024
"""Records below this length are copied once more, to join their prefix: that costs less than an
append of its own."""


class OpenBuffers:
    """The buffers that a record writer is filling: one for each subpartition, or one for all.

    At any time either unicast or broadcast buffers are open, never both. Before a buffer of the
    other kind is taken, those of this kind are finished: that keeps the order in each channel, and
    returns their memory before the writer may have to wait for more.

    Args:
        partition: Where the buffers come from and go.

    Attributes:
        builders: By subpartition; the last entry, at index ``ALL_SUBPARTITIONS``, is for broadcast.
            The partition may have finished one: check before appending.
    """

    __slots__ = ("_broadcasting", "_partition", "builders")

    def __init__(self, partition: ResultPartitionWriter) -> None:
        self._partition = partition
        self.builders: Final[list[BufferBuilder | None]] = [None] * (
            partition.num_subpartitions + 1
        )
        self._broadcasting = False

    def switch(self, subpartition: int) -> None:
        """Finish the buffers that must not be open while one of ``subpartition`` is filled."""
        broadcasting = subpartition == ALL_SUBPARTITIONS
        if broadcasting is not self._broadcasting:
            self.finish_all()
            self._broadcasting = broadcasting

    def append(self, payload: bytes | memoryview, subpartition: int) -> bool:
        """Frame a record into the open buffer of a subpartition, if it leaves room there.

        Returns:
            False, with nothing copied, if it does not fit: then it may have to be cut.
        """
        builder = self.builders[subpartition]
        length = len(payload)
        if (
            builder is None
            or builder.is_finished
            or length + LENGTH_BYTES >= builder.writable_bytes
        ):
            return False
        if length < _JOINED_BYTES:
            builder.append_and_commit(prefix_of(length) + payload)
        else:
            builder.append(prefix_of(length))
            builder.append_and_commit(payload)
        return True

    def copy(self, spanning: SpanningRecordSerializer, subpartition: int) -> bool:
        """Copy the serializer's bytes into buffers.

        Returns:
            True if all of it is copied; False if another buffer is needed and there is none now.

        Raises:
            SluiceError: The partition's failure.
        """
        builder = self.builders[subpartition]
        if builder is not None and not builder.is_finished:
            result = spanning.copy_to(builder)
            if result.is_full_buffer:
                self._finish(subpartition)
            if result.is_full_record:
                return True
        while True:
            builder = self._partition.request_builder(subpartition)
            if builder is None:
                return False
            if self.copy_to_new(spanning, builder, subpartition).is_full_record:
                return True

    def copy_to_new(
        self, spanning: SpanningRecordSerializer, builder: "BufferBuilder", subpartition: int
    ) -> SerializationResult:
        """Fill a new buffer from the serializer, and add it to the partition.

        Raises:
            SluiceError: The partition's failure.
        """
        consumer = builder.create_consumer()
        result = spanning.copy_to(builder)
        self.builders[subpartition] = builder
        if result.is_full_buffer:
            self._finish(subpartition)
        # Added after it is filled: the partition sees that it is full, and needs no flush.
        self._partition.add_consumer(consumer, subpartition)
        return result

    def finish_before_event(self, subpartition: int) -> None:
        """Finish the buffers that an event to this subpartition must not overtake."""
        if subpartition == ALL_SUBPARTITIONS or self._broadcasting:
            self.finish_all()
        else:
            self._finish(subpartition)

    def finish_all(self) -> None:
        """Finish all buffers, full or not."""
        if self._broadcasting:
            self._finish(ALL_SUBPARTITIONS)
            return
        for subpartition in range(len(self.builders) - 1):
            self._finish(subpartition)

    def _finish(self, subpartition: int) -> None:
        builder = self.builders[subpartition]
        if builder is not None:
            self.builders[subpartition] = None
            builder.finish()
