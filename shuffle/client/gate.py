"""An input gate as the Python API shows it."""

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self, TypeVar

from shuffle.client.block_source import BlockSource
from shuffle.gate.input_gate import BufferOrEvent, InputGate
from shuffle.records.record_reader import ChannelRecords, RecordReader
from shuffle.records.serializers import ValueSerializer

T = TypeVar("T")


class ClientGate:
    """What one task reads. Leave its context to give it up.

    Args:
        gate: The gate; also for task events, resuming and buffer sizes.
        blocking: Whether the partitions are stored, and so made of blocks.
    """

    def __init__(self, gate: InputGate, *, blocking: bool) -> None:
        self.gate = gate
        self.source: InputGate | BlockSource = BlockSource(gate) if blocking else gate
        self._readers: list[RecordReader[object]] = []

    async def next_buffer_or_event(self) -> BufferOrEvent | None:
        """Wait for the next buffer or event, which the caller releases; None after the end.

        Raises:
            SluiceError: A channel failed.

        Cancellation: safe, nothing is taken.
        """
        return await self.source.next_buffer_or_event()

    def reader(self, serializer: ValueSerializer[T]) -> RecordReader[T]:
        """Make a reader of records and events; it is closed with the gate."""
        reader = RecordReader(self.source, serializer, len(self.gate.channels))
        self._readers.append(reader)  # type: ignore[arg-type]
        return reader

    async def records(self, serializer: ValueSerializer[T]) -> AsyncIterator[T]:
        """Read all records to the end; events are passed over.

        Raises:
            SluiceError: A channel failed, or a record is none.
        """
        reader = self.reader(serializer)
        while (taken := await reader.read_batch()) is not None:
            if isinstance(taken, ChannelRecords):
                for value in taken.values:
                    yield value

    def close(self) -> None:
        """Give everything up. Idempotent."""
        for reader in self._readers:
            reader.close()
        self.gate.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
