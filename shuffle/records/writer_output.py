"""The output at the end of a chain: records and other stream elements go to a record writer."""

from typing import Generic, TypeVar

from shuffle.records.outputs import OutputTag, Pending, WatermarkGauge
from shuffle.records.record_writer import RecordWriter
from shuffle.records.stream_elements import (
    LatencyMarker,
    StreamElement,
    StreamRecord,
    StreamStatus,
    Watermark,
)

T = TypeVar("T")


class RecordWriterOutput(Generic[T]):
    """Writes to a partition what an operator puts out.

    Records go where the writer's selector says, watermarks and statuses to every subpartition,
    latency markers to one by chance.

    Args:
        writer: A writer of stream elements.
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
        """Write a record, if the main output is written."""
        return self._writer.emit(record) if self._tag is None else None

    def collect_side(self, tag: OutputTag, record: StreamRecord[T]) -> Pending:
        """Write a record, if this side output is."""
        return self._writer.emit(record) if tag == self._tag else None

    def emit_watermark(self, watermark: Watermark) -> Pending:
        """Write a watermark for every subpartition, unless the stream is idle."""
        if self._status is StreamStatus.IDLE:
            return None
        self.watermark_gauge.timestamp_ms = watermark.timestamp_ms
        return self._writer.broadcast_emit(watermark)

    def emit_stream_status(self, status: StreamStatus) -> Pending:
        """Write a status for every subpartition, if it is another than the last one."""
        if status is self._status:
            return None
        self._status = status
        return self._writer.broadcast_emit(status)

    def emit_latency_marker(self, marker: LatencyMarker) -> Pending:
        """Write a latency marker for one subpartition."""
        return self._writer.random_emit(marker)
