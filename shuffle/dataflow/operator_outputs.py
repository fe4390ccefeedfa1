"""Outputs of operators: an operator hands its results to one.

Operators that run in one task are chained: the output of one calls the next one directly, in the
same turn, without a buffer in between. The last output of a chain is usually a
:class:`RecordWriterOutput`, which writes to a partition.

Every call returns None, or an awaitable if the end of the chain waits for a buffer; the caller must
await it before the next call. So back pressure passes through a chain, and costs nothing while
there is none.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from ..records.record_writer import RecordWriter
from .stream_elements import LatencyMarker, StreamElement, StreamRecord, StreamStatus, Watermark

T = TypeVar("T")

Pending: TypeAlias = Awaitable[None] | None
"""None if the call is done; otherwise the caller must await it before the next call."""

Copier: TypeAlias = Callable[[T], T]
"""Copies a value so that changes of the copy leave the original alone; ``copy.deepcopy`` does."""


class OutputTag(NamedTuple):
    """The name of a side output; tags of the same name are equal."""

    name: str


class Input(Protocol[T]):
    """The operator at the other end of a chained output."""

    def process_record(self, record: StreamRecord[T]) -> Pending:
        """Process a record."""

    def process_watermark(self, watermark: Watermark) -> Pending:
        """Advance event time."""

    def process_stream_status(self, status: StreamStatus) -> Pending:
        """Set the input active or idle."""

    def process_latency_marker(self, marker: LatencyMarker) -> Pending:
        """Pass a marker on, or measure it."""


class Output(Protocol[T]):
    """Takes an operator's results."""

    def collect(self, record: StreamRecord[T]) -> Pending:
        """Hand over a record of the main output."""

    def collect_side(self, tag: OutputTag, record: StreamRecord[T]) -> Pending:
        """Hand over a record of a side output; dropped if no operator reads the tag."""

    def emit_watermark(self, watermark: Watermark) -> Pending:
        """Hand over a watermark."""

    def emit_stream_status(self, status: StreamStatus) -> Pending:
        """Hand over a status."""

    def emit_latency_marker(self, marker: LatencyMarker) -> Pending:
        """Hand over a latency marker."""


class WatermarkGauge:
    """The last watermark that passed.

    Attributes:
        timestamp_ms: The watermark's timestamp; None before the first one.
    """

    __slots__ = ("timestamp_ms",)

    def __init__(self) -> None:
        self.timestamp_ms: int | None = None


class ChainingOutput(Generic[T]):
    """Calls the next operator with the record itself, which the operator must not keep and change.

    Args:
        operator: The next operator.
        tag: The side output that the operator reads; the main output by default.

    Attributes:
        watermark_gauge: The last watermark handed over.
    """

    def __init__(self, operator: Input[T], tag: OutputTag | None = None) -> None:
        self._operator = operator
        self._tag = tag
        self.watermark_gauge = WatermarkGauge()
        self._status = StreamStatus.ACTIVE

    def collect(self, record: StreamRecord[T]) -> Pending:
        """Hand over a record if the operator reads the main output."""
        if self._tag is not None:
            return None
        return self._process(record)

    def collect_side(self, tag: OutputTag, record: StreamRecord[T]) -> Pending:
        """Hand over a record if the operator reads this side output."""
        if self._tag is None or tag != self._tag:
            return None
        return self._process(record)

    def emit_watermark(self, watermark: Watermark) -> Pending:
        """Hand over a watermark, unless the stream is idle: an idle stream does not move time."""
        if self._status is StreamStatus.IDLE:
            return None
        self.watermark_gauge.timestamp_ms = watermark.timestamp_ms
        return self._operator.process_watermark(watermark)

    def emit_stream_status(self, status: StreamStatus) -> Pending:
        """Hand over a status if it differs from the last one."""
        if status is self._status:
            return None
        self._status = status
        return self._operator.process_stream_status(status)

    def emit_latency_marker(self, marker: LatencyMarker) -> Pending:
        """Hand over a latency marker."""
        return self._operator.process_latency_marker(marker)

    def _process(self, record: StreamRecord[T]) -> Pending:
        return self._operator.process_record(record)


class CopyingChainingOutput(ChainingOutput[T]):
    """Calls the next operator with a copy: each side may keep and change its own.

    Args:
        operator: The next operator.
        copier: Copies a value.
        tag: The side output that the operator reads; the main output by default.
    """

    def __init__(self, operator: Input[T], copier: Copier[T], tag: OutputTag | None = None) -> None:
        super().__init__(operator, tag)
        self._copier = copier

    def _process(self, record: StreamRecord[T]) -> Pending:
        copied = StreamRecord(self._copier(record.value), record.timestamp_ms)
        return self._operator.process_record(copied)


class BroadcastingOutput(Generic[T]):
    """Hands everything to several outputs, in their order.

    Args:
        outputs: The outputs; at least one.
        copier: All but the last output get copies, the last one gets the original. With None all
            get the original, for values that no operator changes.

    Attributes:
        watermark_gauge: The last watermark handed over.
    """

    def __init__(self, outputs: Sequence[Output[T]], copier: Copier[T] | None = None) -> None:
        if not outputs:
            raise ValueError("A broadcasting output has no outputs: give it at least 1")
        self._outputs = tuple(outputs)
        self._copier = copier
        self.watermark_gauge = WatermarkGauge()

    def collect(self, record: StreamRecord[T]) -> Pending:
        """Hand a record to each output."""
        return _in_turn([(output.collect, (each,)) for output, each in self._shares(record)])

    def collect_side(self, tag: OutputTag, record: StreamRecord[T]) -> Pending:
        """Hand a record of a side output to each output."""
        return _in_turn(
            [(output.collect_side, (tag, each)) for output, each in self._shares(record)]
        )

    def emit_watermark(self, watermark: Watermark) -> Pending:
        """Hand a watermark to each output."""
        self.watermark_gauge.timestamp_ms = watermark.timestamp_ms
        return _in_turn([(output.emit_watermark, (watermark,)) for output in self._outputs])

    def emit_stream_status(self, status: StreamStatus) -> Pending:
        """Hand a status to each output."""
        return _in_turn([(output.emit_stream_status, (status,)) for output in self._outputs])

    def emit_latency_marker(self, marker: LatencyMarker) -> Pending:
        """Hand a latency marker to each output."""
        return _in_turn([(output.emit_latency_marker, (marker,)) for output in self._outputs])

    def _shares(self, record: StreamRecord[T]) -> list[tuple[Output[T], StreamRecord[T]]]:
        copier = self._copier
        *others, last = self._outputs
        # The copies are made first, so that changes by the last output are not in them.
        shares = [
            (
                output,
                record
                if copier is None
                else StreamRecord(copier(record.value), record.timestamp_ms),
            )
            for output in others
        ]
        shares.append((last, record))
        return shares


class CountingOutput(Generic[T]):
    """Counts the records that pass to another output.

    Args:
        output: The other output.

    Attributes:
        records: Number of records so far, of the main output and of all side outputs.
    """

    def __init__(self, output: Output[T]) -> None:
        self._output = output
        self.records = 0

    def collect(self, record: StreamRecord[T]) -> Pending:
        """Count and hand over a record."""
        self.records += 1
        return self._output.collect(record)

    def collect_side(self, tag: OutputTag, record: StreamRecord[T]) -> Pending:
        """Count and hand over a record of a side output."""
        self.records += 1
        return self._output.collect_side(tag, record)

    def emit_watermark(self, watermark: Watermark) -> Pending:
        """Hand over a watermark."""
        return self._output.emit_watermark(watermark)

    def emit_stream_status(self, status: StreamStatus) -> Pending:
        """Hand over a status."""
        return self._output.emit_stream_status(status)

    def emit_latency_marker(self, marker: LatencyMarker) -> Pending:
        """Hand over a latency marker."""
        return self._output.emit_latency_marker(marker)


_Call: TypeAlias = tuple[Callable[..., Pending], tuple[object, ...]]


def _in_turn(calls: Sequence[_Call]) -> Pending:
    """Make calls in turn; from the first that has to wait, in an awaitable."""
    for index, (call, arguments) in enumerate(calls):
        pending = call(*arguments)
        if pending is not None:
            return _after(pending, calls[index + 1 :])
    return None


async def _after(pending: Awaitable[None], calls: Sequence[_Call]) -> None:
    await pending
    for call, arguments in calls:
        following = call(*arguments)
        if following is not None:
            await following


class RecordWriterOutput(Generic[T]):
    """Writes an operator's results to a partition.

    Records go where the writer's selector says, watermarks and statuses to every subpartition,
    latency markers to a random one.

    Args:
        writer: Writes stream elements.
        tag: The side output that is written; the main output by default.

    Attributes:
        watermark_gauge: The last watermark written.
    """

    def __init__(
        self, writer: RecordWriter[StreamElement[T]], tag: OutputTag | None = None
    ) -> None:
        self._writer = writer
        self._tag = tag
        self._status = StreamStatus.ACTIVE
        self.watermark_gauge = WatermarkGauge()

    def collect(self, record: StreamRecord[T]) -> Pending:
        """Write a record if this output writes the main output."""
        return self._writer.emit(record) if self._tag is None else None

    def collect_side(self, tag: OutputTag, record: StreamRecord[T]) -> Pending:
        """Write a record if this output writes this side output."""
        return self._writer.emit(record) if tag == self._tag else None

    def emit_watermark(self, watermark: Watermark) -> Pending:
        """Write a watermark to every subpartition, unless the stream is idle."""
        if self._status is StreamStatus.IDLE:
            return None
        self.watermark_gauge.timestamp_ms = watermark.timestamp_ms
        return self._writer.broadcast_emit(watermark)

    def emit_stream_status(self, status: StreamStatus) -> Pending:
        """Write a status to every subpartition if it differs from the last one."""
        if status is self._status:
            return None
        self._status = status
        return self._writer.broadcast_emit(status)

    def emit_latency_marker(self, marker: LatencyMarker) -> Pending:
        """Write a latency marker to a random subpartition."""
        return self._writer.random_emit(marker)
