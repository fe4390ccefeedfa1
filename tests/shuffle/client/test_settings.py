"""Every setting of a client and option of a partition has its effect, seen through the API."""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.protocol.schema import DATA
from sluice.shuffle.client.client_gate import BlockSource
from sluice.shuffle.partition.blocks import BlockCodec
from sluice.shuffle.partition.partition_type import ConsumptionConstraint, ResultPartitionType
from sluice.shuffle.records.record_reader import ChannelRecord
from sluice.shuffle.records.serializers import BytesSerializer
from tests.support.api_clients import api_clients, emitted, give_back
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES, eventually, mini_cluster

LENGTH_BYTES = 4
"""In front of each record."""

FULL = bytes(SEGMENT_SIZE_BYTES - LENGTH_BYTES)
"""A record that fills a segment to its last byte."""


async def read_one(gate) -> bytes:
    """Wait for the next record."""
    element = await gate.reader(BytesSerializer()).next()
    assert isinstance(element, ChannelRecord)
    return bytes(element.value)


def queued_buffers(gate) -> int:
    """Return the number of buffers that wait in the only channel of a gate."""
    (channel,) = gate.gate.channels
    return int(channel.queued_buffers)


async def ended(partition, *gates) -> list[bytes]:
    """Finish a partition, read its gates to their ends, and return the records that were left."""
    finishing = asyncio.create_task(partition.finish())
    left = [record for gate in gates async for record in gate.records(BytesSerializer())]
    await finishing
    return left


@pytest.mark.parametrize(
    "partition_type", [ResultPartitionType.PIPELINED, ResultPartitionType.PIPELINED_BOUNDED]
)
async def test_a_reader_that_begins_at_the_first_output_does_not_begin_before(
    tmp_path, partition_type
):
    """A request that waits longer than its deadline fails; one that is served waits for data."""
    async with (
        mini_cluster(tmp_path, 1, partition_request_timeout_seconds=0.02) as cluster,
        api_clients(cluster, 0, buffer_timeout_seconds=0) as (client,),
        client.open_result_partition(
            1,
            7,
            1,
            partition_type=partition_type,
            consumption=ConsumptionConstraint.AT_FIRST_OUTPUT,
        ) as partition,
    ):
        async with client.open_gate([partition.location], 0) as gate:
            with pytest.raises(SluiceError) as caught:
                await gate.next_buffer_or_event()
            assert caught.value.code is ErrorCode.PARTITION_NOT_FOUND
        records = partition.record_writer(BytesSerializer())
        await emitted(records.emit(b"first"))
        async with client.open_gate([partition.location], 0) as gate:
            assert await read_one(gate) == b"first"
            await ended(partition, gate)


@pytest.mark.parametrize("codec", BlockCodec)
async def test_a_stored_partition_has_the_codec_that_was_asked_for(tmp_path, codec):
    async with mini_cluster(tmp_path, 1) as cluster, api_clients(cluster, 0) as (client,):
        async with client.open_result_partition(
            1, 7, 1, partition_type=ResultPartitionType.BLOCKING, codec=codec
        ) as partition:
            await partition.emit_buffer(bytes(8 * SEGMENT_SIZE_BYTES), 0)
        async with client.open_gate([partition.location], 0) as gate:
            assert [record async for record in buffers(gate)] == [bytes(SEGMENT_SIZE_BYTES)] * 8
            source = gate.source
            assert isinstance(source, BlockSource)
            assert source.raw_bytes >= 8 * SEGMENT_SIZE_BYTES
            is_compressed = source.stored_bytes < source.raw_bytes
            assert is_compressed == (codec is BlockCodec.LZ4)


async def buffers(gate):
    """Read the data buffers of a gate to its end."""
    while (taken := await gate.next_buffer_or_event()) is not None:
        if taken.buffer.data_type == DATA:
            yield bytes(taken.buffer.payload)
        give_back(taken.buffer)


@pytest.mark.parametrize("floating", [0, 3])
async def test_a_channel_with_a_backlog_gets_the_floating_buffers_of_its_gate(tmp_path, floating):
    exclusive = 2
    async with (
        mini_cluster(tmp_path, 1) as cluster,
        api_clients(
            cluster,
            0,
            exclusive_buffers_per_channel=exclusive,
            floating_buffers_per_gate=floating,
        ) as (client,),
        client.open_result_partition(1, 7, 1) as partition,
        client.open_gate([partition.location], 0) as gate,
    ):
        records = partition.record_writer(BytesSerializer())
        for _ in range(2 * (exclusive + floating)):
            await emitted(records.emit(FULL))
        await eventually(
            lambda: queued_buffers(gate) == exclusive + floating,
            "the reader's buffers in use",
        )
        finishing = asyncio.create_task(partition.finish())
        taken = [record async for record in gate.records(BytesSerializer())]
        assert taken == [FULL] * 2 * (exclusive + floating)
        await finishing


@pytest.mark.parametrize(
    ("overdraft", "segments_of_a_record", "waits"),
    [(0, 2, False), (0, 3, True), (4, 6, False), (4, 7, True)],
)
async def test_a_record_that_has_begun_takes_overdraft(
    tmp_path, overdraft, segments_of_a_record, waits
):
    async with (
        mini_cluster(tmp_path, 1) as cluster,
        api_clients(cluster, 0, max_overdraft_buffers=overdraft) as (client,),
        client.open_result_partition(1, 7, 1, max_segments=2) as partition,
        client.open_gate([partition.location], 0) as gate,
    ):
        records = partition.record_writer(BytesSerializer())
        record = bytes(segments_of_a_record * SEGMENT_SIZE_BYTES - LENGTH_BYTES)
        pending = records.emit(record)
        assert (pending is not None) == waits
        pool = partition.writer.memory.pool
        assert pool.overdraft_segments == overdraft
        assert not records.is_available
        reading = asyncio.create_task(read_one(gate))
        await emitted(pending)
        assert await reading == record
        await ended(partition, gate)


async def test_a_subpartition_with_its_maximum_of_buffers_makes_the_partition_unavailable(
    tmp_path,
):
    maximum = 3
    async with (
        mini_cluster(tmp_path, 1) as cluster,
        api_clients(cluster, 0, max_buffers_per_channel=maximum) as (client,),
        client.open_result_partition(1, 7, 2) as partition,
        client.open_gate([partition.location], 0) as gate,
        client.open_gate([partition.location], 1) as other,
    ):
        records = partition.record_writer(BytesSerializer())
        for _ in range(maximum):
            assert records.is_available
            assert records.emit_to(FULL, 0) is None
        assert not records.is_available
        reader = gate.reader(BytesSerializer())
        for _ in range(maximum):
            assert await reader.next() == ChannelRecord(0, FULL)
        await partition.writer.wait_available()
        assert records.is_available
        await ended(partition, gate, other)


async def test_the_pool_of_a_partition_is_bounded_and_of_its_kind(tmp_path):
    async with (
        mini_cluster(tmp_path, 1) as cluster,
        api_clients(cluster, 0) as (client,),
        client.open_result_partition(1, 7, 1, max_segments=3) as written,
        client.open_result_partition(
            2, 8, 1, partition_type=ResultPartitionType.BLOCKING
        ) as stored,
        client.open_gate([written.location], 0) as gate,
    ):
        pools = {partition: partition.writer.memory.pool for partition in (written, stored)}
        assert [pool.kind for pool in pools.values()] == ["pipelined", "map_output"]
        assert [pool.bounds.maximum_segments for pool in pools.values()] == [3, None]
        await ended(written, gate)
