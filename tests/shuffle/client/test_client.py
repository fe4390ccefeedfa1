"""The Python API against TaskManagers: a task reads the records of another."""

from __future__ import annotations

import asyncio

import pytest

from sluice.shuffle.client.client import ShuffleClient
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.shuffle.records.selectors import HashSelector
from sluice.shuffle.records.serializers import BytesSerializer
from tests.support.mini_cluster import mini_cluster

DEADLINE_SECONDS = 30
RECORDS = [b"%d" % n * (1 + n % 50) for n in range(5000)]
KINDS = pytest.mark.parametrize("kind", list(ResultPartitionType))


async def read(client, locations, subpartition):
    async with client.open_gate(locations, subpartition) as gate:
        return [record async for record in gate.records(BytesSerializer())]


@KINDS
@pytest.mark.parametrize("reader", [0, 1])
async def test_a_task_reads_the_records_of_another(tmp_path, kind, reader):
    async with mini_cluster(tmp_path) as cluster, asyncio.timeout(DEADLINE_SECONDS):
        producer = await ShuffleClient.connect(cluster[0].address, "app")
        consumer = await ShuffleClient.connect(cluster[reader].address, "app")
        async with producer, consumer:
            async with producer.open_result_partition(1, 7, 4, partition_type=kind) as partition:
                location = partition.location
                if kind.is_pipelined:
                    reading = [
                        asyncio.create_task(read(consumer, [location], number))
                        for number in range(4)
                    ]
                writer = partition.record_writer(BytesSerializer(), HashSelector[bytes]())
                for record in RECORDS[:1000]:
                    if (pending := writer.emit(record)) is not None:
                        await pending
                if (pending := writer.emit_batch(RECORDS[1000:])) is not None:
                    await pending
            if not kind.is_pipelined:
                reading = [
                    asyncio.create_task(read(consumer, [location], number)) for number in range(4)
                ]
            parts = await asyncio.gather(*reading)
        assert sorted(record for part in parts for record in part) == sorted(RECORDS)
        assert min(map(len, parts)) > 100
