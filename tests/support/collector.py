"""Collectors of traces: in the process of the test, and one that speaks OTLP over HTTP."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sluice.shuffle.taskmanager.tracing import tracing
from tests.support.http_servers import serving

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    import pytest
    from opentelemetry.sdk.trace import ReadableSpan

    from tests.support.mini_cluster import MiniCluster

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{PARENT_ID}-01"
ENDPOINT = "http://collector.invalid/v1/traces"
"""The setting of a TaskManager whose spans go to a :class:`Collector`."""


class Collector:
    """Takes the spans of all TaskManagers of a test in its process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._exporter = InMemorySpanExporter()
        monkeypatch.setattr(tracing, "OTLPSpanExporter", lambda **_: self._exporter)

    def spans(self, cluster: MiniCluster) -> dict[str, list[ReadableSpan]]:
        """Return the spans that have ended, by name."""
        for environment in cluster.environments:
            assert environment.tracing is not None
            environment.tracing.spans.force_flush()
        found: dict[str, list[ReadableSpan]] = {}
        for span in self._exporter.get_finished_spans():
            found.setdefault(span.name, []).append(span)
        return found


def parent_of(span: ReadableSpan) -> str:
    """Return the id of the parent of a span; empty without one."""
    return "" if span.parent is None else f"{span.parent.span_id:016x}"


def id_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.span_id:016x}"


def trace_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.trace_id:032x}"


class SentSpan(NamedTuple):
    """A span as it came over the wire.

    Attributes:
        name: Its name.
        trace_id: Its trace, in hexadecimal.
        span_id: Its id.
        parent_id: The id of its parent; empty without one.
        instance: The TaskManager that made it.
        start_ns: Its start, in nanoseconds since 1970.
        end_ns: Its end.
        attributes: Its attributes, as texts.
    """

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    instance: str
    start_ns: int
    end_ns: int
    attributes: dict[str, str]


class OtlpCollector:
    """The spans that came to a collector over HTTP.

    Attributes:
        port: Its port on loopback.
        status: The status of its next answers.
    """

    def __init__(self) -> None:
        self.port = 0
        self.status = 200
        self._spans: list[SentSpan] = []
        self._changed = threading.Condition()

    @property
    def endpoint(self) -> str:
        """The value of ``traces_endpoint``."""
        return f"http://127.0.0.1:{self.port}/v1/traces"

    def until(self, count: int, seconds: float = 60) -> list[SentSpan]:
        """Wait for a number of spans, and return all; blocks."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._spans) >= count, seconds), self._spans
            return list(self._spans)

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self._changed:
            for resource in request.resource_spans:
                instance = _attributes(resource.resource.attributes)["service.instance.id"]
                for scope in resource.scope_spans:
                    self._spans += [_sent(span, instance) for span in scope.spans]
            self._changed.notify_all()


def _sent(span: Any, instance: str) -> SentSpan:
    return SentSpan(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        instance,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _attributes(span.attributes),
    )


def _attributes(values: Any) -> dict[str, str]:
    return {
        each.key: str(getattr(each.value, each.value.WhichOneof("value"))).strip()
        for each in values
    }


@contextlib.contextmanager
def otlp_collector() -> Iterator[OtlpCollector]:
    """Run a collector on loopback."""
    collector = OtlpCollector()

    async def start() -> tuple[int, Callable[[], Awaitable[None]]]:
        async def answer(request: web.Request) -> web.Response:
            body = await request.read()
            if collector.status == 200:
                collector.take(body)
            return web.Response(status=collector.status, content_type="application/x-protobuf")

        app = web.Application()
        app.add_routes([web.post("/v1/traces", answer)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner.addresses[0][1], runner.cleanup

    with serving(start) as port:
        collector.port = port
        yield collector
