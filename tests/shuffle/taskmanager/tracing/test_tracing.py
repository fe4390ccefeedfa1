"""Traces of two TaskManagers in one loop: the spans, their parents, and when there are none."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.trace import StatusCode

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.protocol.limits import TRACES
from sluice.protocol.schema import (
    FinishPartition,
    OpenPartition,
    PartitionFinished,
    PartitionOpened,
    TraceContext,
)
from sluice.shuffle.client.client import ShuffleClient
from sluice.shuffle.client.traced import traced
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.shuffle.taskmanager.config.traces_config import TracesConfig
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
from tests.support.copies import copying
from tests.support.mini_cluster import eventually, mini_cluster

if TYPE_CHECKING:
    from sluice.shuffle.client.partition_location import PartitionLocation
    from tests.support.mini_cluster import MiniCluster

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])

TRACED: dict[str, Any] = {"traces_endpoint": ENDPOINT}
CONTENT = b"bytes of a subpartition" * 100


async def write(
    cluster: MiniCluster, index: int, map_attempt_id: int = 0, **options: Any
) -> PartitionLocation:
    client = await ShuffleClient.connect(str(cluster[index].address), "app")
    async with (
        client,
        client.open_result_partition(
            1, map_attempt_id, 2, partition_type=ResultPartitionType.BLOCKING, **options
        ) as partition,
    ):
        await partition.emit_buffer(CONTENT, 0)
    return partition.location


async def read(cluster: MiniCluster, index: int, locations: list[PartitionLocation]) -> bytes:
    client = await ShuffleClient.connect(str(cluster[index].address), "app")
    taken = []
    async with client, client.open_gate(locations, 0) as gate:
        while (part := await gate.next_buffer_or_event()) is not None:
            taken.append(bytes(part.buffer.payload))
            give_back(part.buffer)
    return b"".join(taken)


async def test_a_map_output_is_traced_to_the_journal(tmp_path, collector):
    async with mini_cluster(tmp_path, 1, check=False, **TRACED) as cluster:
        with traced(TRACEPARENT):
            await write(cluster, 0)
        spans = collector.spans(cluster)
        (output,), (commit,) = spans["map output"], spans["commit"]
        assert trace_of(output) == trace_of(commit) == TRACE_ID
        assert parent_of(output) == PARENT_ID
        assert parent_of(commit) == id_of(output)
        assert output.attributes["sluice.application"] == "app"
        assert output.attributes["sluice.shuffle"] == 1
        assert output.attributes["sluice.map_attempt"] == 0
        assert output.attributes["sluice.regions"] == 1
        assert output.attributes["sluice.bytes"] > 0
        assert output.attributes["sluice.tiers"] == (str(tmp_path / "tm0" / "memory"),)
        assert output.status.status_code is StatusCode.UNSET


async def test_a_copy_continues_at_its_receiver(tmp_path, collector):
    async with copying(tmp_path, check=False, **TRACED) as (cluster, _):
        with traced(TRACEPARENT):
            await write(cluster, 0, replicas=2, replicas_synchronous=True)
        spans = collector.spans(cluster)
        first, second = sorted(
            spans["map output"], key=lambda span: span.attributes["sluice.is_copy"]
        )
        (copy,) = spans["copy"]
        assert parent_of(copy) == id_of(first)
        assert parent_of(second) == id_of(copy)
        assert {trace_of(span) for span in (first, copy, second)} == {TRACE_ID}
        assert first.resource.attributes["service.instance.id"] == cluster[0].taskmanager_id
        assert second.resource.attributes["service.instance.id"] == cluster[1].taskmanager_id
        assert len(spans["commit"]) == 2


async def test_a_gate_continues_at_each_source(tmp_path, collector):
    async with mini_cluster(tmp_path, check=False, **TRACED) as cluster:
        locations = [await write(cluster, 0, 0), await write(cluster, 1, 1)]
        assert not collector.spans(cluster)
        with traced(TRACEPARENT):
            await read(cluster, 0, locations)
        await eventually(lambda: len(collector.spans(cluster).get("gate", ())) == 1)
        await eventually(lambda: len(collector.spans(cluster).get("served source", ())) == 1)
        spans = collector.spans(cluster)
        (gate,), (served,) = spans["gate"], spans["served source"]
        here, there = sorted(
            spans["source"], key=lambda span: not span.attributes["sluice.is_local"]
        )
        assert parent_of(gate) == PARENT_ID
        assert parent_of(here) == parent_of(there) == id_of(gate)
        assert parent_of(served) == id_of(there)
        assert here.attributes["sluice.source"] == cluster[0].taskmanager_id
        assert there.attributes["sluice.source"] == cluster[1].taskmanager_id
        assert there.attributes["sluice.bytes"] == served.attributes["sluice.bytes"] > 0
        sources = here.attributes["sluice.bytes"] + there.attributes["sluice.bytes"]
        assert gate.attributes["sluice.bytes"] == sources


async def test_stage_and_task_attempt_are_attributes_of_all_spans(tmp_path, collector):
    async with mini_cluster(tmp_path, 1, check=False, **TRACED) as cluster:
        client = await cluster.producer(0)
        await write_traced(client, TraceContext(0, TRACEPARENT, 7, 1 << 40))
        spans = [each for group in collector.spans(cluster).values() for each in group]
        assert len(spans) == 2
        for span in spans:
            assert span.attributes["spark.stage.id"] == 7
            assert span.attributes["spark.task.attempt_id"] == 1 << 40


@pytest.mark.parametrize(
    "traceparent",
    ["", "no trace", f"00-{'0' * 32}-{PARENT_ID}-01", f"ff-{TRACE_ID}-{PARENT_ID}-01"],
)
async def test_without_a_valid_parent_a_trace_begins(tmp_path, collector, traceparent):
    async with mini_cluster(tmp_path, 1, check=False, **TRACED) as cluster:
        with traced(traceparent):
            await write(cluster, 0)
        (output,) = collector.spans(cluster)["map output"]
        assert parent_of(output) == ""
        assert trace_of(output) != TRACE_ID


async def test_nothing_is_recorded_of_a_trace_that_is_sampled_out(tmp_path, collector):
    settings: dict[str, Any] = TRACED | {"traces_sample_ratio": 0}
    async with copying(tmp_path, check=False, **settings) as (cluster, _):
        for traceparent in ("", f"00-{TRACE_ID}-{PARENT_ID}-00"):
            attempt = len(traceparent)
            with traced(traceparent):
                location = await write(cluster, 0, attempt, replicas=2, replicas_synchronous=True)
                await read(cluster, 1, [location])
        assert not collector.spans(cluster)
        with traced(TRACEPARENT):  # the client has decided
            await write(cluster, 0, 1000)
        assert set(collector.spans(cluster)) == {"map output", "commit"}


async def test_nothing_is_recorded_of_clients_that_do_not_ask(tmp_path, collector):
    async with copying(tmp_path, check=False, **TRACED) as (cluster, _):
        location = await write(cluster, 0, replicas=2, replicas_synchronous=True)
        await read(cluster, 1, [location])
        assert not collector.spans(cluster)


async def test_an_aborted_map_output_ends_its_span_with_an_error(tmp_path, collector):
    async with mini_cluster(tmp_path, 1, check=False, **TRACED) as cluster:
        client = await ShuffleClient.connect(str(cluster[0].address), "app")
        kind = ResultPartitionType.BLOCKING
        with pytest.raises(ZeroDivisionError), traced(TRACEPARENT):
            async with client, client.open_result_partition(1, 0, 2, partition_type=kind):
                raise ZeroDivisionError
        await eventually(lambda: "map output" in collector.spans(cluster))
        (output,) = collector.spans(cluster)["map output"]
        assert output.status.status_code is StatusCode.ERROR
        assert "gave its partition up" in output.status.description


async def test_a_source_that_fails_ends_its_spans_with_the_error(tmp_path, collector):
    settings: dict[str, Any] = TRACED | {"partition_request_timeout_seconds": 0.05}
    async with mini_cluster(tmp_path, check=False, **settings) as cluster:
        location = await write(cluster, 1)
        missing = location._replace(map_attempt_id=99)
        with traced(TRACEPARENT), pytest.raises(Exception, match="99"):
            await read(cluster, 0, [missing])
        await eventually(lambda: "served source" in collector.spans(cluster))
        await eventually(lambda: "gate" in collector.spans(cluster))
        spans = collector.spans(cluster)
        for span in (*spans["source"], *spans["served source"]):
            assert span.status.status_code is StatusCode.ERROR
            assert span.attributes["error.type"] == "PARTITION_NOT_FOUND"


async def test_a_taskmanager_without_a_collector_does_not_offer_traces(tmp_path):
    async with mini_cluster(tmp_path, 1, check=False) as cluster:
        assert cluster[0].tracing is None
        with traced(TRACEPARENT):
            async with await ShuffleClient.connect(str(cluster[0].address), "app"):
                pass
            location = await write(cluster, 0)
            assert await read(cluster, 0, [location])
        client = await cluster.producer(0)
        assert not client.ack.features & TRACES
        # One that sends a context all the same is served.
        await write_traced(client, TraceContext(0, TRACEPARENT, None, None), 5)


async def test_contexts_without_their_map_output_or_gate_are_ignored(tmp_path, collector):
    async with mini_cluster(tmp_path, check=False, **TRACED) as cluster:
        writer, reader = await cluster.producer(0), await cluster.consumer(1)
        for client in (writer, reader):
            for number in range(200):
                client.send(TraceContext(number, TRACEPARENT, None, None))
        location = await write(cluster, 0)
        assert await read(cluster, 1, [location])
        assert not collector.spans(cluster)
        assert writer.lost is None
        assert reader.lost is None


async def write_traced(client: Any, context: TraceContext, map_attempt_id: int = 0) -> None:
    """Write an empty map output with a context, by hand."""
    client.send(OpenPartition(context.number, 1, map_attempt_id, 2))
    client.send(context)
    client.send(FinishPartition(context.number, 0, 0))
    await client.expect(PartitionOpened)
    await client.expect(PartitionFinished)


@pytest.mark.parametrize(
    "endpoint",
    [
        "collector:4318",
        "ftp://collector/v1/traces",
        "http:///v1/traces",
        "http://user@host/",
        "http://h:0/",
    ],
)
async def test_an_endpoint_that_is_not_a_url_is_refused(endpoint):
    with pytest.raises(ValueError, match="is not the URL of a collector"):
        TracesConfig(traces_endpoint=endpoint)


@pytest.mark.parametrize("ratio", ["-0.1", "1.1", "nan"])
async def test_a_ratio_that_is_none_is_refused(ratio):
    with pytest.raises(ValueError, match="traces_sample_ratio"):
        TracesConfig.model_validate({"traces_sample_ratio": ratio})


async def test_missing_packages_are_named_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "sluice.shuffle.taskmanager.tracing.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(SluiceError, match="packages for traces are not installed") as caught:
        async with mini_cluster(tmp_path, 1, check=False, **TRACED):
            pass
    assert caught.value.code is ErrorCode.CONFIGURATION
    assert "sluice-shuffle[traces]" in caught.value.remedy
