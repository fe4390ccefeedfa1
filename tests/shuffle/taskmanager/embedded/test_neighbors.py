"""Subpartitions of one task whose readers are fast and slow."""

from __future__ import annotations

import asyncio

import pytest

from sluice.shuffle.records.record_reader import ChannelEvent, ChannelRecord
from sluice.shuffle.records.serializers import BytesSerializer
from tests.support.api_clients import TASKS, emitted
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES, mini_cluster

RECORDS = 60
RECORDS_A_BUFFER = 10
"""Records to the neighbor for each buffer that becomes full for the reader that has stopped."""
PATIENCE_SECONDS = 60
NEIGHBOR, STOPPED = 0, 1


@TASKS
@pytest.mark.parametrize("reader_at", [0, 1], ids=["local", "remote"])
async def test_a_reader_that_stops_delays_no_record_to_its_neighbor(
    tmp_path, clients_at, reader_at
):
    """Each record is written when the one before it was read, so it comes with its own flush."""
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        mini_cluster(tmp_path) as cluster,
        clients_at(cluster, 0, reader_at, buffer_timeout_seconds=0.01) as (client, other),
        client.open_result_partition(1, 7, 2) as partition,
        other.open_gate([partition.location], NEIGHBOR) as neighbor,
        other.open_gate([partition.location], STOPPED) as stopped,
    ):
        writer = partition.record_writer(BytesSerializer())
        reader = neighbor.reader(BytesSerializer())
        large = bytes(SEGMENT_SIZE_BYTES)
        for number in range(RECORDS):
            if number % RECORDS_A_BUFFER == 0:
                await emitted(writer.emit_to(large, STOPPED))
            record = b"%d" % number
            await emitted(writer.emit_to(record, NEIGHBOR))
            assert await reader.next() == ChannelRecord(0, record)
        await asyncio.gather(partition.finish(), read_to_the_end(reader, 0))
        await read_to_the_end(stopped.reader(BytesSerializer()), RECORDS // RECORDS_A_BUFFER)


async def read_to_the_end(reader, expected: int) -> None:
    elements = [element async for element in reader]
    assert len(elements) == expected + 1
    assert isinstance(elements[-1], ChannelEvent)
