"""Every setting of a client and option of a partition has its effect, seen through the API."""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.protocol.schema import DATA
from sluice.shuffle.client.client_gate import BlockSource
from sluice.shuffle.partition.blocks import BlockCodec
from sluice.shuffle.partition.output_flusher import DEFAULT_INTERVAL_SECONDS
from sluice.shuffle.partition.partition_type import ConsumptionConstraint, ResultPartitionType
from sluice.shuffle.records.record_reader import ChannelRecord
from sluice.shuffle.records.serializers import BytesSerializer
from tests.support.api_clients import api_clients, emitted, give_back, pipelined
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES, eventually, mini_cluster

LENGTH_BYTES = 4
"""In front of each record."""

FULL = bytes(SEGMENT_SIZE_BYTES - LENGTH_BYTES)
"""A record that fills a segment to its last byte."""

ONLY_FULL = -1
"""The buffer timeout at which only full buffers are sent."""

NEVER_SECONDS = 3600
"""A buffer timeout that does not pass in a test."""


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


async def test_a_flusher_sends_the_open_buffers_of_a_client(tmp_path):
    async with (
        mini_cluster(tmp_path, 1) as cluster,
        api_clients(cluster, 0, buffer_timeout_seconds=0.01) as (client,),
        client.open_result_partition(1, 7, 1) as partition,
        client.open_gate([partition.location], 0) as gate,
    ):
        reader = gate.reader(BytesSerializer())
        writer = partition.record_writer(BytesSerializer())
        for record in (b"first", b"second"):
            await emitted(writer.emit(record))
            assert await reader.next() == ChannelRecord(0, record)
        await ended(partition, gate)


async def test_with_a_timeout_of_zero_each_call_sends_its_records(tmp_path):
    async with (
        mini_cluster(tmp_path, 1) as cluster,
        api_clients(cluster, 0, buffer_timeout_seconds=NEVER_SECONDS) as (client,),
        client.open_result_partition(1, 7, 1, buffer_timeout_seconds=0) as partition,
        client.open_gate([partition.location], 0) as gate,
    ):
        reader = gate.reader(BytesSerializer())
        writer = partition.record_writer(BytesSerializer())
        for record in (b"first", b"second"):
            await emitted(writer.emit(record))
            assert await reader.next() == ChannelRecord(0, record)
        assert pipelined(partition).buffers_out == 2
        await ended(partition, gate)


async def test_with_a_negative_timeout_only_full_buffers_are_sent(tmp_path):
    async with (
        mini_cluster(tmp_path, 1) as cluster,
        api_clients(cluster, 0, buffer_timeout_seconds=0.01) as (client,),
        client.open_result_partition(1, 7, 1, buffer_timeout_seconds=ONLY_FULL) as waiting,
        client.open_result_partition(1, 8, 1) as flushed,
        client.open_gate([waiting.location], 0) as gate,
        client.open_gate([flushed.location], 0) as other,
    ):
        records = waiting.record_writer(BytesSerializer())
        await emitted(records.emit(FULL))
        assert await read_one(gate) == FULL
        await emitted(records.emit(b"in an open buffer"))
        # The flusher of the other partition has its turns meanwhile.
        reader = other.reader(BytesSerializer())
        writer = flushed.record_writer(BytesSerializer())
        loop = asyncio.get_running_loop()
        began = loop.time()
        while loop.time() < began + 2 * DEFAULT_INTERVAL_SECONDS:
            await emitted(writer.emit(b"flushed"))
            assert await reader.next() == ChannelRecord(0, b"flushed")
        assert pipelined(waiting).buffers_out == 1
        assert pipelined(waiting).has_open_buffers
        assert await ended(waiting, gate) == [b"in an open buffer"]
        assert await ended(flushed, other) == []


@pytest.mark.parametrize("flush_all", [False, True], ids=["flush", "flush_all"])
async def test_a_second_flush_promises_no_bytes_that_are_written_later(tmp_path, flush_all):
    async with (
        mini_cluster(
            tmp_path, 1, exclusive_buffers_per_channel=1, floating_buffers_per_gate=0
        ) as cluster,
        api_clients(cluster, 0, exclusive_buffers_per_channel=1, floating_buffers_per_gate=0) as (
            client,
        ),
        client.open_result_partition(1, 7, 2, buffer_timeout_seconds=ONLY_FULL) as partition,
    ):
        sender = pipelined(partition)
        await eventually(lambda: sender.credit, "the first credit")
        all_credit = sender.credit
        records = partition.record_writer(BytesSerializer())
        for _ in range(all_credit):
            await emitted(records.emit_to(FULL, 0))
        await eventually(lambda: sender.buffers_out == all_credit)
        # Without credit, flushed buffers wait.
        for subpartition in (0, 1):
            await emitted(records.emit_to(b"early", subpartition))
            if not flush_all:
                records.flush(subpartition)
        for _ in range(2):
            if flush_all:
                records.flush_all()
            else:
                records.flush(0)
        async with client.open_gate([partition.location], 0) as gate:
            await eventually(lambda: sender.buffers_out > all_credit, "credit for one buffer")
            assert sender.buffers_out == all_credit + 1
            await emitted(records.emit_to(b"late", 0))
            reader = gate.reader(BytesSerializer())
            for _ in range(all_credit):
                assert await reader.next() == ChannelRecord(0, FULL)
            assert await reader.next() == ChannelRecord(0, b"early")
            async with client.open_gate([partition.location], 1) as other:
                assert await read_one(other) == b"early"
                flushed_buffers = all_credit + 2
                await eventually(lambda: sender.credit or sender.buffers_out > flushed_buffers)
                await asyncio.sleep(0.01)  # with that credit, nothing more may go
                assert sender.buffers_out == flushed_buffers
                assert sender.has_open_buffers
                assert await ended(partition, gate, other) == [b"late"]


@pytest.mark.parametrize(
    "partition_type", [ResultPartitionType.PIPELINED, ResultPartitionType.PIPELINED_BOUNDED]
)
@pytest.mark.parametrize("consumption", [None, ConsumptionConstraint.WHEN_REGISTERED])
async def test_a_reader_of_a_registered_partition_waits_for_data(
    tmp_path, partition_type, consumption
):
    async with (
        mini_cluster(tmp_path, 1, partition_request_timeout_seconds=0.02) as cluster,
        api_clients(cluster, 0) as (client,),
        client.open_result_partition(
            1, 7, 1, partition_type=partition_type, consumption=consumption
        ) as partition,
        client.open_gate([partition.location], 0) as gate,
    ):
        missing = partition.location._replace(map_attempt_id=8)
        async with client.open_gate([missing], 0) as other:
            with pytest.raises(SluiceError):  # its request is later, and its deadline passes
                await other.next_buffer_or_event()
        records = partition.record_writer(BytesSerializer())
        await emitted(records.emit(b"first"))
        assert await ended(partition, gate) == [b"first"]


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
        pools = {
            partition: partition.writer.memory.pool.status() for partition in (written, stored)
        }
        assert [pool.kind for pool in pools.values()] == ["pipelined", "map_output"]
        assert [pool.maximum_segments for pool in pools.values()] == [3, None]
        await ended(written, gate)
