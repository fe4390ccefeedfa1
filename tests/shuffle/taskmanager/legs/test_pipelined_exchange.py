"""Pipelined partitions between real TaskManagers: written and read at the same time."""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.events import CheckpointBarrier, CustomEvent, EndOfData, encode_event
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    BLOCKING_EVENT,
    CONSUME_AT_FIRST_OUTPUT,
    DATA,
    EVENT,
    EVERY_SUBPARTITION,
    PARTITION_PIPELINED,
    PARTITION_PIPELINED_BOUNDED,
    PRIORITY_EVENT,
    AbortPartition,
    CancelPartitionRequest,
    ErrorResponse,
    OpenPartition,
    OpenPipelinedPartition,
    PartitionAborted,
    PartitionOpened,
    PipelinedData,
    ReleaseShuffle,
    ResumeConsumption,
    ShuffleReleased,
)
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES, MiniCluster, eventually, mini_cluster
from tests.support.pipelined_clients import PipelinedReader, PipelinedWriter

READ_AT = pytest.mark.parametrize("reader_at", [0, 1], ids=["local", "remote"])
"""The producer is at TaskManager 0; its reader at the same one, or across the network."""

BARRIER = encode_event(CheckpointBarrier(1, 2, False))
UNALIGNED = encode_event(CheckpointBarrier(3, 4, True))


async def a_writer(
    cluster: MiniCluster, subpartitions: int = 1, attempt: int = 7, **options: int
) -> PipelinedWriter:
    return await PipelinedWriter.open(await cluster.producer(0), attempt, subpartitions, **options)


async def a_reader(
    cluster: MiniCluster,
    writer: PipelinedWriter,
    reader_at: int,
    subpartition: int = 0,
    *,
    attempt: int = 7,
    credit: int = 4,
) -> PipelinedReader:
    client = await cluster.consumer(reader_at)
    return PipelinedReader(client, [(writer.client.ack, attempt)], subpartition, credit=credit)


def buffers(count: int, size: int = SEGMENT_SIZE_BYTES) -> list[bytes]:
    return [bytes([number % 251]) * size for number in range(count)]


def pipelined_left(cluster: MiniCluster) -> int:
    return sum(len(environment.partitions.pipelined) for environment in cluster.environments)


@READ_AT
async def test_a_partition_is_read_while_it_is_written(tmp_path, reader_at):
    async with mini_cluster(tmp_path) as cluster:
        writer = await a_writer(cluster)
        reader = await a_reader(cluster, writer, reader_at)
        content = buffers(100)
        for number, data in enumerate(content):
            await writer.send(0, data)
            if number % 10 == 0:
                await reader.read_until(number + 1)
        await writer.finish()
        await reader.read_all()
        assert reader.data() == b"".join(content)
        await reader.close()
        await eventually(lambda: pipelined_left(cluster) == 0)


def pipelined_pools(cluster: MiniCluster) -> list:
    pools = cluster[0].network_pool.local_pools
    return [pool for pool in pools if "pipelined" in pool.name]


async def pump(writer: PipelinedWriter, content: list[bytes], sent: list[int]) -> None:
    for data in content:
        await writer.send(0, data)
        sent.append(len(data))


@READ_AT
@pytest.mark.parametrize("partition_type", [PARTITION_PIPELINED, PARTITION_PIPELINED_BOUNDED])
async def test_a_reader_that_does_not_read_stops_the_writer(tmp_path, reader_at, partition_type):
    """Back pressure reaches the source, and ends when the reader goes on."""
    async with mini_cluster(tmp_path) as cluster:
        writer = await a_writer(cluster, partition_type=partition_type)
        reader = await a_reader(cluster, writer, reader_at, credit=1)
        reader.give_credit = 0
        content = buffers(200)
        sent: list[int] = []
        writing = asyncio.create_task(pump(writer, content, sent))
        await reader.read_until(1)
        memory = cluster[0].config.memory
        channel = memory.exclusive_buffers_per_channel + memory.floating_buffers_per_gate
        # One went through; then all buffers of the partition are full, and those of the channel.
        (pool,) = pipelined_pools(cluster)
        most = 1 + pool.size_segments + (channel if reader_at else 0)
        if partition_type == PARTITION_PIPELINED_BOUNDED:
            assert pool.size_segments == channel
        await eventually(lambda: len(sent) == most)
        writer.client.send(AbortPartition(9001))  # of a stranger: only for the answer
        await eventually(lambda: (PartitionAborted(9001), b"") in writer.heard)
        await reader.round_trip()
        assert len(sent) == most
        assert writer.credit == 0
        assert pipelined_pools(cluster)[0].lent_segments == pool.size_segments
        reader.give_credit = 1
        reader.add_credit(1)
        reading = asyncio.create_task(reader.read_all())
        await writing
        await writer.finish()
        await reading
        assert reader.data() == b"".join(content)
        assert cluster[0].producer_services.pipelined_credit_wait.seconds > 0


@READ_AT
async def test_every_subpartition_has_its_reader(tmp_path, reader_at):
    async with mini_cluster(tmp_path) as cluster:
        writer = await a_writer(cluster, 3)
        readers = [await a_reader(cluster, writer, reader_at, index) for index in range(3)]
        reading = [asyncio.create_task(reader.read_all()) for reader in readers]
        for number in range(30):
            await writer.send(number % 3, bytes([number]) * SEGMENT_SIZE_BYTES)
        await writer.finish()
        await asyncio.gather(*reading)
        for index, reader in enumerate(readers):
            assert [payload[0] for _, payload in reader.received[0]] == list(range(index, 30, 3))


def joined(received: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Data without the boundaries of buffers, between the events."""
    content: list[tuple[int, bytes]] = []
    for kind, payload in received:
        if kind == DATA and content and content[-1][0] == DATA:
            content[-1] = DATA, content[-1][1] + payload
        else:
            content.append((kind, payload))
    return content


@READ_AT
async def test_broadcast_among_unicast_keeps_the_order_of_each_channel(tmp_path, reader_at):
    """Data and events for all, between data and events for one."""
    async with mini_cluster(tmp_path) as cluster:
        writer = await a_writer(cluster, 3)
        readers = [await a_reader(cluster, writer, reader_at, index) for index in range(3)]
        reading = [asyncio.create_task(reader.read_all()) for reader in readers]
        expected: list[list[tuple[int, bytes]]] = [[] for _ in readers]
        for number in range(24):
            target = [EVERY_SUBPARTITION, number % 3][number % 2]
            kind = EVENT if number % 4 > 1 else DATA
            payload = b"%03d" % number
            if kind == EVENT:
                payload = encode_event(CustomEvent("n", payload))
            await writer.send(target, payload, kind)
            for index in range(3) if target == EVERY_SUBPARTITION else [target]:
                expected[index].append((kind, payload))
        await writer.finish()
        await asyncio.gather(*reading)
        for index, reader in enumerate(readers):
            assert joined(reader.received[0]) == joined(expected[index])


@READ_AT
async def test_data_flushed_often_is_few_buffers_for_a_slow_reader(tmp_path, reader_at):
    """Many small buffers become full ones where they wait."""
    async with mini_cluster(tmp_path) as cluster:
        writer = await a_writer(cluster)
        reader = await a_reader(cluster, writer, reader_at, credit=1)
        reader.give_credit = 0
        content = buffers(40, SEGMENT_SIZE_BYTES // 8)
        for data in content:
            await writer.send(0, data)  # more than all pools hold: without a reader it would wait
        await writer.finish()
        reader.give_credit = 1
        reader.add_credit(1)
        await reader.read_all()
        assert reader.data() == b"".join(content)
        # The first went before there was another; on each leg a few found nothing before them.
        assert len(reader.received[0]) <= 40 // 8 + 5


async def test_a_broadcast_buffer_is_stored_once(tmp_path):
    async with mini_cluster(tmp_path) as cluster:
        writer = await a_writer(cluster, 4)
        await writer.send(EVERY_SUBPARTITION, bytes(SEGMENT_SIZE_BYTES))
        await writer.finish()
        # The credit that was not used has gone home; one segment holds the buffer of all four.
        (pool,) = cluster[0].network_pool.draining_pools
        assert pool.lent_segments == 1
        readers = [await a_reader(cluster, writer, index % 2, index) for index in range(4)]
        for reader in readers:
            await reader.read_all()
            assert reader.data() == bytes(SEGMENT_SIZE_BYTES)


@READ_AT
async def test_after_a_blocking_barrier_nothing_until_resume_consumption(tmp_path, reader_at):
    """On every leg between producer and consumer."""
    async with mini_cluster(tmp_path) as cluster:
        writer = await a_writer(cluster, 2)
        reader = await a_reader(cluster, writer, reader_at, credit=10)
        other = await a_reader(cluster, writer, reader_at, 1)
        await writer.send(0, b"before")
        await writer.send(0, BARRIER, BLOCKING_EVENT)
        await writer.send(0, b"after")
        await reader.read_until(2)
        await writer.send(0, UNALIGNED, PRIORITY_EVENT)
        await writer.send(1, b"the neighbour goes on")
        await other.read_until(1)
        await reader.round_trip()
        assert reader.received[0] == [(DATA, b"before"), (BLOCKING_EVENT, BARRIER)]
        reader.client.send(ResumeConsumption(reader.channel()))
        await reader.read_until(4)
        assert reader.received[0][2:] == [(PRIORITY_EVENT, UNALIGNED), (DATA, b"after")]
        # A second resumption finds no blocked channel: it is late and no error.
        reader.client.send(ResumeConsumption(reader.channel()))
        await writer.finish()
        await reader.read_all()
        await other.read_all()
        assert not reader.errors
        assert cluster[reader_at].counters.late_messages.get("ResumeConsumption") == 1


@READ_AT
async def test_a_priority_event_overtakes_data_on_every_leg(tmp_path, reader_at):
    """Also without credit."""
    async with mini_cluster(tmp_path) as cluster:
        writer = await a_writer(cluster)
        reader = await a_reader(cluster, writer, reader_at, credit=1)
        reader.give_credit = 0
        content = buffers(4)
        for data in content:
            await writer.send(0, data)
        await reader.read_until(1)
        await writer.send(0, UNALIGNED, PRIORITY_EVENT)
        await reader.read_until(2)
        assert reader.kinds() == [DATA, PRIORITY_EVENT]
        reader.add_credit(10)
        await writer.finish()
        await reader.read_all()
        assert reader.kinds() == [DATA, PRIORITY_EVENT, DATA, DATA, DATA]
        assert reader.data() == b"".join(content)


@READ_AT
async def test_events_do_not_end_a_channel(tmp_path, reader_at):
    async with mini_cluster(tmp_path) as cluster:
        writer = await a_writer(cluster)
        reader = await a_reader(cluster, writer, reader_at, credit=1)
        await writer.send(0, encode_event(EndOfData()), EVENT)
        for number in range(5):
            await writer.send(0, encode_event(CustomEvent("e", bytes([number]))), EVENT)
        await writer.send(0, b"one")
        await writer.finish()
        await reader.read_all()
        assert reader.kinds() == [EVENT] * 6 + [DATA]


@READ_AT
async def test_readers_may_request_a_partition_before_it_is_opened(tmp_path, reader_at):
    async with mini_cluster(tmp_path) as cluster:
        client = await cluster.producer(0)
        reader = PipelinedReader(await cluster.consumer(reader_at), [(client.ack, 7)])
        await eventually(lambda: cluster[0].partitions.waiting_requests == 1)
        writer = await PipelinedWriter.open(client, 7, 1)
        await writer.send(0, b"late")
        await writer.finish()
        await reader.read_all()
        assert reader.data() == b"late"


@READ_AT
async def test_a_partition_that_is_never_opened(tmp_path, reader_at):
    """The error names the channel and the map attempt."""
    async with mini_cluster(tmp_path, partition_request_timeout_seconds=0.1) as cluster:
        client = await cluster.producer(0)
        reader = PipelinedReader(
            await cluster.consumer(reader_at), [(client.ack, 7)], first_number=40
        )
        await reader.read_all()
        assert reader.errors[0].code is ErrorCode.PARTITION_NOT_FOUND
        assert reader.errors[0].map_attempt_id == 7


@READ_AT
async def test_a_reader_is_let_in_at_the_first_output(tmp_path, reader_at):
    async with mini_cluster(tmp_path) as cluster:
        writer = await a_writer(cluster, 2, consumption=CONSUME_AT_FIRST_OUTPUT)
        reader = await a_reader(cluster, writer, reader_at)
        await eventually(lambda: cluster[0].partitions.waiting_requests == 1)
        await writer.send(1, b"for the neighbour")
        await eventually(lambda: cluster[0].partitions.waiting_requests == 0)
        await writer.finish()
        await reader.read_all()
        assert not reader.errors
        other = await a_reader(cluster, writer, reader_at, 1)
        await other.read_all()
        assert other.data() == b"for the neighbour"


@READ_AT
async def test_the_second_reader_of_a_subpartition_is_refused(tmp_path, reader_at):
    """Through the network."""
    async with mini_cluster(tmp_path) as cluster:
        writer = await a_writer(cluster)
        reader = await a_reader(cluster, writer, 0)
        await writer.send(0, b"x")
        await reader.read_until(1)
        second = await a_reader(cluster, writer, reader_at)
        await second.read_all()
        assert second.errors[0].code is ErrorCode.SUBPARTITION_IN_USE
        await writer.finish()
        await reader.read_all()
        assert reader.data() == b"x"


@READ_AT
@pytest.mark.parametrize("how", ["vanish", "abort", "error"])
async def test_a_producer_that_fails_fails_its_readers(tmp_path, reader_at, how):
    """PRODUCER_FAILED goes to present and to later readers."""
    async with mini_cluster(tmp_path) as cluster:
        writer = await a_writer(cluster, 2)
        reader = await a_reader(cluster, writer, reader_at)
        await writer.send(0, b"some")
        await reader.read_until(1)
        if how == "vanish":
            writer.client.vanish()
        elif how == "abort":
            writer.client.send(AbortPartition(0))
            await writer.client.expect(PartitionAborted)
        else:
            writer.client.send(PipelinedData(0, 5, DATA), b"no such subpartition")
            with pytest.raises(RemoteError, match="subpartition") as caught:
                await writer.hear(ErrorResponse)
            assert caught.value.code is ErrorCode.MALFORMED_MESSAGE
        await reader.read_all()
        assert reader.errors[0].code is ErrorCode.PRODUCER_FAILED
        assert reader.errors[0].map_attempt_id == 7
        late = await a_reader(cluster, writer, reader_at, 1)
        await late.read_all()
        assert late.errors[0].code is ErrorCode.PRODUCER_FAILED
        assert pipelined_left(cluster) == 0


@READ_AT
async def test_a_finished_partition_outlives_its_producer(tmp_path, reader_at):
    async with mini_cluster(tmp_path) as cluster:
        writer = await a_writer(cluster, 2)
        content = buffers(5)
        for data in content:
            await writer.send(0, data)
        await writer.finish()
        await writer.client.close()
        assert pipelined_left(cluster) == 1
        reader = await a_reader(cluster, writer, reader_at)
        await reader.read_all()
        assert reader.data() == b"".join(content)
        assert pipelined_left(cluster) == 1  # one subpartition was not read
        empty = await a_reader(cluster, writer, reader_at, 1)
        await empty.read_all()
        assert empty.received == [[]]
        await eventually(lambda: pipelined_left(cluster) == 0)


@READ_AT
async def test_a_reader_that_cancels_does_not_touch_the_others(tmp_path, reader_at):
    """Its subpartition is dropped; a second cancel is late; the connection lives on."""
    async with mini_cluster(tmp_path) as cluster:
        writer = await a_writer(cluster, 2)
        client = await cluster.consumer(reader_at)
        gone = PipelinedReader(client, [(writer.client.ack, 7)], 0)
        stays = PipelinedReader(client, [(writer.client.ack, 7)], 1, first_number=10)
        await writer.send(0, b"some")
        while not gone.received[0]:
            await gone.read_one()
        for _ in range(2):
            client.send(CancelPartitionRequest(gone.channel()))
        content = buffers(40)
        reading = asyncio.create_task(stays.read_all())
        for data in content:
            await writer.send(0, b"dropped")
            await writer.send(1, data)
        await writer.finish()
        await reading
        assert stays.data() == b"".join(content)
        assert cluster[reader_at].counters.late_messages.get("CancelPartitionRequest") == 1
        await eventually(lambda: pipelined_left(cluster) == 0)


@READ_AT
async def test_a_producer_is_told_when_all_its_readers_have_gone(tmp_path, reader_at):
    async with mini_cluster(tmp_path) as cluster:
        writer = await a_writer(cluster)
        reader = await a_reader(cluster, writer, reader_at)
        await writer.send(0, b"x")
        await reader.read_until(1)
        await reader.client.close()
        with pytest.raises(RemoteError) as caught:
            await writer.hear(ErrorResponse)
        assert caught.value.code is ErrorCode.PARTITION_RELEASED
        writer.client.send(PipelinedData(0, 0, DATA), b"late")
        await eventually(lambda: cluster[0].counters.late_messages.get("PipelinedData") == 1)
        again = await PipelinedWriter.open(writer.client, 8, 1)  # the number is free
        await again.finish()


@READ_AT
async def test_release_of_the_shuffle_ends_writer_readers_and_requests(tmp_path, reader_at):
    async with mini_cluster(tmp_path) as cluster:
        writer = await a_writer(cluster, 2)
        reader = await a_reader(cluster, writer, reader_at)
        waiting = await a_reader(cluster, writer, reader_at, attempt=99)
        await writer.send(0, b"x")
        await reader.read_until(1)
        await eventually(lambda: cluster[0].partitions.waiting_requests == 1)
        driver = await cluster.driver(0)
        driver.send(ReleaseShuffle(1))
        await driver.expect(ShuffleReleased)
        for each in (reader, waiting):
            await each.read_all()
            assert each.errors[0].code is ErrorCode.PARTITION_RELEASED
        with pytest.raises(RemoteError) as caught:
            await writer.hear(ErrorResponse)
        assert caught.value.code is ErrorCode.PARTITION_RELEASED
        assert pipelined_left(cluster) == 0


async def test_partitions_of_a_connection_are_bounded(tmp_path):
    """As many partitions as the setting allows, and a typed error for the next."""
    async with mini_cluster(tmp_path, 1, max_partitions_per_connection=3) as cluster:
        client = await cluster.producer(0)
        writers = [await PipelinedWriter.open(client, n, 1, number=n) for n in range(2)]
        client.send(OpenPartition(2, 1, 100, 1))
        await client.expect(PartitionOpened)
        for refused in (OpenPartition(3, 1, 101, 1), OpenPipelinedPartition(4, 1, 102, 1, 1, 0)):
            client.send(refused)
            with pytest.raises(RemoteError, match="Too many partitions") as caught:
                await client.expect(PartitionOpened)
            error = caught.value
            assert (error.code, error.value, error.limit) == (ErrorCode.LIMIT_EXCEEDED, "4", "3")
            assert "max_partitions_per_connection" in str(error)
        client.send(AbortPartition(2))
        await client.expect(PartitionAborted)
        writers.append(await PipelinedWriter.open(client, 5, 1, number=5))
        for writer in writers:
            client.send(AbortPartition(writer.number))
            await client.expect(PartitionAborted)
