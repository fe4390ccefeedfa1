"""Traces of pipelined partitions: from their map tasks to the sources of their readers."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from sluice.protocol.schema import TraceContext
from sluice.shuffle.client.client import ShuffleClient
from sluice.shuffle.client.traced import traced
from sluice.shuffle.names import ShuffleKey, SubpartitionRange
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.shuffle.taskmanager.tracing.tracing import Tracing
from tests.support.api_clients import give_back
from tests.support.collector import (
    ENDPOINT,
    PARENT_ID,
    TRACE_ID,
    TRACEPARENT,
    id_of,
    parent_of,
    trace_of,
)
from tests.support.mini_cluster import eventually, mini_cluster

if TYPE_CHECKING:
    from sluice.shuffle.client.client_gate import ClientGate

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])

TRACED: dict[str, Any] = {"traces_endpoint": ENDPOINT}
READER_TRACE_ID = "1" * 32
READER = f"00-{READER_TRACE_ID}-{'2' * 16}-01"
CONTENT = b"bytes of a subpartition" * 100
BOUNDED = ResultPartitionType.PIPELINED_BOUNDED
PIPELINED = [each for each in ResultPartitionType if each.is_pipelined]


async def drained(gate: ClientGate) -> None:
    while (taken := await gate.next_buffer_or_event()) is not None:
        give_back(taken.buffer)


def links_of(span: Any) -> list[tuple[str, str]]:
    """Return trace and span id of the spans that a span links to."""
    return [
        (f"{each.context.trace_id:032x}", f"{each.context.span_id:016x}") for each in span.links
    ]


async def test_an_ended_source_needs_no_cyclic_collector():
    tracing = Tracing(InMemorySpanExporter(), 1.0, "id")
    wanted = SubpartitionRange(ShuffleKey("app", 1), 0, 1)
    gc.collect()
    gc.disable()
    try:
        source = tracing.served_source(TraceContext(0, "", None, None), wanted, [7])
        assert source is not None
        span = weakref.ref(source._span)
        source.end()
        tracing.spans.force_flush()
        del source
        assert span() is None
    finally:
        gc.enable()
        await tracing.close()


@pytest.mark.parametrize("reader_at", [0, 1], ids=["local", "remote"])
@pytest.mark.parametrize("kind", PIPELINED, ids=lambda kind: kind.name)
async def test_a_reader_links_to_the_partition(tmp_path, collector, kind, reader_at):
    async with mini_cluster(tmp_path, check=False, **TRACED) as cluster:
        producer = await ShuffleClient.connect(str(cluster[0].address), "app")
        consumer = await ShuffleClient.connect(str(cluster[reader_at].address), "app")
        async with producer, consumer:
            with traced(TRACEPARENT):
                opened = producer.open_result_partition(1, 7, 1, partition_type=kind)
                partition = await opened.__aenter__()
            with traced(READER):
                gate = consumer.open_gate([partition.location], 0)
                reading = asyncio.create_task(drained(await gate.__aenter__()))
            for _ in range(20):
                await partition.emit_buffer(CONTENT, 0)
            await opened.__aexit__(None, None, None)
            await reading
            await gate.__aexit__(None, None, None)
            served = "served source" if reader_at else "source"
            await eventually(lambda: served in collector.spans(cluster))
            await eventually(lambda: "pipelined partition" in collector.spans(cluster))
        spans = collector.spans(cluster)
        (whole,), (write,) = spans["pipelined partition"], spans["write"]
        assert trace_of(whole) == trace_of(write) == TRACE_ID
        assert parent_of(whole) == PARENT_ID
        assert parent_of(write) == id_of(whole)
        assert whole.attributes["sluice.application"] == "app"
        assert whole.attributes["sluice.map_attempt"] == 7
        assert whole.attributes["sluice.partition_type"] == kind.name.lower()
        assert whole.attributes["sluice.bytes"] == 20 * len(CONTENT)
        assert write.attributes["sluice.bytes"] == 20 * len(CONTENT)
        assert write.attributes["sluice.credit_wait_seconds"] >= 0
        assert whole.resource.attributes["service.instance.id"] == cluster[0].taskmanager_id
        (source,) = spans[served]
        assert trace_of(source) == READER_TRACE_ID
        assert links_of(source) == [(TRACE_ID, id_of(whole))]
        assert source.status.status_code is StatusCode.UNSET


async def test_the_span_of_a_partition_lasts_until_it_is_read(tmp_path, collector):
    async with mini_cluster(tmp_path, 1, check=False, **TRACED) as cluster:
        async with await ShuffleClient.connect(str(cluster[0].address), "app") as client:
            with traced(TRACEPARENT):
                async with client.open_result_partition(1, 7, 1, partition_type=BOUNDED) as opened:
                    await opened.emit_buffer(CONTENT, 0)
            assert set(collector.spans(cluster)) == {"write"}
            async with client.open_gate([opened.location], 0) as gate:
                await drained(gate)
            await eventually(lambda: "pipelined partition" in collector.spans(cluster))
        assert {name: len(each) for name, each in collector.spans(cluster).items()} == {
            "write": 1,
            "pipelined partition": 1,
        }


async def test_the_spans_of_a_failed_partition_have_the_error(tmp_path, collector):
    async with mini_cluster(tmp_path, 1, check=False, **TRACED) as cluster:
        client = await ShuffleClient.connect(str(cluster[0].address), "app")
        with pytest.raises(ZeroDivisionError), traced(TRACEPARENT):
            async with client, client.open_result_partition(1, 7, 1, partition_type=BOUNDED):
                raise ZeroDivisionError
        await eventually(lambda: "pipelined partition" in collector.spans(cluster))
        spans = collector.spans(cluster)
        for span in (*spans["pipelined partition"], *spans["write"]):
            assert span.status.status_code is StatusCode.ERROR
            assert span.attributes["error.type"] == "PRODUCER_FAILED"


async def test_a_reader_of_a_partition_without_spans_links_to_nothing(tmp_path, collector):
    async with mini_cluster(tmp_path, 1, check=False, **TRACED) as cluster:
        async with await ShuffleClient.connect(str(cluster[0].address), "app") as client:
            async with client.open_result_partition(1, 7, 1, partition_type=BOUNDED) as opened:
                await opened.emit_buffer(CONTENT, 0)
            with traced(READER):
                async with client.open_gate([opened.location], 0) as gate:
                    await drained(gate)
            await eventually(lambda: "source" in collector.spans(cluster))
        spans = collector.spans(cluster)
        assert set(spans) == {"gate", "source"}
        assert not links_of(spans["source"][0])


async def test_a_partition_without_a_collector_is_written_and_read(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        assert cluster[0].tracing is None
        async with await ShuffleClient.connect(str(cluster[0].address), "app") as client:
            with traced(TRACEPARENT):
                async with client.open_result_partition(1, 7, 1, partition_type=BOUNDED) as opened:
                    await opened.emit_buffer(CONTENT, 0)
                async with client.open_gate([opened.location], 0) as gate:
                    await drained(gate)
