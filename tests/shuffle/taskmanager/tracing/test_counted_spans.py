"""Spans on their way to a collector that is slow, refuses them or fails."""

from __future__ import annotations

import threading

import pytest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from sluice.protocol.schema import TraceContext
from sluice.shuffle.names import MapAttemptKey, ShuffleKey
from sluice.shuffle.taskmanager.tracing import counted_spans, tracing
from sluice.shuffle.taskmanager.tracing.tracing import Tracing

ATTEMPT = MapAttemptKey(ShuffleKey("app", 1), 2)


class PlayedExporter(SpanExporter):
    """Waits for ``released`` before each batch, and returns or raises ``outcome``."""

    def __init__(self) -> None:
        self.outcome: SpanExportResult | Exception = SpanExportResult.SUCCESS
        self.released = threading.Event()
        self.released.set()
        self.batches: list[int] = []

    def export(self, spans):
        assert self.released.wait(60)
        self.batches.append(len(spans))
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@pytest.fixture
def exporter():
    return PlayedExporter()


@pytest.fixture
async def made(exporter):
    made = Tracing(exporter, 1, "tm")
    yield made
    exporter.released.set()
    await made.close()


def end_spans(made: Tracing, count: int) -> None:
    for _ in range(count):
        span = made.map_output(TraceContext(0, "", None, None), ATTEMPT, is_copy=False)
        assert span is not None
        span.end()
        span.end()  # ending is idempotent


async def test_spans_are_counted_when_the_collector_has_taken_them(made):
    end_spans(made, 3)
    made.spans.force_flush()
    status = made.status()
    assert (status.exported, status.failed, status.dropped) == (3, 0, 0)


@pytest.mark.parametrize("outcome", [SpanExportResult.FAILURE, ConnectionError("refused")])
async def test_spans_that_cannot_be_sent_are_counted(made, exporter, outcome):
    exporter.outcome = outcome
    end_spans(made, 2)
    made.spans.force_flush()
    status = made.status()
    assert (status.exported, status.failed, status.dropped) == (0, 2, 0)


async def test_spans_beyond_the_bound_are_dropped(made, exporter, monkeypatch):
    monkeypatch.setattr(counted_spans, "MAX_WAITING_SPANS", 5)
    exporter.released.clear()
    end_spans(made, 8)
    assert made.status().dropped == 3
    exporter.released.set()
    made.spans.force_flush()
    end_spans(made, 1)
    made.spans.force_flush()
    status = made.status()
    assert (status.exported, status.failed, status.dropped) == (6, 0, 3)


async def test_closing_gives_up_after_the_first_failure(exporter):
    made = Tracing(exporter, 1, "tm")
    exporter.released.clear()
    exporter.outcome = SpanExportResult.FAILURE
    end_spans(made, 4 * counted_spans.BATCH_SPANS)
    made.spans._counted.is_closing = True
    exporter.released.set()
    await made.close()
    assert len(exporter.batches) == 1
    assert made.status().failed == 4 * counted_spans.BATCH_SPANS


async def test_spans_for_copies_are_kept_up_to_a_bound(made, monkeypatch):
    monkeypatch.setattr(tracing, "MAX_COPIED_OUTPUTS", 2)
    attempts = [ATTEMPT._replace(map_attempt_id=number) for number in range(3)]
    for attempt in attempts:
        span = made.map_output(TraceContext(0, "", None, None), attempt, is_copy=False)
        made.keep_for_copies(attempt, span)
        span.end()
    assert made.copy(attempts[0], "tm-b") is None
    copy = made.copy(attempts[2], "tm-b")
    assert copy is not None
    copy.end()
    made.forget(attempts[2])
    assert made.copy(attempts[2], "tm-b") is None
