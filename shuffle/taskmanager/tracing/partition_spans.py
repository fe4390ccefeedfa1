"""The spans of one pipelined partition: the whole partition, and the writes of its map task."""

from typing import Final

from .traced_span import TracedSpan, Value


class PartitionSpans:
    """The spans of a pipelined partition.

    The span of the partition lasts until its readers have reached the end. Its child ``write``
    lasts until the map task has finished. The time between the two ends is the time of the readers.

    Args:
        span: The span of the partition, which has begun.
    """

    def __init__(self, span: TracedSpan) -> None:
        self._span: Final = span
        self._write: Final = span.child("write")

    def written(
        self, total_bytes: int, credit_wait_seconds: float, error: BaseException | None = None
    ) -> None:
        """End the span ``write``. Idempotent."""
        attributes: dict[str, Value] = {
            "sluice.bytes": total_bytes,
            "sluice.credit_wait_seconds": credit_wait_seconds,
        }
        self._write.end(attributes, error)

    def end(
        self, total_bytes: int, credit_wait_seconds: float, error: BaseException | None
    ) -> None:
        """End both spans. Idempotent."""
        self.written(total_bytes, credit_wait_seconds, error)
        self._span.end({"sluice.bytes": total_bytes}, error)
