"""Traces of TaskManagers in processes of their own, at a collector that speaks OTLP over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.shuffle.client.client import ShuffleClient
from sluice.shuffle.client.traced import traced
from sluice.shuffle.partition.partition_type import ResultPartitionType
from tests.support.api_clients import give_back
from tests.support.collector import PARENT_ID, TRACE_ID, TRACEPARENT, otlp_collector
from tests.support.daemon import Daemon

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_factories=["uvloop"])]

KEYS: dict[str, Any] = {"memory_tier_bytes": "16 MiB", "min_free_bytes": 0}


async def test_ids_are_right_across_processes(tmp_path):
    with (
        otlp_collector() as collector,
        Daemon(tmp_path / "a", traces_endpoint=collector.endpoint, **KEYS) as first,
        Daemon(tmp_path / "b", traces_endpoint=collector.endpoint, **KEYS) as second,
    ):
        kind = ResultPartitionType.BLOCKING
        async with (
            await ShuffleClient.connect(first.endpoint, "app") as writer,
            await ShuffleClient.connect(second.endpoint, "app") as reader,
        ):
            with traced(TRACEPARENT):
                async with writer.open_result_partition(1, 0, 1, partition_type=kind) as out:
                    await out.emit_buffer(b"bytes", 0)
                async with reader.open_gate([out.location], 0) as gate:
                    while (part := await gate.next_buffer_or_event()) is not None:
                        give_back(part.buffer)
            sent = {span.name: span for span in collector.until(5)}
        assert {span.trace_id for span in sent.values()} == {TRACE_ID}
        parents = {
            "map output": PARENT_ID,
            "commit": sent["map output"].span_id,
            "gate": PARENT_ID,
            "source": sent["gate"].span_id,
            "served source": sent["source"].span_id,
        }
        assert {name: span.parent_id for name, span in sent.items()} == parents
        writes = {sent[name].instance for name in ("map output", "commit", "served source")}
        reads = {sent[name].instance for name in ("gate", "source")}
        assert len(writes) == len(reads) == 1
        assert writes != reads


async def test_a_collector_that_is_gone_stops_nothing(tmp_path):
    with Daemon(tmp_path, traces_endpoint="http://127.0.0.1:1/v1/traces", **KEYS) as daemon:
        kind = ResultPartitionType.BLOCKING
        async with await ShuffleClient.connect(daemon.endpoint, "app") as client:
            with traced():
                async with client.open_result_partition(1, 0, 1, partition_type=kind) as out:
                    await out.emit_buffer(b"bytes", 0)
                async with client.open_gate([out.location], 0) as gate:
                    while (part := await gate.next_buffer_or_event()) is not None:
                        give_back(part.buffer)
        assert daemon.running
