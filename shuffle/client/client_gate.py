"""An input gate as the Python API shows it, and the decoding of stored partitions behind it."""

from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self, TypeVar

from ...protocol.errors import SluiceError
from ...protocol.events import EndOfPartition, decode_event, is_end_of_partition
from ...protocol.messages import DATA
from ..errors import InvalidRequest
from ..gate.capture import marked_checkpoint
from ..gate.input_gate import InputGate
from ..gate.readable_gate import BufferOrEvent
from ..partition.blocks import BlockDecoder
from ..partition.partition_type import ResultPartitionType
from ..partition.view import OutgoingBuffer
from ..records.record_reader import BufferSource, ChannelRecords, RecordReader
from ..records.serializers import ValueSerializer
from .partition_location import PartitionLocation


class BlockSource:
    """Decodes the blocks of stored partitions into the buffers they were made of.

    It is read like a gate.

    Args:
        gate: The gate; its channels give the bytes of blocks, cut anywhere.
    """

    def __init__(self, gate: BufferSource) -> None:
        self._gate = gate
        self._decoders: dict[int, BlockDecoder] = {}
        self._decoded: deque[BufferOrEvent] = deque()
        self._failure: SluiceError | None = None

    @property
    def stored_bytes(self) -> int:
        """Number of bytes before decompression."""
        return sum(decoder.stored_bytes for decoder in self._decoders.values())

    @property
    def raw_bytes(self) -> int:
        """Number of bytes after decompression."""
        return sum(decoder.raw_bytes for decoder in self._decoders.values())

    def poll(self) -> BufferOrEvent | None:
        """Take the next buffer or event; None if it is not there yet.

        Raises:
            BlockCorrupt: The bytes of a channel are not blocks.
            SluiceError: A channel failed.
        """
        while not self._decoded:
            taken = self._gate.poll()
            if taken is None:
                return None
            self._decode(taken)
        return self._decoded.popleft()

    async def next_buffer_or_event(self) -> BufferOrEvent | None:
        """Wait for the next buffer or event; None after the end.

        Raises:
            SluiceError: As :meth:`poll`.

        Cancellation: safe, nothing is taken.
        """
        while not self._decoded:
            taken = await self._gate.next_buffer_or_event()
            if taken is None:
                return None
            self._decode(taken)
        return self._decoded.popleft()

    def _decode(self, taken: BufferOrEvent) -> None:
        if self._failure is not None:
            if taken.buffer.release is not None:
                taken.buffer.release()
            raise self._failure.with_traceback(None)
        index, buffer = taken
        decoder = self._decoders.get(index)
        if decoder is None:
            decoder = self._decoders[index] = BlockDecoder()
        try:
            if buffer.data_type != DATA:
                if is_end_of_partition(buffer.payload):
                    decoder.finish()
                self._decoded.append(taken)
                return
            for payload, data_type in decoder.feed(buffer.payload):
                # The buffer is recycled below, so a view of it must be copied.
                content = payload if type(payload) is bytes else bytes(payload)
                if data_type != DATA and (
                    type(decode_event(content)) is EndOfPartition
                    or marked_checkpoint(content) is not None
                ):
                    continue  # the channel has an end of its own; nothing overtakes stored data
                self._decoded.append(BufferOrEvent(index, OutgoingBuffer(content, None, data_type)))
        except SluiceError as error:
            # The bytes that follow do not begin a block, so they must not be decoded.
            self._failure = error
            raise
        finally:
            if buffer.release is not None:
                buffer.release()


T = TypeVar("T")


class ClientGate:
    """The gate that one task reads. Leave its context to give it up.

    Args:
        gate: The gate; use it for task events, resuming and buffer sizes.
        is_stored: Whether the partitions are stored, and so made of blocks.
    """

    def __init__(self, gate: InputGate, *, is_stored: bool) -> None:
        self.gate = gate
        self.is_stored = is_stored
        self.source: InputGate | BlockSource = BlockSource(gate) if is_stored else gate
        self._readers: list[RecordReader[object]] = []

    def add_channel(self, location: PartitionLocation | None) -> None:
        """Add a channel; None: its producer is not known yet.

        Raises:
            InsufficientNetworkBuffers: No floating buffer is left for the gate.
            InvalidRequest: The gate is released, or part of a union.
        """
        if location is None:
            self.gate.add_unknown_channel()
        else:
            self.gate.add_channel(location.source)

    def update_channel(self, index: int, location: PartitionLocation) -> None:
        """Name the producer of a channel that was opened without one.

        Args:
            index: Number of the channel: its place among the locations of ``open_gate``.
            location: The location of the partition, as its producer gave it.

        Raises:
            InvalidRequest: There is no such channel, its producer is known already, or the
                partition is stored or of another shuffle.
            InsufficientNetworkBuffers: No floating buffer is left; the channel stays unknown.
        """
        shuffle_id = self.gate.key.shuffle_id
        if location.is_stored or location.shuffle_id != shuffle_id:
            kind = ResultPartitionType(location.partition_type).name
            raise InvalidRequest(
                "The partition does not belong to this gate",
                value=f"{kind} of shuffle {location.shuffle_id}",
                limit=f"a pipelined one of shuffle {shuffle_id}",
            )
        self.gate.update_channel(index, location.source)

    async def next_buffer_or_event(self) -> BufferOrEvent | None:
        """Wait for the next buffer or event, which the caller must release; None after the end.

        Raises:
            SluiceError: A channel failed.

        Cancellation: safe, nothing is taken.
        """
        return await self.source.next_buffer_or_event()

    def reader(self, serializer: ValueSerializer[T]) -> RecordReader[T]:
        """Make a reader of records and events; the gate closes it."""
        reader = RecordReader(self.source, serializer, len(self.gate.channels))
        self._readers.append(reader)  # type: ignore[arg-type]
        return reader

    async def records(self, serializer: ValueSerializer[T]) -> AsyncIterator[T]:
        """Read all records to the end; events are skipped.

        Raises:
            SluiceError: A channel failed, or a record could not be decoded.
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
