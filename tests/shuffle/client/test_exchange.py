"""Clients of the Python API over TaskManagers: events, groups, back pressure, many at once."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.protocol.events import CheckpointBarrier, EndOfData, EndOfPartition, encode_event
from sluice.protocol.schema import BLOCKING_EVENT, DATA, PRIORITY_EVENT
from sluice.shuffle.client.client import ShuffleClient
from sluice.shuffle.client.config import ClientConfig
from sluice.shuffle.errors import (
    InsufficientNetworkBuffers,
    InvalidPartitionType,
    InvalidRequest,
    UnknownProducer,
)
from sluice.shuffle.partition.partition_type import ConsumptionConstraint, ResultPartitionType
from sluice.shuffle.partition.result_partition_writer import ALL_SUBPARTITIONS
from sluice.shuffle.records.record_reader import ChannelEvent
from sluice.shuffle.records.selectors import HashSelector
from sluice.shuffle.records.serializers import BytesSerializer, MsgpackSerializer
from sluice.transport.address import Address, InvalidAddress
from sluice.transport.config import TransportConfig
from sluice.transport.errors import ConnectFailed
from tests.support.api_clients import (
    TASKS,
    api_clients,
    emitted,
    give_back,
    memory_is_back,
    next_of,
    pipelined,
)
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES, eventually, mini_cluster

READ_AT = pytest.mark.parametrize("reader_at", [0, 1], ids=["local", "remote"])
"""The producer is at TaskManager 0; its reader at the same one, or across the network."""

RANDOM = random.Random(7).randbytes(60 * SEGMENT_SIZE_BYTES)


async def elements(reader, count):
    """Read a number of records and events; events come with the index of their channel."""
    taken = []
    for _ in range(count):
        each = await reader.next()
        taken.append(each.event if isinstance(each, ChannelEvent) else each.value)
    return taken


@TASKS
@READ_AT
async def test_stored_data_comes_in_groups_of_buffers(tmp_path, reader_at, clients_at):
    async with mini_cluster(tmp_path) as cluster, clients_at(cluster, 0, reader_at) as clients:
        producer, consumer = clients
        async with producer.open_result_partition(
            1, 7, 2, partition_type=ResultPartitionType.BLOCKING
        ) as partition:
            await partition.emit_buffer(RANDOM, 1)
        async with consumer.open_gate([partition.location], 0, 2) as gate:
            sizes = []
            while (taken := await gate.gate.next_buffer_or_event()) is not None:
                if taken.buffer.data_type == DATA:
                    sizes.append(len(taken.buffer.payload))
                    give_back(taken.buffer)
        assert sum(sizes) > len(RANDOM)  # the headers of the blocks count too
        assert max(sizes) > SEGMENT_SIZE_BYTES
        assert len(sizes) < sum(sizes) / SEGMENT_SIZE_BYTES / 1.5
        async with consumer.open_gate([partition.location], 1) as gate:
            content = b""
            while (taken := await gate.next_buffer_or_event()) is not None:
                if taken.buffer.data_type == DATA:
                    content += taken.buffer.payload
            assert content == RANDOM


@TASKS
@READ_AT
async def test_events_stand_among_the_records_of_their_channel(tmp_path, reader_at, clients_at):
    async with mini_cluster(tmp_path) as cluster, clients_at(cluster, 0, reader_at) as clients:
        producer, consumer = clients
        barrier = CheckpointBarrier(1, 2, False)
        async with producer.open_result_partition(1, 7, 2) as partition:
            writer = partition.record_writer(MsgpackSerializer())
            for number in range(10):
                await emitted(writer.emit_to(number, 0))
            writer.broadcast_event(barrier)
            await emitted(writer.broadcast_emit("both"))
            writer.emit_event(EndOfData(), 0)
        for subpartition, expected in (
            (0, [*range(10), barrier, "both", EndOfData()]),
            (1, [barrier, "both"]),
        ):
            async with consumer.open_gate([partition.location], subpartition) as gate:
                reader = gate.reader(MsgpackSerializer())
                assert await elements(reader, len(expected)) == expected
                (end,) = await elements(reader, 1)
                assert isinstance(end, EndOfPartition)
                assert await reader.next() is None


@TASKS
@READ_AT
async def test_after_a_blocking_event_nothing_comes_until_it_is_resumed(
    tmp_path, reader_at, clients_at
):
    async with mini_cluster(tmp_path) as cluster, clients_at(cluster, 0, reader_at) as clients:
        producer, consumer = clients
        barrier = CheckpointBarrier(1, 2, False)
        async with producer.open_result_partition(1, 7, 1) as partition:
            writer = partition.record_writer(BytesSerializer())
            await emitted(writer.emit(b"before"))
            writer.broadcast_event(barrier, BLOCKING_EVENT)
            await emitted(writer.emit(b"after"))
        async with consumer.open_gate([partition.location], 0) as gate:
            reader = gate.reader(BytesSerializer())
            assert await elements(reader, 2) == [b"before", barrier]
            # After two round trips to the TaskManager everything on the way has come.
            for _ in range(2):
                async with consumer.open_gate([partition.location], 0) as other:
                    with pytest.raises(SluiceError):
                        await other.next_buffer_or_event()
            assert not gate.gate.is_available
            gate.gate.resume_consumption(0)
            assert await elements(reader, 1) == [b"after"]
            with pytest.raises(InvalidRequest):
                gate.gate.resume_consumption(0)


@TASKS
@READ_AT
async def test_a_priority_event_overtakes_data_in_every_queue(tmp_path, reader_at, clients_at):
    async with mini_cluster(tmp_path) as cluster, clients_at(cluster, 0, reader_at) as clients:
        producer, consumer = clients
        barrier = CheckpointBarrier(1, 2, True)
        async with contextlib.AsyncExitStack() as stack:
            partition = await stack.enter_async_context(producer.open_result_partition(1, 7, 1))
            gate = await stack.enter_async_context(consumer.open_gate([partition.location], 0))
            writer = partition.record_writer(BytesSerializer())
            # The reader does not read, so data fills the pools of both clients and TaskManagers.
            emitting = asyncio.create_task(fill(writer, 400))
            await eventually(lambda: not partition.writer.is_available)
            partition.writer.emit_event(encode_event(barrier), PRIORITY_EVENT, 0)
            await eventually(lambda: gate.gate.has_priority_event)
            index, buffer = await next_of(gate)
            assert (index, buffer.data_type) == (0, PRIORITY_EVENT)
            finishing = asyncio.create_task(finished(emitting, partition))
            records = [record async for record in gate.records(BytesSerializer())]
            await finishing
        assert records == [b"%d" % number * 500 for number in range(400)]


async def fill(writer, count):
    for number in range(count):
        await emitted(writer.emit(b"%d" % number * 500))


async def finished(emitting, partition):
    await emitting
    await partition.finish()


async def test_a_broadcast_buffer_is_held_once_by_the_taskmanager(tmp_path):
    async with mini_cluster(tmp_path) as cluster, api_clients(cluster, 0, 1) as clients:
        producer, consumer = clients
        async with producer.open_result_partition(1, 7, 5) as partition:
            await partition.emit_buffer(RANDOM[: 3 * SEGMENT_SIZE_BYTES], ALL_SUBPARTITIONS)
        (pool,) = cluster[0].network_pool.draining_pools
        assert pool.lent_segments == 3
        assert pipelined(partition).bytes_out == 3 * SEGMENT_SIZE_BYTES
        for subpartition in range(5):
            async with consumer.open_gate([partition.location], subpartition) as gate:
                content = b""
                while (taken := await gate.next_buffer_or_event()) is not None:
                    if taken.buffer.data_type == DATA:
                        content += taken.buffer.payload
                        give_back(taken.buffer)
                assert content == RANDOM[: 3 * SEGMENT_SIZE_BYTES]


@READ_AT
async def test_task_events_go_back_to_the_producer(tmp_path, reader_at):
    async with mini_cluster(tmp_path) as cluster, api_clients(cluster, 0, reader_at) as clients:
        producer, consumer = clients
        got: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        async with (
            producer.open_result_partition(
                1, 7, 1, task_event=lambda *event: got.put_nowait(event)
            ) as partition,
            consumer.open_gate([partition.location], 0) as gate,
        ):
            gate.gate.send_task_event(5, b"asked for before it is open")
            assert await got.get() == (5, b"asked for before it is open")
            gate.gate.send_task_event(6)
            assert await got.get() == (6, b"")
            await partition.finish()
            assert [record async for record in gate.records(BytesSerializer())] == []
            with pytest.raises(UnknownProducer):
                gate.gate.channels[0].send_task_event(7, b"too late")


@TASKS
async def test_many_partitions_and_gates_at_once(tmp_path, clients_at):
    partitions, subpartitions, records = 8, 4, 300
    async with (
        mini_cluster(tmp_path, network_segments=512) as cluster,
        clients_at(cluster, 0, 1, 0, 1, network_segments=512) as clients,
    ):
        opened = asyncio.Barrier(partitions + 1)
        locations = []

        async def produce(number):
            client = clients[number % 2]
            async with client.open_result_partition(3, number, subpartitions) as partition:
                locations.append(partition.location)
                await opened.wait()
                writer = partition.record_writer(BytesSerializer(), HashSelector())
                for record in range(records):
                    await emitted(writer.emit(b"%d/%d" % (number, record) * 20))

        async def consume(subpartition):
            async with clients[2 + subpartition % 2].open_gate(locations, subpartition) as gate:
                return [record async for record in gate.records(BytesSerializer())]

        producing = [asyncio.create_task(produce(number)) for number in range(partitions)]
        await opened.wait()
        parts = await asyncio.gather(*map(consume, range(subpartitions)))
        await asyncio.gather(*producing)
        expected = [b"%d/%d" % (n, r) * 20 for n in range(partitions) for r in range(records)]
        assert sorted(record for part in parts for record in part) == sorted(expected)
        for part in parts:  # the records of each producer are in its order
            for number in range(partitions):
                own = [r for r in part if r.startswith(b"%d/" % number)]
                assert own == sorted(own, key=expected.index)


@TASKS
async def test_bad_requests_are_refused(tmp_path, clients_at):
    async with (
        mini_cluster(tmp_path, partition_request_timeout_seconds=0.2) as cluster,
        clients_at(cluster, 0) as (client,),
    ):
        with pytest.raises(InvalidPartitionType):
            async with client.open_result_partition(
                1, 7, 1, consumption=ConsumptionConstraint.WHEN_FINISHED
            ):
                pytest.fail("opened")
        async with client.open_result_partition(1, 7, 1) as partition:
            with pytest.raises(SluiceError) as caught:
                async with client.open_result_partition(1, 7, 1):
                    pytest.fail("opened twice")
            assert caught.value.code is ErrorCode.DUPLICATE_MAP_OUTPUT
            location = partition.location
            for bad in ([], [location, location._replace(shuffle_id=2)]):
                with pytest.raises(InvalidRequest):
                    async with client.open_gate(bad, 0):
                        pytest.fail("opened")
            with pytest.raises(InvalidRequest):
                async with client.open_gate([location], 3, 3):
                    pytest.fail("opened")
            missing = location._replace(map_attempt_id=8)
            async with client.open_gate([missing], 0) as gate:
                with pytest.raises(SluiceError) as caught:
                    await gate.next_buffer_or_event()
            assert caught.value.code is ErrorCode.PARTITION_NOT_FOUND
            async with client.open_gate([location], 5) as gate:
                with pytest.raises(SluiceError, match="5"):
                    await gate.next_buffer_or_event()


async def test_a_missing_taskmanager_is_a_connect_failure(tmp_path):
    config = ClientConfig(transport=TransportConfig(connect_timeout_seconds=0.1))
    with pytest.raises(InvalidAddress):
        await ShuffleClient.connect("nowhere", "app", config)
    with pytest.raises(ConnectFailed):
        await ShuffleClient.connect(f"unix:{tmp_path}/none", "app", config)
    with pytest.raises(ConnectFailed):
        await ShuffleClient.connect(Address("127.0.0.1", 1), "app", config)


@pytest.mark.parametrize(
    ("kind", "most", "bounds"),
    [
        (ResultPartitionType.PIPELINED_BOUNDED, None, (6, 19)),
        (ResultPartitionType.PIPELINED_BOUNDED, 4, (4, 4)),
        (ResultPartitionType.PIPELINED, None, (6, None)),
        (ResultPartitionType.BLOCKING, None, (1, None)),
    ],
)
async def test_the_memory_of_a_partition_follows_its_subpartitions(tmp_path, kind, most, bounds):
    """By the same function as on the TaskManager, from the client's own settings."""
    settings: dict[str, Any] = {"exclusive_buffers_per_channel": 3, "floating_buffers_per_gate": 4}
    async with (
        mini_cluster(tmp_path, 1, **settings) as cluster,
        api_clients(cluster, 0, network_segments=16, **settings) as (client,),
        client.open_result_partition(1, 7, 5, partition_type=kind, max_segments=most),
    ):
        (pool,) = client.network_pool.local_pools
        assert (pool.bounds.required_segments, pool.bounds.maximum_segments) == bounds
        if kind.is_pipelined and most is None:
            (pool,) = cluster[0].network_pool.local_pools
            assert (pool.bounds.required_segments, pool.bounds.maximum_segments) == bounds


async def test_a_partition_with_more_subpartitions_than_memory_is_refused(tmp_path):
    """Unless its task allows it to go on with less."""
    async with (
        mini_cluster(tmp_path, 1) as cluster,
        api_clients(cluster, 0, network_segments=16) as (client,),
    ):
        with pytest.raises(InsufficientNetworkBuffers):
            async with client.open_result_partition(1, 7, 16):
                pass
        assert memory_is_back(client)
        async with client.open_result_partition(1, 7, 16, max_segments=4):
            pass
