"""The record reader: buffers of an input gate in, records and events out.

Each channel has a deserializer of its own, since its records span its own buffers. A buffer is
released once, when the last reference to it has ended. Events, and the end of a partition is one,
are returned in their place among the records of their channel.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from ...protocol.errors import ErrorCode, SluiceError
from ...protocol.events import EndOfPartition, Event, decode_event
from ...protocol.schema import DATA
from ..gate.readable_gate import BUFFER_COST_BYTES, TURN_BYTES
from .framing import DEFAULT_MAXIMUM_RECORD_BYTES, DeserializationResult
from .serializers import ValueSerializer, deserializing_many
from .spanning_deserializer import DEFAULT_SPILL_THRESHOLD_BYTES, SpanningRecordDeserializer

if TYPE_CHECKING:
    from ..gate.readable_gate import BufferOrEvent

T = TypeVar("T")

_LAST = DeserializationResult.LAST_RECORD_FROM_BUFFER


class BufferSource(Protocol):
    """Gives buffers and events: an input gate."""

    def poll(self) -> "BufferOrEvent | None":
        """Take the next buffer or event; None if there is none now."""

    async def next_buffer_or_event(self) -> "BufferOrEvent | None":
        """Wait for the next buffer or event; None after the end. Cancellation: takes nothing."""


class ChannelRecord(NamedTuple, Generic[T]):
    """A record and the index of the channel it came from."""

    channel_index: int
    value: T


class ChannelRecords(NamedTuple, Generic[T]):
    """The records that ended in one buffer, at least one, and the index of its channel."""

    channel_index: int
    values: list[T]


class ChannelEvent(NamedTuple):
    """An event and the index of the channel it came from."""

    channel_index: int
    event: Event


ReadElement: TypeAlias = ChannelRecord[T] | ChannelEvent


class RecordReader(Generic[T]):
    """Reads the records of one task. One caller at a time.

    Args:
        gate: Where the buffers come from. The caller releases it after the reader is closed.
        serializer: Decodes the records.
        num_channels: Channels of the gate; the input ends with the last one.
        spill_threshold_bytes: Longer records are gathered in temporary files, whose blocks are
            written on the caller's thread.
        maximum_record_bytes: Longer records are an error.
        spill_directory: For those files; the system's temporary directory by default.

    Attributes:
        idle_seconds: Seconds for which calls have waited for input.
    """

    def __init__(
        self,
        gate: BufferSource,
        serializer: ValueSerializer[T],
        num_channels: int,
        *,
        spill_threshold_bytes: int = DEFAULT_SPILL_THRESHOLD_BYTES,
        maximum_record_bytes: int = DEFAULT_MAXIMUM_RECORD_BYTES,
        spill_directory: str | None = None,
    ) -> None:
        self._gate = gate
        self._deserialize = serializer.deserialize
        self._deserialize_many = deserializing_many(serializer)
        self._borrows = serializer.borrows
        self._deserializers = [
            SpanningRecordDeserializer(spill_threshold_bytes, maximum_record_bytes, spill_directory)
            for _ in range(num_channels)
        ]
        self._open_channels = num_channels
        self._channel_index = 0
        self._current: SpanningRecordDeserializer | None = None  # has a buffer with unread bytes
        self._lender: SpanningRecordDeserializer | None = (
            None  # its buffer is behind the values returned last
        )
        self._closed = False
        self._turn_bytes = 0  # taken since other tasks had a turn of the event loop
        self.idle_seconds = 0.0

    @property
    def is_ended(self) -> bool:
        """Whether the input is over: every channel has ended, or the reader is closed."""
        return self._closed or (self._open_channels == 0 and self._current is None)

    # ---- one by one

    async def next(self) -> ReadElement[T] | None:
        """Wait for the next record or event.

        Returns:
            The record or event, or None after the end of the input. A value of a serializer that
            ``borrows`` is valid until the next call.

        Raises:
            MalformedElement: A record could not be decoded; the next call continues after it.
            RecordTooLarge, END_OF_PARTITION_MISMATCH, STORAGE_UNAVAILABLE: The channel can be read
                no further.
            InvalidEvent: An event could not be decoded.
            PARTITION_RELEASED: The gate was released before all channels had ended.
            SluiceError: A channel of the gate failed.

        Cancellation: safe, nothing is lost.
        """
        while True:
            element = self._take()
            if element is not None:
                return element
            if self.is_ended:
                return None
            event = await self._wait()
            if event is not None:
                return event

    async def __aiter__(self) -> AsyncIterator[ReadElement[T]]:
        """Read to the end of the input; see :meth:`next`."""
        while (element := await self.next()) is not None:
            yield element

    # ---- a buffer's records at once

    async def read_batch(self) -> ChannelRecords[T] | ChannelEvent | None:
        """Wait for an event, or for records: all that end in one buffer come together.

        Returns:
            The records or the event, or None after the end of the input. Values of a serializer
            that ``borrows`` are valid until the next call.

        Raises:
            SluiceError: As :meth:`next`, but with a malformed record all records of its buffer
                are lost.

        Cancellation: safe, nothing is lost.
        """
        while True:
            self._release_lender()
            current = self._current
            if current is not None:
                records = self._take_records(current)
                if records:
                    return ChannelRecords(self._channel_index, records)
            if self.is_ended:
                return None
            taken = self._poll()
            event = await self._wait() if taken is None else self._accept(taken)
            if event is not None:
                return event

    async def values(self) -> AsyncIterator[T]:
        """Read all records to the end of the input; events are skipped. See :meth:`read_batch`."""
        while (taken := await self.read_batch()) is not None:
            if isinstance(taken, ChannelRecords):
                for value in taken.values:
                    yield value

    def _take_records(self, deserializer: SpanningRecordDeserializer) -> list[T]:
        self._current = None
        self._lender = deserializer
        borrows = self._borrows
        payloads = deserializer.take_records(owned=not borrows)
        values = self._deserialize_many(payloads)
        if not borrows:
            self._release_lender()
        return values

    # ---- the end

    def close(self) -> None:
        """Release the buffers still held, and close temporary files. Idempotent."""
        self._closed = True
        self._current = self._lender = None
        for deserializer in self._deserializers:
            deserializer.close()

    # ---- inside

    def _take(self) -> ReadElement[T] | None:
        """Return the next record or event; None if there is none now, or the turn is over."""
        if self._lender is not None:
            self._release_lender()
        while True:
            current = self._current
            if current is not None:
                result, payload = current.next_record()
                if result.is_buffer_consumed:
                    self._current = None
                    self._lender = current
                if payload is not None:
                    value = self._deserialize(payload)
                    if result is _LAST and not self._borrows:
                        self._release_lender()
                    return ChannelRecord(self._channel_index, value)
            if self.is_ended:
                return None
            taken = self._poll()
            if taken is None:
                return None
            event = self._accept(taken)
            if event is not None:
                return event

    def _poll(self) -> "BufferOrEvent | None":
        """Take a buffer or event; None if there is none now, or others have their turn first."""
        return None if self._turn_bytes >= TURN_BYTES else self._gate.poll()

    async def _wait(self) -> ChannelEvent | None:
        if self._turn_bytes >= TURN_BYTES:
            await asyncio.sleep(0)
        self._turn_bytes = 0
        began = time.monotonic()
        try:
            taken = await self._gate.next_buffer_or_event()
        finally:
            self.idle_seconds += time.monotonic() - began
        if taken is None:
            raise SluiceError(
                "The input gate was released while channels were open",
                code=ErrorCode.PARTITION_RELEASED,
                value=self._open_channels,
                limit=0,
            )
        return self._accept(taken)

    def _accept(self, taken: "BufferOrEvent") -> ChannelEvent | None:
        index = taken.channel_index
        buffer = taken.buffer
        deserializer = self._deserializers[index]
        self._turn_bytes += len(buffer.payload) + BUFFER_COST_BYTES
        if buffer.data_type == DATA:
            deserializer.set_next_buffer(buffer.payload, buffer.release)
            self._channel_index = index
            self._current = deserializer
            return None
        try:
            event = decode_event(buffer.payload)
        finally:
            if buffer.release is not None:
                buffer.release()
        if type(event) is EndOfPartition:
            self._open_channels -= 1
            deserializer.end()
        return ChannelEvent(index, event)

    def _release_lender(self) -> None:
        lender, self._lender = self._lender, None
        if lender is not None:
            lender.release_consumed()
