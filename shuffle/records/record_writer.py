"""The record writer: records in, buffers of a result partition out.

The writer owns the loop: serialize a record, copy it into the subpartition's open buffer, and while
the record is not whole and the buffer full, finish the buffer and take the next one. Writing is
synchronous as long as the partition has buffers. When it has none, the call returns an awaitable
that waits for a buffer and writes the rest: the producer's back pressure::

    if (pending := writer.emit(record)) is not None:
        await pending

Each channel keeps the order of the calls, whether they were for one subpartition or for all. A
broadcast record is stored once.

If the wait is cancelled before a part of the record or batch was written, the record or batch was
not emitted, and the writer can be used further. Otherwise the writer and its partition have failed,
because readers have the beginning of a record whose end will not come.
"""

import inspect
import random
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar

from ...protocol.errors import SluiceError
from ...protocol.events import Event, encode_event
from ...protocol.schema import EVENT
from ..errors import RecordTooLarge, WriterUnusable, no_such_subpartition
from ..partition.result_partition_writer import ALL_SUBPARTITIONS, ResultPartitionWriter
from .framing import DEFAULT_MAXIMUM_RECORD_BYTES, BatchPart, BytesLike, batch_parts
from .open_buffers import OpenBuffers
from .selectors import ChannelSelector, RoundRobinSelector
from .serializers import ValueSerializer, serializing_many
from .spanning_serializer import SpanningRecordSerializer, flat

T = TypeVar("T")

Pending: TypeAlias = Coroutine[Any, Any, None] | None
"""None if the call is done; otherwise the caller must await it before the next call."""

DEFAULT_BUFFER_TIMEOUT_SECONDS: Final = 0.1


class RecordWriter(Generic[T]):
    """Writes the records of one task into a result partition. One caller at a time.

    Args:
        partition: Where the buffers go. The writer ends it (:meth:`finish`, :meth:`fail`).
        serializer: Encodes the records.
        selector: Chooses subpartitions; round robin by default.
        buffer_timeout_seconds: If 0, each call flushes the records that it wrote. If negative, only
            full buffers go out. Otherwise the partition's output flusher flushes at that interval.
        maximum_record_bytes: Longer records are refused.
        generator: For :meth:`random_emit`.
    """

    def __init__(
        self,
        partition: ResultPartitionWriter,
        serializer: ValueSerializer[T],
        selector: ChannelSelector[T] | None = None,
        *,
        buffer_timeout_seconds: float = DEFAULT_BUFFER_TIMEOUT_SECONDS,
        maximum_record_bytes: int = DEFAULT_MAXIMUM_RECORD_BYTES,
        generator: random.Random | None = None,
    ) -> None:
        self._partition = partition
        self._serialize = serializer.serialize
        self._serialize_many = serializing_many(serializer)
        self._selector: ChannelSelector[T] = RoundRobinSelector() if selector is None else selector
        self._num_subpartitions = partition.num_subpartitions
        self._selector.setup(self._num_subpartitions)
        self._flush_always = buffer_timeout_seconds == 0
        self._maximum = maximum_record_bytes
        self._generator = random.Random() if generator is None else generator  # noqa: S311
        self._spanning = SpanningRecordSerializer(maximum_record_bytes)
        self._buffers = OpenBuffers(partition)
        self._blocked = False  # if so, _refuse() says why
        self._pending: Coroutine[Any, Any, None] | None = None
        self._batch_begun = False
        self._failure: SluiceError | None = None

    # ---- records

    def emit(self, record: T) -> Pending:
        """Write a record to the subpartition that the selector chooses.

        Returns:
            None when the record is written; otherwise an awaitable that writes the rest.

        Raises:
            SluiceError: The awaitable of the previous call was not awaited to its end.
            WriterUnusable: The writer has ended or failed.
            RecordTooLarge, CONFIGURATION, MalformedElement: The record is refused; nothing was
                written.
            SluiceError: The partition's failure.
        """
        if self._blocked:
            self._refuse()
        return self._write(self._serialize(record), self._selector.select(record))

    def emit_to(self, record: T, subpartition: int) -> Pending:
        """Write a record to a subpartition, or to ``ALL_SUBPARTITIONS``; see :meth:`emit`."""
        if self._blocked:
            self._refuse()
        return self._write(self._serialize(record), subpartition)

    def broadcast_emit(self, record: T) -> Pending:
        """Write a record to all subpartitions; it is stored once. See :meth:`emit`."""
        return self.emit_to(record, ALL_SUBPARTITIONS)

    def random_emit(self, record: T) -> Pending:
        """Write a record, such as a latency marker, to a random subpartition; see :meth:`emit`."""
        return self.emit_to(record, self._generator.randrange(self._num_subpartitions))

    def emit_batch(
        self, records: Sequence[T], subpartitions: Sequence[int] | int | None = None
    ) -> Pending:
        """Write many records, each at a fraction of the cost of :meth:`emit`.

        Records to the same subpartition keep their order. With a buffer timeout of 0 the batch is
        flushed as one.

        Args:
            records: The records to write.
            subpartitions: Of each record, or of all of them; the selector's choice by default.

        Returns:
            As :meth:`emit`.

        Raises:
            SluiceError: As :meth:`emit`; all records are serialized before any is written.
        """
        if self._blocked:
            self._refuse()
        payloads = self._serialize_many(records)
        if subpartitions is None:
            subpartitions = self._selector.select_many(records)
        parts = iter(batch_parts(payloads, subpartitions, self._num_subpartitions, self._maximum))
        self._batch_begun = False
        for part in parts:
            self._begin(part)
            if not self._copy_or_fail(part.subpartition):
                return self._wait(part.subpartition, parts)
            self._part_written(part.subpartition)
        return None

    # ---- events

    def emit_event(self, event: Event, subpartition: int, data_type: int = EVENT) -> None:
        """Write an event behind the records of a subpartition, or of ``ALL_SUBPARTITIONS``.

        Args:
            event: The event.
            subpartition: Where the event goes.
            data_type: ``EVENT``, ``BLOCKING_EVENT``, or ``PRIORITY_EVENT``, which overtakes.

        Raises:
            SluiceError: As :meth:`emit`.
            InvalidEvent: The event is too long.
            SluiceError: The partition's failure.
        """
        if self._blocked:
            self._refuse()
        if not ALL_SUBPARTITIONS <= subpartition < self._num_subpartitions:
            raise no_such_subpartition(subpartition, self._num_subpartitions)
        payload = encode_event(event)
        self._buffers.finish_before_event(subpartition)
        self._partition.emit_event(payload, data_type, subpartition)
        if self._flush_always:
            self._flush(subpartition)

    def broadcast_event(self, event: Event, data_type: int = EVENT) -> None:
        """Write an event behind the records of every subpartition; see :meth:`emit_event`."""
        self.emit_event(event, ALL_SUBPARTITIONS, data_type)

    # ---- flushing and the end

    def flush(self, subpartition: int) -> None:
        """Send the records of a subpartition's open buffer; allowed at any time."""
        self._partition.flush(subpartition)

    def flush_all(self) -> None:
        """Send the records of all open buffers; allowed at any time."""
        self._partition.flush_all()

    @property
    def is_available(self) -> bool:
        """Whether a small record could probably be written without waiting."""
        return not self._blocked and self._partition.is_available

    async def finish(self) -> None:
        """End the partition after the last record.

        Raises:
            SluiceError: As :meth:`emit`.
            SluiceError: The partition could not be completed.

        Cancellation: the caller must then fail the writer or release the partition.
        """
        if self._blocked:
            self._refuse()
        self._blocked = True
        self._buffers.finish_all()
        await self._partition.finish()

    def fail(self, error: SluiceError) -> None:
        """End the partition with an error that its readers get. Idempotent."""
        self._blocked = True
        pending, self._pending = self._pending, None
        if pending is not None and inspect.getcoroutinestate(pending) == inspect.CORO_CREATED:
            pending.close()  # it was never awaited
        if self._failure is None:
            self._failure = error
        self._spanning.clear()
        self._buffers.finish_all()
        self._partition.fail(error)

    # ---- the loop

    def _write(self, payload: BytesLike, subpartition: int) -> Pending:
        if not ALL_SUBPARTITIONS <= subpartition < self._num_subpartitions:
            raise no_such_subpartition(subpartition, self._num_subpartitions)
        if type(payload) is not bytes:
            payload = flat(payload)
        if len(payload) > self._maximum:
            raise RecordTooLarge(len(payload), self._maximum)
        if self._buffers.append(payload, subpartition):
            if self._flush_always:
                self._flush(subpartition)
            return None
        self._buffers.switch(subpartition)
        self._spanning.set_record(payload)
        self._batch_begun = False
        if not self._copy_or_fail(subpartition):
            return self._wait(subpartition, iter(()))
        if self._flush_always:
            self._flush(subpartition)
        return None

    def _begin(self, part: BatchPart) -> None:
        self._buffers.switch(part.subpartition)
        self._spanning.set_frames(part.frames)

    def _part_written(self, subpartition: int) -> None:
        self._batch_begun = True
        if self._flush_always:
            self._flush(subpartition)

    def _copy_or_fail(self, subpartition: int) -> bool:
        try:
            return self._buffers.copy(self._spanning, subpartition)
        except BaseException as error:
            self._interrupted(error)
            raise

    def _wait(self, subpartition: int, parts: Iterator[BatchPart]) -> Pending:
        self._blocked = True
        self._pending = self._write_rest(subpartition, parts)
        return self._pending

    async def _write_rest(self, subpartition: int, parts: Iterator[BatchPart]) -> None:
        try:
            while True:
                builder = await self._partition.wait_for_builder(subpartition)
                self._buffers.copy_to_new(self._spanning, builder, subpartition)
                if self._spanning.remaining_bytes:
                    self._buffers.copy(self._spanning, subpartition)
                while self._spanning.remaining_bytes == 0:
                    self._part_written(subpartition)
                    part = next(parts, None)
                    if part is None:
                        self._pending = None
                        self._blocked = False
                        return
                    subpartition = part.subpartition
                    self._begin(part)
                    self._buffers.copy(self._spanning, subpartition)
        except BaseException as error:
            self._interrupted(error)
            raise

    def _interrupted(self, error: BaseException | None) -> None:
        """Discard the rest of a record or batch, and fail unless all of it is unwritten."""
        self._pending = None
        if self._failure is not None:  # fail() was called meanwhile
            return
        if self._spanning.copied_bytes == 0 and not self._batch_begun:
            self._spanning.clear()
            self._blocked = False
            return
        if isinstance(error, SluiceError):
            self.fail(error)
        else:
            self.fail(
                WriterUnusable(
                    "Writing was interrupted in the middle of a record or batch",
                    value=self._spanning.copied_bytes,
                    limit=self._spanning.copied_bytes + self._spanning.remaining_bytes,
                    remedy="Do not cancel the awaitable of emit() unless the task ends",
                )
            )

    def _flush(self, subpartition: int) -> None:
        if subpartition == ALL_SUBPARTITIONS:
            self._partition.flush_all()
        else:
            self._partition.flush(subpartition)

    def _refuse(self) -> None:
        """Raise the reason why no call is possible now; return if a call is possible after all."""
        pending = self._pending
        if pending is not None:
            # A task cancelled before its first step never enters the coroutine.
            if inspect.getcoroutinestate(pending) != inspect.CORO_CLOSED:
                raise SluiceError(
                    "The previous call of the record writer still waits for a buffer",
                    remedy="Await what emit() returned, if it is not None, before the next call",
                )
            self._interrupted(None)
            if not self._blocked:
                return
        if self._failure is not None:
            raise WriterUnusable(
                f"The record writer has failed: {self._failure}", remedy="Run the task again"
            ) from self._failure
        raise WriterUnusable("The record writer is finished and takes no more records or events")
