"""Makes the spans of one TaskManager.

::

    map output ─┬─ commit                      the journal
                └─ copy ─────── map output     at the TaskManager that gets the copy
    gate ───────── source ───── served source  at the TaskManager that has the map outputs
    pipelined partition ─ write                its map task
    migration ─ move ─ copy ─── map output     at the TaskManager that gets the map output

A span belongs to an output, a gate, a source of a gate or a move, never to a buffer. Only a client
that sends a :class:`~sluice.protocol.schema.TraceContext` gets spans; a migration begins a trace of
its own. A source that reads a pipelined partition links to the span of the partition, because the
reader is another task, perhaps with another trace. The parent of each span is given, not found in a
context variable, because callbacks of one connection serve many tasks.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanContext, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ....protocol.schema import TraceContext
from ...gate.channel_opener import ChannelSource
from ...names import MapAttemptKey, SubpartitionRange, TaskManagerPlace
from ..config.traces_config import TracesConfig
from .counted_spans import CountedSpans
from .migration_spans import MigrationSpans
from .partition_spans import PartitionSpans
from .traced_span import TracedSpan, Value, present, spark_attributes
from .traces_status import TracesStatus

MAX_COPIED_OUTPUTS: Final = 4096
"""Map outputs that wait for their first copies and whose spans are kept for them, about 1 KB each.
Beyond it the oldest ones get copies without spans."""

MAX_LINKED_PARTITIONS: Final = 4096
"""Pipelined partitions to which readers can link, the latest ones."""

EXPORT_SECONDS: Final = 5
"""Time in which the collector must answer, and which the last request may take at the end."""

_TEXT: Final = TraceContextTextMapPropagator()


class Tracing:
    """Begins spans for map outputs, copies, gates and sources.

    Args:
        exporter: Sends the spans, in a thread of its own.
        sample_ratio: Share of the traces begun here that are recorded.
        taskmanager_id: Names the TaskManager in the resource of its spans.
    """

    def __init__(self, exporter: SpanExporter, sample_ratio: float, taskmanager_id: str) -> None:
        self.spans: Final = CountedSpans(exporter)
        resource = Resource.create(
            {"service.name": "sluice", "service.instance.id": taskmanager_id}
        )
        self._provider: Final = TracerProvider(
            ParentBased(TraceIdRatioBased(sample_ratio)), resource, shutdown_on_exit=False
        )
        self._provider.add_span_processor(self.spans)
        self._tracer: Final = self._provider.get_tracer("sluice")
        self._copied: Final[OrderedDict[MapAttemptKey, TracedSpan]] = OrderedDict()
        self._partitions: Final[OrderedDict[MapAttemptKey, SpanContext]] = OrderedDict()
        self._migration: MigrationSpans | None = None

    @classmethod
    def open(cls, config: TracesConfig, taskmanager_id: str) -> "Tracing":
        """Begin to send spans to a collector.

        Headers and certificates of the exporter come from OpenTelemetry's environment variables.

        """
        exporter = OTLPSpanExporter(endpoint=config.traces_endpoint, timeout=EXPORT_SECONDS)
        return cls(exporter, config.traces_sample_ratio, taskmanager_id)

    def status(self) -> TracesStatus:
        """Return how many spans have ended, by outcome."""
        return TracesStatus(self.spans.exported, self.spans.failed, self.spans.dropped)

    async def close(self) -> None:
        """Send the spans that wait, and end the thread that sends them.

        Cancellation: safe; the thread ends by its deadline.
        """
        await asyncio.to_thread(self._provider.shutdown)

    def map_output(
        self, context: TraceContext, attempt: MapAttemptKey, *, is_copy: bool
    ) -> TracedSpan | None:
        """Begin the span of a map output that a client, or a copier, writes.

        Returns:
            The span; None if its trace is not recorded.
        """
        return self._begin(
            "map output",
            context,
            _output(attempt) | {"sluice.is_copy": is_copy},
        )

    def pipelined_partition(
        self, context: TraceContext, attempt: MapAttemptKey, partition_type: str
    ) -> PartitionSpans | None:
        """Begin the spans of a pipelined partition that a client writes.

        Returns:
            The spans; None if its trace is not recorded.
        """
        attributes = _output(attempt) | {"sluice.partition_type": partition_type}
        span = self._begin("pipelined partition", context, attributes)
        if span is None:
            return None
        self._partitions[attempt] = span.identity
        if len(self._partitions) > MAX_LINKED_PARTITIONS:
            self._partitions.popitem(last=False)
        return PartitionSpans(span)

    def gate(
        self, context: TraceContext, wanted: SubpartitionRange, channels: int
    ) -> TracedSpan | None:
        """Begin the span of a gate; None if its trace is not recorded."""
        return self._begin("gate", context, _range(wanted) | {"sluice.channels": channels})

    def served_source(
        self, context: TraceContext, wanted: SubpartitionRange, map_attempt_ids: Sequence[int]
    ) -> TracedSpan | None:
        """Begin the span of a channel that another TaskManager reads here, or return None."""
        attributes = _range(wanted) | {"sluice.map_attempts": len(map_attempt_ids)}
        span = self._begin("served source", context, attributes)
        if span is not None:
            self._link_at_end(span, wanted, map_attempt_ids)
        return span

    def source(
        self, gate: TracedSpan, wanted: SubpartitionRange, source: ChannelSource, *, is_local: bool
    ) -> TracedSpan:
        """Begin the span of a channel of a gate."""
        attributes: dict[str, Value] = {
            "sluice.source": source.taskmanager_id,
            "server.address": source.address.host,
            "server.port": source.address.port,
            "sluice.is_local": is_local,
            "sluice.map_attempts": len(source.map_attempt_ids),
        }
        span = gate.child("source", attributes, sends=not is_local)
        if is_local:
            self._link_at_end(span, wanted, source.map_attempt_ids)
        return span

    def _link_at_end(
        self, span: TracedSpan, wanted: SubpartitionRange, map_attempt_ids: Sequence[int]
    ) -> None:
        """Link a reader's span to the span of its pipelined partition, which may begin later."""
        if len(map_attempt_ids) != 1:
            return
        attempt = MapAttemptKey(wanted.shuffle, map_attempt_ids[0])

        def link() -> None:
            partition = self._partitions.get(attempt)
            if partition is not None:
                span.link(partition)

        span.before_end = link

    def begin_migration(self) -> None:
        """Begin the trace of a migration."""
        span = self._begin("migration", TraceContext(0, "", None, None), {})
        self._migration = None if span is None else MigrationSpans(span)

    def begin_move(self, attempt: MapAttemptKey) -> None:
        """Begin the span of the move of a map output, if the migration is recorded."""
        if self._migration is not None:
            self._migration.begin(attempt, _output(attempt))

    def end_move(self, attempt: MapAttemptKey, place: TaskManagerPlace | None, reason: str) -> None:
        """End the span of a move: see :meth:`.MigrationSpans.end_move`."""
        if self._migration is not None:
            self._migration.end_move(attempt, place, reason)

    def end_migration(self, staying: int, reason: str) -> None:
        """End the trace of a migration.

        Args:
            staying: Map outputs that no target takes.
            reason: Why they stay.
        """
        migration, self._migration = self._migration, None
        if migration is not None:
            migration.end(staying, reason)

    def keep_for_copies(self, attempt: MapAttemptKey, span: TracedSpan) -> None:
        """Keep the span of a map output for its copies, until :meth:`forget`."""
        self._copied[attempt] = span
        if len(self._copied) > MAX_COPIED_OUTPUTS:
            self._copied.popitem(last=False)

    def forget(self, attempt: MapAttemptKey) -> None:
        """Forget the span of a map output whose first copies are made. Idempotent."""
        self._copied.pop(attempt, None)

    def copy(
        self, attempt: MapAttemptKey, target: str, *, moved: bool = False
    ) -> TracedSpan | None:
        """Begin the span of a copy; None if the trace of the map output, or its move, is not kept.

        Args:
            attempt: The map output.
            target: Where it is copied.
            moved: Whether it is copied because it moves.
        """
        if moved:
            return None if self._migration is None else self._migration.copy(attempt, target)
        span = self._copied.get(attempt)
        return None if span is None else span.child("copy", {"sluice.target": target}, sends=True)

    def _begin(
        self, name: str, context: TraceContext, attributes: Mapping[str, Value]
    ) -> TracedSpan | None:
        # A text that is empty or invalid gives no parent: then a trace begins, as W3C says.
        parent = _TEXT.extract({"traceparent": context.traceparent}, Context())
        span = self._tracer.start_span(
            name, parent, SpanKind.SERVER, present(attributes) | spark_attributes(context)
        )
        return TracedSpan(self._tracer, span, context) if span.is_recording() else None


def _output(attempt: MapAttemptKey) -> dict[str, Value]:
    return {
        "sluice.application": attempt.shuffle.application_id,
        "sluice.shuffle": attempt.shuffle.shuffle_id,
        "sluice.map_attempt": attempt.map_attempt_id,
    }


def _range(wanted: SubpartitionRange) -> dict[str, Value]:
    return {
        "sluice.application": wanted.shuffle.application_id,
        "sluice.shuffle": wanted.shuffle.shuffle_id,
        "sluice.start_subpartition": wanted.start,
        "sluice.end_subpartition": wanted.end,
    }
