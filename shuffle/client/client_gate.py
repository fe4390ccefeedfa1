"""An input gate as the Python API shows it, and the decoding of stored partitions behind it."""

from collections import deque
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from ...protocol.errors import SluiceError
from ...protocol.events import EndOfPartition, decode_event, is_end_of_partition
from ...protocol.schema import DATA
from ..errors import BlockCorrupt, InvalidRequest
from ..gate.input_gate import InputGate
from ..gate.readable_gate import BufferOrEvent
from ..partition.blocks import Block, BlockDecoder
from ..partition.partition_type import ResultPartitionType
from ..partition.view import OutgoingBuffer
from .failover import Failover
from .partition_location import PartitionLocation

if TYPE_CHECKING:
    from ..records.record_reader import BufferSource, RecordReader
    from ..records.serializers import ValueSerializer


class _Stream:
    """The blocks of one channel.

    Attributes:
        decoder: Takes them out of its bytes.
        verified_bytes: Length of the blocks that are complete and right.
        skip_bytes: Bytes to skip: their blocks came from the previous TaskManager.
    """

    __slots__ = ("decoder", "skip_bytes", "verified_bytes")

    def __init__(self) -> None:
        self.decoder = BlockDecoder()
        self.verified_bytes = 0
        self.skip_bytes = 0

    def restart(self) -> None:
        """Expect the stream from its beginning again; skip the blocks already returned."""
        before, self.decoder = self.decoder, BlockDecoder()
        self.decoder.stored_bytes, self.decoder.raw_bytes = before.stored_bytes, before.raw_bytes
        self.skip_bytes = self.verified_bytes

    def feed(self, data: bytes | memoryview) -> list[Block]:
        """Take the next bytes; return the blocks that are complete now.

        Raises:
            BlockCorrupt: The bytes are not blocks.
        """
        if self.skip_bytes:
            skipped = min(self.skip_bytes, len(data))
            self.skip_bytes -= skipped
            data = memoryview(data)[skipped:]
        before = self.decoder.partial_bytes
        blocks = self.decoder.feed(data)
        self.verified_bytes += before + len(data) - self.decoder.partial_bytes
        return blocks

    def finish(self) -> None:
        """End the stream.

        Raises:
            BlockCorrupt: It ends within a block, or before blocks that another place has given.
        """
        if self.skip_bytes:
            raise BlockCorrupt(
                "The data ends before what another place had", value=f"{self.skip_bytes} bytes"
            )
        self.decoder.finish()


class BlockSource:
    """Decodes the blocks of stored partitions into the buffers they were made of.

    It is read like a gate.

    Args:
        gate: The gate; its channels give the bytes of blocks, cut anywhere.
        failover: Knows the other TaskManagers of the channels; None: no failover.
    """

    def __init__(self, gate: "BufferSource", failover: Failover | None = None) -> None:
        self._gate = gate
        self._failover = failover
        self._streams: dict[int, _Stream] = {}
        self._decoded: deque[BufferOrEvent] = deque()
        self._failure: SluiceError | None = None

    @property
    def stored_bytes(self) -> int:
        """Number of bytes before decompression."""
        return sum(stream.decoder.stored_bytes for stream in self._streams.values())

    @property
    def raw_bytes(self) -> int:
        """Number of bytes after decompression."""
        return sum(stream.decoder.raw_bytes for stream in self._streams.values())

    def poll(self) -> BufferOrEvent | None:
        """Take the next buffer or event; None if it is not there yet.

        Raises:
            BlockCorrupt: The bytes of a channel are not blocks.
            SluiceError: A channel failed.
        """
        while not self._decoded:
            try:
                taken = self._gate.poll()
            except SluiceError as error:
                self._fail_over(error)
                continue
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
            try:
                taken = await self._gate.next_buffer_or_event()
            except SluiceError as error:
                self._fail_over(error)
                continue
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
        stream = self._streams.get(index)
        if stream is None:
            stream = self._streams[index] = _Stream()
        try:
            if buffer.data_type != DATA:
                if is_end_of_partition(buffer.payload):
                    stream.finish()
                self._decoded.append(taken)
                return
            for payload, data_type in stream.feed(buffer.payload):
                # The buffer is recycled below, so a view of it must be copied.
                content = payload if type(payload) is bytes else bytes(payload)
                if data_type != DATA and type(decode_event(content)) is EndOfPartition:
                    continue  # the channel has an end of its own
                self._decoded.append(BufferOrEvent(index, OutgoingBuffer(content, None, data_type)))
        except SluiceError as error:
            if self._failover is not None and isinstance(error, BlockCorrupt):
                self._failover.report_damage(index)
            # The bytes that follow do not begin a block, so they must not be decoded.
            if buffer.data_type != DATA or not self._switches(index, error):
                self._failure = error
                raise
        finally:
            if buffer.release is not None:
                buffer.release()

    def _fail_over(self, error: SluiceError) -> None:
        """Reopen the failed channel at another TaskManager.

        Raises:
            SluiceError: The error, if there is none.
        """
        failed = None if self._failover is None else self._failover.failed()
        if failed is None or not self._switches(*failed):
            raise error

    def _switches(self, index: int, error: SluiceError) -> bool:
        if self._failover is None or not self._failover.switch_to_next_replica(index, error):
            return False
        stream = self._streams.get(index)
        if stream is not None:
            stream.restart()
        return True


T = TypeVar("T")


class ClientGate:
    """The gate that one task reads. Leave its context to release it.

    Args:
        gate: The gate; use it for task events and resuming.
        is_stored: Whether the partitions are stored, and so made of blocks.
    """

    def __init__(self, gate: InputGate, *, is_stored: bool) -> None:
        self.gate = gate
        self._failover = Failover(gate)
        self.source: InputGate | BlockSource = (
            BlockSource(gate, self._failover) if is_stored else gate
        )
        self._readers: list[RecordReader[object]] = []

    def add_channel(
        self,
        location: PartitionLocation | None,
        alternatives: Sequence[PartitionLocation] = (),
    ) -> None:
        """Add a channel; None: its producer is not known yet.

        Args:
            location: Where to read the partition.
            alternatives: Where else it can be read, if it is stored, in the order to try them.

        Raises:
            InsufficientNetworkBuffers: No floating buffer is left for the gate.
            InvalidRequest: The gate is released, or part of a union.
        """
        if location is None:
            self.gate.add_unknown_channel()
        else:
            self._failover.add(len(self.gate.channels), [other.place for other in alternatives])
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

    def reader(self, serializer: "ValueSerializer[T]") -> "RecordReader[T]":
        """Make a reader of records and events; the gate closes it."""
        from ..records.record_reader import RecordReader  # not needed to read buffers

        reader = RecordReader(self.source, serializer, len(self.gate.channels))
        self._readers.append(reader)  # type: ignore[arg-type]
        return reader

    def records(self, serializer: "ValueSerializer[T]") -> AsyncIterator[T]:
        """Read all records to the end; events are skipped.

        Raises:
            SluiceError: A channel failed, or a record could not be decoded.
        """
        return self.reader(serializer).values()

    def close(self) -> None:
        """Release everything. Idempotent."""
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
