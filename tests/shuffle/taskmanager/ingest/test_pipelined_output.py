"""A wrong message of a producer fails its pipelined partition, and no other."""

from __future__ import annotations

import msgpack
import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.events import EndOfData, encode_end_of_partition, encode_event
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    BLOCKING_EVENT,
    CONSUME_WHEN_FINISHED,
    CONSUME_WHEN_REGISTERED,
    DATA,
    EVENT,
    PARTITION_BLOCKING,
    PARTITION_PIPELINED,
    PRIORITY_EVENT,
    AddCredit,
    ErrorResponse,
    FinishPartition,
    OpenPipelinedPartition,
    PartitionOpened,
    PipelinedData,
)
from sluice.shuffle.partition.pipelined_subpartition import MAX_QUEUED_EVENTS
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES, mini_cluster
from tests.support.pipelined_clients import PipelinedReader, PipelinedWriter

DATA_0 = PipelinedData(0, 0, DATA)
EVENT_0 = PipelinedData(0, 0, EVENT)


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


async def test_data_without_credit(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        client = await cluster.producer(0)
        writer = await PipelinedWriter.open(client, 1, 1)
        await writer.hear(AddCredit)
        for _ in range(writer.credit + 1):
            client.send(DATA_0, bytes(SEGMENT_SIZE_BYTES))
        with pytest.raises(RemoteError) as caught:
            await writer.hear(ErrorResponse)
        assert caught.value.code is ErrorCode.CREDIT_EXCEEDED


async def test_events_that_nobody_reads_are_bounded(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        client = await cluster.producer(0)
        writer = await PipelinedWriter.open(client, 1, 1)
        for _ in range(MAX_QUEUED_EVENTS + 1):
            client.send(EVENT_0, encode_event(EndOfData()))
        with pytest.raises(RemoteError) as caught:
            await writer.hear(ErrorResponse)
        assert caught.value.code is ErrorCode.LIMIT_EXCEEDED
        assert caught.value.limit == str(MAX_QUEUED_EVENTS)


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
