"""Spans on their way to the collector: a bounded number, and the others are counted."""

import logging
from collections.abc import Sequence
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

MAX_WAITING_SPANS: Final = 4096
"""Ended spans that wait for the collector, about 2 KB each; later ones are dropped."""

BATCH_SPANS: Final = 512
"""Most spans of one request to the collector."""

SCHEDULE_MILLISECONDS: Final = 1000
"""Longest time for which an ended span waits for others before it is sent."""

logger = logging.getLogger(__name__)


class CountedSpans(SpanProcessor):
    """Sends ended spans in batches, in a thread of the SDK.

    The loop's thread counts what ends, and the exporter's thread what has left; each writes only
    its own numbers. So the bound needs no lock, and the queue of the SDK never overflows.

    Args:
        exporter: Sends a batch, in the thread of the SDK.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self.dropped = 0
        """Spans dropped because too many waited."""
        self._taken = 0
        self._counted: Final = _CountingExporter(exporter)
        self._batches: Final = BatchSpanProcessor(
            self._counted,
            max_queue_size=MAX_WAITING_SPANS,
            schedule_delay_millis=SCHEDULE_MILLISECONDS,
            max_export_batch_size=BATCH_SPANS,
        )

    @property
    def exported(self) -> int:
        """Spans that the collector took."""
        return self._counted.exported

    @property
    def failed(self) -> int:
        """Spans that could not be sent."""
        return self._counted.failed

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing: only spans that have ended are sent."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span, or drop it if too many wait."""
        if self._taken - self.exported - self.failed >= MAX_WAITING_SPANS:
            self.dropped += 1
            return
        self._taken += 1
        self._batches.on_end(span)

    def force_flush(self, timeout_millis: int | None = None) -> bool:
        """Send the waiting spans now; blocks."""
        return self._batches.force_flush(timeout_millis)

    def shutdown(self) -> None:
        """Send the waiting spans, unless the collector fails, and end the thread; blocks."""
        self._counted.is_closing = True
        self._batches.shutdown()  # type: ignore[no-untyped-call]


class _CountingExporter(SpanExporter):
    """Counts the spans that another exporter has sent, or has failed to send."""

    def __init__(self, exporter: SpanExporter) -> None:
        self.exported = 0
        self.failed = 0
        self.is_closing = False
        """Whether the next failure is the last attempt."""
        self._gives_up = False
        self._exporter: Final = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        if self._gives_up:
            self.failed += len(spans)
            return result
        try:
            result = self._exporter.export(spans)
        except Exception:
            logger.exception("traces cannot be sent to the collector")
        if result is SpanExportResult.SUCCESS:
            self.exported += len(spans)
        else:
            self.failed += len(spans)
            self._gives_up = self.is_closing
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
