"""A wrong message of a producer fails its pipelined partition, and no other."""

from __future__ import annotations

import msgpack
import pytest

from sluice.protocol.credit import MAX_OVERDRAFT_EVENTS
from sluice.protocol.errors import ErrorCode
from sluice.protocol.events import EndOfData, encode_end_of_partition, encode_event
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    BLOCKING_EVENT,
    CONSUME_WHEN_FINISHED,
    CONSUME_WHEN_REGISTERED,
    DATA,
    EVENT,
    EVERY_SUBPARTITION,
    PARTITION_BLOCKING,
    PARTITION_HYBRID_SELECTIVE,
    PARTITION_PIPELINED,
    PRIORITY_EVENT,
    AddCredit,
    ErrorResponse,
    FinishPartition,
    OpenPipelinedPartition,
    PartitionOpened,
    PipelinedData,
)
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES, eventually, mini_cluster
from tests.support.pipelined_clients import PipelinedReader, PipelinedWriter

DATA_0 = PipelinedData(0, 0, DATA)
EVENT_0 = PipelinedData(0, 0, EVENT)
EVENT_BYTES = encode_event(EndOfData())


@pytest.mark.parametrize(
    ("message", "payload", "code"),
    [
        (PipelinedData(0, 2, DATA), b"x", ErrorCode.MALFORMED_MESSAGE),
        (
            PipelinedData(0, 2**32 - 2, EVENT),
            encode_event(EndOfData()),
            ErrorCode.MALFORMED_MESSAGE,
        ),
        (DATA_0, b"", ErrorCode.MALFORMED_MESSAGE),
        (EVENT_0, b"", ErrorCode.MALFORMED_MESSAGE),
        (EVENT_0, b"\xc1", ErrorCode.INVALID_EVENT),
        (EVENT_0, msgpack.packb([99]), ErrorCode.INVALID_EVENT),
        (PipelinedData(0, 0, PRIORITY_EVENT), msgpack.packb([2, 1]), ErrorCode.INVALID_EVENT),
        (
            PipelinedData(0, 0, BLOCKING_EVENT),
            encode_end_of_partition(0, 0),
            ErrorCode.INVALID_EVENT,
        ),
        (EVENT_0, encode_end_of_partition(0, 0), ErrorCode.INVALID_EVENT),
        (FinishPartition(0, 1, 0), b"", ErrorCode.END_OF_PARTITION_MISMATCH),
        (FinishPartition(0, 0, 1), b"", ErrorCode.MALFORMED_MESSAGE),
    ],
)
async def test_a_bad_message_fails_its_partition_only(tmp_path, message, payload, code):
    async with mini_cluster(tmp_path, 1) as cluster:
        client = await cluster.producer(0)
        bad = await PipelinedWriter.open(client, 1, 2)
        ack = client.ack
        reader = PipelinedReader(await cluster.consumer(0), [(ack, 1)])
        good = await PipelinedWriter.open(await cluster.producer(0), 2, 1)
        other = PipelinedReader(await cluster.consumer(0), [(ack, 2)])
        client.send(message, payload)
        with pytest.raises(RemoteError) as caught:
            await bad.hear(ErrorResponse)
        assert caught.value.code is code
        await reader.read_all()
        assert reader.errors[0].code is ErrorCode.PRODUCER_FAILED
        await good.send(0, b"unharmed")
        await good.finish()
        await other.read_all()
        assert other.data() == b"unharmed"
        again = await PipelinedWriter.open(client, 3, 1)  # the connection lives
        await again.finish()


@pytest.mark.parametrize(
    ("message", "payload", "on_account"),
    [
        (DATA_0, bytes(SEGMENT_SIZE_BYTES), 0),
        (EVENT_0, EVENT_BYTES, 0),
        (PipelinedData(0, 0, BLOCKING_EVENT), EVENT_BYTES, 0),
        (PipelinedData(0, 0, PRIORITY_EVENT), EVENT_BYTES, MAX_OVERDRAFT_EVENTS),
    ],
)
async def test_no_more_is_taken_than_was_granted(tmp_path, message, payload, on_account):
    async with mini_cluster(tmp_path, 1) as cluster:
        client = await cluster.producer(0)
        writer = await PipelinedWriter.open(client, 1, 1)
        await writer.hear(AddCredit)
        for _ in range(writer.credit + on_account):
            client.send(message, payload)
        await (await PipelinedWriter.open(client, 2, 1, number=1)).finish()  # all that was taken
        client.send(message, payload)
        with pytest.raises(RemoteError) as caught:
            await writer.hear(ErrorResponse)
        assert caught.value.code is ErrorCode.CREDIT_EXCEEDED


@pytest.mark.parametrize("data_type", [EVENT, PRIORITY_EVENT])
async def test_an_event_that_was_read_is_credit_again(tmp_path, data_type):
    async with mini_cluster(tmp_path, 1) as cluster:
        client = await cluster.producer(0)
        writer = await PipelinedWriter.open(client, 1, 2)
        readers = [
            PipelinedReader(await cluster.consumer(0), [(client.ack, 1)], number)
            for number in range(2)
        ]
        for _ in range(100):
            await writer.send(EVERY_SUBPARTITION, EVENT_BYTES, data_type)
            for reader in readers:
                await reader.read_until(1)
                reader.received[0].clear()
        await writer.send(0, b"data")
        await writer.finish()
        for reader in readers:
            await reader.read_all()


async def test_finished_partitions_count_as_open_until_they_are_read(tmp_path):
    async with mini_cluster(tmp_path, 1, quota_open_partitions=2) as cluster:
        client = await cluster.producer(0)
        for attempt in (1, 2):
            await (await PipelinedWriter.open(client, attempt, 1)).finish()
        with pytest.raises(RemoteError) as caught:
            await PipelinedWriter.open(client, 3, 1)
        assert caught.value.code is ErrorCode.QUOTA_EXCEEDED
        reader = PipelinedReader(await cluster.consumer(0), [(client.ack, 1)])
        await reader.read_all()
        await reader.close()
        await (await PipelinedWriter.open(client, 3, 1)).finish()


@pytest.mark.parametrize(
    ("partition_type", "consumption", "subpartitions", "code"),
    [
        (PARTITION_BLOCKING, CONSUME_WHEN_REGISTERED, 1, ErrorCode.MALFORMED_MESSAGE),
        (PARTITION_BLOCKING, CONSUME_WHEN_FINISHED, 1, ErrorCode.MALFORMED_MESSAGE),
        (PARTITION_PIPELINED, CONSUME_WHEN_FINISHED, 1, ErrorCode.MALFORMED_MESSAGE),
        (PARTITION_PIPELINED, CONSUME_WHEN_REGISTERED, 2**32 - 1, ErrorCode.INSUFFICIENT_BUFFERS),
    ],
)
async def test_partitions_that_cannot_be_opened(
    tmp_path, partition_type, consumption, subpartitions, code
):
    """Type and consumption must go together, and the memory must be there to be promised."""
    async with mini_cluster(tmp_path, 1) as cluster:
        client = await cluster.producer(0)
        with pytest.raises(RemoteError) as caught:
            await PipelinedWriter.open(
                client, 1, subpartitions, partition_type=partition_type, consumption=consumption
            )
        assert caught.value.code is code
        await (await PipelinedWriter.open(client, 1, 1)).finish()


async def test_a_name_is_taken_once(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        client = await cluster.producer(0)
        await PipelinedWriter.open(client, 1, 1)
        client.send(OpenPipelinedPartition(9, 1, 1, 1, PARTITION_PIPELINED, 0))
        with pytest.raises(RemoteError) as caught:
            await client.expect(PartitionOpened)
        assert caught.value.code is ErrorCode.DUPLICATE_MAP_OUTPUT


@pytest.mark.parametrize("subpartitions", [1, 2], ids=["the last reader", "another reads on"])
@pytest.mark.parametrize("kind", [PARTITION_PIPELINED, PARTITION_HYBRID_SELECTIVE])
async def test_a_reader_after_one_that_left_gets_partition_released(tmp_path, kind, subpartitions):
    """Also after the last one of a finished partition, which is gone then."""
    async with mini_cluster(tmp_path, 1) as cluster:
        client = await cluster.producer(0)
        writer = await PipelinedWriter.open(client, 1, subpartitions, partition_type=kind)
        reader = PipelinedReader(await cluster.consumer(0), [(client.ack, 1)], credit=1)
        reader.give_credit = 0
        for _ in range(2):
            await writer.send(0, bytes(SEGMENT_SIZE_BYTES))
        await reader.read_until(1)
        await writer.finish()
        await reader.close()
        partitions = cluster[0].partitions
        await eventually(lambda: len(partitions.pipelined) == subpartitions - 1)
        again = PipelinedReader(await cluster.consumer(0), [(client.ack, 1)])
        await again.read_all()
        assert again.errors[0].code is ErrorCode.PARTITION_RELEASED


async def test_a_partition_that_was_read_leaves_no_reason(tmp_path):
    async with mini_cluster(tmp_path, 1, partition_request_timeout_seconds=0.1) as cluster:
        client = await cluster.producer(0)
        await (await PipelinedWriter.open(client, 1, 1)).finish()
        reader = PipelinedReader(await cluster.consumer(0), [(client.ack, 1)])
        await reader.read_all()
        await reader.close()
        await eventually(lambda: len(cluster[0].partitions.pipelined) == 0)
        again = PipelinedReader(await cluster.consumer(0), [(client.ack, 1)])
        await again.read_all()
        assert again.errors[0].code is ErrorCode.PARTITION_NOT_FOUND
