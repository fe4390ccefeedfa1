"""A result partition as the Python API shows it."""

from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from ...protocol.errors import SluiceError
from ..errors import PartitionReleased
from ..partition.result_partition_writer import BufferWritingPartition
from .partition_location import PartitionLocation

if TYPE_CHECKING:
    from ..records.record_writer import RecordWriter
    from ..records.selectors import ChannelSelector
    from ..records.serializers import ValueSerializer

T = TypeVar("T")

CONSUMED_SECONDS: Final = 600.0
"""Default deadline of a wait for the readers."""


class ResultPartition:
    """One task's output, open for writing. Leave its context to finish it, or raise to fail it.

    Args:
        location: Name and place of the partition; send it to the consumers.
        writer: Takes the buffers.
        buffer_timeout_seconds: The record writer's.
    """

    def __init__(
        self,
        location: PartitionLocation,
        writer: BufferWritingPartition,
        buffer_timeout_seconds: float,
    ) -> None:
        self.location = location
        self.writer = writer
        """The ``ResultPartitionWriter``; use it for buffers and events."""
        self._buffer_timeout_seconds = buffer_timeout_seconds
        self._records: RecordWriter[object] | None = None

    def record_writer(
        self, serializer: "ValueSerializer[T]", selector: "ChannelSelector[T] | None" = None
    ) -> "RecordWriter[T]":
        """Make the partition's only record writer, which ends with the partition."""
        from ..records.record_writer import RecordWriter  # not needed to write buffers

        writer = RecordWriter(
            self.writer, serializer, selector, buffer_timeout_seconds=self._buffer_timeout_seconds
        )
        self._records = writer  # type: ignore[assignment]
        return writer

    async def emit_buffer(self, data: bytes | memoryview, subpartition: int) -> None:
        """Write bytes to a subpartition, or to ``ALL_SUBPARTITIONS``, as complete buffers.

        It waits if there is no memory: that is back pressure.

        Raises:
            SluiceError: Why the partition takes nothing more.

        Cancellation: some of the bytes may have been written.
        """
        view = memoryview(data)
        while len(view):
            builder = self.writer.request_builder(subpartition)
            if builder is None:
                builder = await self.writer.wait_for_builder(subpartition)
            self.writer.add_consumer(builder.create_consumer(), subpartition)
            view = view[builder.append_and_commit(view) :]
            builder.finish()

    async def finish(self) -> None:
        """End the partition behind everything written so far; see the writer's ``finish``."""
        if self._records is not None:
            records, self._records = self._records, None
            await records.finish()
        else:
            await self.writer.finish()

    async def wait_consumed(self, timeout_seconds: float = CONSUMED_SECONDS) -> None:
        """Wait until the readers of a finished pipelined partition have reached its end.

        Call it after the partition's context, while the client, and an embedded TaskManager, are
        still open. A reader on another host has reached the end when the TaskManager has given all
        of it to the connection.

        Args:
            timeout_seconds: Deadline.

        Raises:
            InvalidRequest: The partition is stored.
            DeadlineExceeded: The readers have not reached the end in time; it may be called again.
            SHUTTING_DOWN: The TaskManager stopped before.
            SluiceError: The partition failed or is released, a reader left before the end, or the
                connection was lost.

        Cancellation: safe; the partition stays with its readers.
        """
        await self.writer.wait_consumed(timeout_seconds)

    def fail(self, error: SluiceError) -> None:
        """End the partition with an error. Idempotent."""
        if self._records is not None:
            self._records.fail(error)
        else:
            self.writer.fail(error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                await self.finish()
            elif isinstance(error, SluiceError):
                self.fail(error)
            else:
                self.fail(
                    PartitionReleased("Its task failed", value=repr(error), remedy="Run it again")
                )
        finally:
            self.writer.close()
            await self.writer.wait_closed()
