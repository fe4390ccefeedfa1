"""Failures between clients of the Python API: typed errors on both sides, and no leaks."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.protocol.events import EndOfPartition
from sluice.shuffle.client.client import ShuffleClient
from sluice.shuffle.client.pipelined_writer import PipelinedWriter
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.shuffle.records.record_reader import ChannelEvent, ChannelRecord
from sluice.shuffle.records.serializers import BytesSerializer
from tests.support.api_clients import (
    TASKS,
    api_clients,
    emitted,
    give_back,
    memory_is_back,
    next_of,
    vanish,
)
from tests.support.mini_cluster import SEGMENT_SIZE_BYTES, eventually, mini_cluster

FULL = bytes(SEGMENT_SIZE_BYTES)
READ_AT = pytest.mark.parametrize("reader_at", [0, 1], ids=["local", "remote"])
KINDS = pytest.mark.parametrize("kind", list(ResultPartitionType))


def is_stuck(partition):
    """Tell whether the partition has neither credit nor memory."""
    writer = partition.writer
    has_credit = isinstance(writer, PipelinedWriter) and writer.credit
    return not (has_credit or writer.is_available)


async def write_on(partition):
    while True:
        await partition.emit_buffer(FULL, 0)


async def read_on(gate):
    while (taken := await gate.next_buffer_or_event()) is not None:
        give_back(taken.buffer)


@TASKS
@READ_AT
@pytest.mark.parametrize("how", ["vanish", "close", "raise", "fail"])
async def test_a_producer_that_ends_in_the_middle(tmp_path, reader_at, how, clients_at):
    if how == "vanish" and clients_at is not api_clients:
        pytest.skip("an embedded task goes with its TaskManager")
    async with mini_cluster(tmp_path) as cluster, clients_at(cluster, 0, reader_at) as clients:
        producer, consumer = clients

        class Broken(Exception):
            pass

        async def produce():
            async with producer.open_result_partition(1, 7, 1) as partition:
                opened.set_result(partition.location)
                await partition.emit_buffer(FULL, 0)
                await seen.wait()
                if how == "vanish":
                    vanish(producer)
                elif how == "close":
                    await producer.close()
                elif how == "fail":
                    partition.fail(SluiceError("the task's own"))
                else:
                    raise Broken
                await write_on(partition)

        opened = asyncio.get_running_loop().create_future()
        seen = asyncio.Event()
        producing = asyncio.create_task(produce())
        async with consumer.open_gate([await opened], 0) as gate:
            await next_of(gate)
            seen.set()
            with pytest.raises(SluiceError) as caught:
                await read_on(gate)
            assert caught.value.code is ErrorCode.PRODUCER_FAILED
            assert caught.value.map_attempt_id == 7
        with pytest.raises(Broken if how == "raise" else SluiceError):
            await producing


@READ_AT
async def test_a_producer_fails_when_its_readers_leave(tmp_path, reader_at):
    async with mini_cluster(tmp_path) as cluster, api_clients(cluster, 0, reader_at) as clients:
        producer, consumer = clients

        async def produce():
            async with producer.open_result_partition(1, 7, 1) as partition:
                opened.set_result(partition.location)
                await write_on(partition)

        opened = asyncio.get_running_loop().create_future()
        producing = asyncio.create_task(produce())
        async with consumer.open_gate([await opened], 0) as gate:
            await next_of(gate)
            vanish(consumer)
            with pytest.raises(SluiceError) as lost:
                await read_on(gate)
            assert lost.value.code is ErrorCode.CONNECTION_LOST
        with pytest.raises(SluiceError) as caught:
            await producing
        assert caught.value.code is ErrorCode.PARTITION_RELEASED


@KINDS
async def test_the_loss_of_a_taskmanager_fails_both_sides(tmp_path, kind):
    async with (
        mini_cluster(tmp_path, 1, check=False) as cluster,
        api_clients(cluster, 0, 0) as clients,
    ):
        producer, consumer = clients

        async def produce():
            async with producer.open_result_partition(1, 7, 1, partition_type=kind) as partition:
                opened.set_result(partition.location)
                await write_on(partition)

        opened = asyncio.get_running_loop().create_future()
        producing = asyncio.create_task(produce())
        async with consumer.open_gate([await opened], 0) as gate:
            reading = asyncio.create_task(read_on(gate))
            await eventually(lambda: cluster[0].counters.producer_buffers_in > 20)
            await cluster[0].close()
            for task in (producing, reading):
                with pytest.raises(SluiceError) as caught:
                    await task
                assert caught.value.code in (ErrorCode.CONNECTION_LOST, ErrorCode.SHUTTING_DOWN)


async def test_a_closed_client_fails_its_open_partitions_and_gates(tmp_path):
    async with mini_cluster(tmp_path) as cluster, api_clients(cluster, 0) as (other,):
        client = await ShuffleClient.connect(cluster[0].address, "app")

        async def use():
            async with client.open_result_partition(1, 7, 1) as partition:
                async with client.open_gate([partition.location], 0) as gate:
                    await partition.emit_buffer(FULL, 0)
                    await client.close()
                    await client.close()
                    with pytest.raises(SluiceError):
                        await gate.next_buffer_or_event()
                await partition.emit_buffer(FULL, 0)

        with pytest.raises(SluiceError):
            await use()
        with pytest.raises(SluiceError):
            async with client.open_result_partition(1, 8, 1):
                pytest.fail("opened")
        await eventually(lambda: client.network_pool.lent_segments == 0)
        async with other.open_result_partition(1, 9, 1):
            pass


# ---- cancellation of each awaitable


async def cancelled(awaitable, turns=0):
    task = asyncio.create_task(awaitable)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def entered(context):
    async with context:
        pytest.fail("entered")


@pytest.mark.parametrize("turns", range(8))
async def test_connecting_is_cancelled(tmp_path, turns):
    async with mini_cluster(tmp_path, 1) as cluster:
        task = asyncio.create_task(ShuffleClient.connect(cluster[0].address, "app"))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        try:
            client = await task
        except asyncio.CancelledError:
            return  # and the cluster finds no connection left
        await client.close()


@KINDS
async def test_opening_a_partition_is_cancelled(tmp_path, kind):
    async with mini_cluster(tmp_path, 1) as cluster, api_clients(cluster, 0) as (client,):
        await cancelled(entered(client.open_result_partition(1, 7, 2, partition_type=kind)), 1)
        assert memory_is_back(client)
        async with client.open_result_partition(1, 7, 2, partition_type=kind):
            pass  # the TaskManager has given the first one up


@KINDS
async def test_finishing_is_cancelled(tmp_path, kind):
    async with mini_cluster(tmp_path, 1) as cluster, api_clients(cluster, 0) as (client,):

        async def produce():
            async with client.open_result_partition(1, 7, 1, partition_type=kind) as partition:
                await partition.emit_buffer(FULL * count, 0)
                written.set()

        # More than the TaskManager takes, and no more than both do: a bounded pool has 10 segments.
        count = 16 if kind is ResultPartitionType.PIPELINED_BOUNDED else 100
        written = asyncio.Event()
        producing = asyncio.create_task(produce())
        await written.wait()
        await asyncio.sleep(0)  # without a reader, finishing takes longer than this
        assert not producing.done()
        producing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await producing


@TASKS
async def test_emitting_is_cancelled_between_records(tmp_path, clients_at):
    record = bytes(SEGMENT_SIZE_BYTES - 4)  # with its length it fills a buffer

    async def fill():
        while True:
            await emitted(writer.emit(record))

    async with (
        mini_cluster(tmp_path, 1) as cluster,
        clients_at(cluster, 0) as (client,),
        client.open_result_partition(1, 7, 1, max_segments=2) as partition,
    ):
        writer = partition.record_writer(BytesSerializer())
        filling = asyncio.create_task(fill())
        await eventually(partial(is_stuck, partition))
        filling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await filling  # nothing of the record was written: it was not emitted
        async with client.open_gate([partition.location], 0) as gate:
            reading = asyncio.create_task(read_on(gate))
            await emitted(writer.emit(record))
            await partition.finish()
            await reading


@TASKS
async def test_emitting_is_cancelled_within_a_record(tmp_path, clients_at):
    async def produce():
        async with client.open_result_partition(1, 7, 1, max_segments=2) as partition:
            opened.set_result(partition)
            await emitted(partition.record_writer(BytesSerializer()).emit(FULL * 100))

    async with mini_cluster(tmp_path, 1) as cluster, clients_at(cluster, 0, 0) as clients:
        client, consumer = clients
        opened = asyncio.get_running_loop().create_future()
        producing = asyncio.create_task(produce())
        partition = await opened
        await eventually(partial(is_stuck, partition))
        producing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await producing
        async with consumer.open_gate([partition.location], 0) as gate:
            with pytest.raises(SluiceError) as caught:
                await read_on(gate)
            assert caught.value.code is ErrorCode.PRODUCER_FAILED


@TASKS
async def test_reading_is_cancelled_and_nothing_is_lost(tmp_path, clients_at):
    async with mini_cluster(tmp_path) as cluster, clients_at(cluster, 0, 1) as clients:
        producer, consumer = clients
        async with producer.open_result_partition(1, 7, 1) as partition:
            writer = partition.record_writer(BytesSerializer())
            async with consumer.open_gate([partition.location], 0) as gate:
                reader = gate.reader(BytesSerializer())
                got = []
                for number in range(20):
                    await cancelled(reader.next(), number % 3)
                    await cancelled(gate.next_buffer_or_event(), number % 3)
                    await emitted(writer.emit(b"%d" % number))
                    writer.flush_all()
                    record = await reader.next()
                    assert isinstance(record, ChannelRecord)
                    got.append(record.value)
                assert got == [b"%d" % number for number in range(20)]
                await partition.finish()
                end = await reader.next()
                assert isinstance(end, ChannelEvent)
                assert isinstance(end.event, EndOfPartition)
                assert end.event.total_buffers == 20


async def test_closing_is_cancelled_and_goes_on(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        client = await ShuffleClient.connect(cluster[0].address, "app")
        await cancelled(client.close(), 1)
        await client.close()
        assert client.network_pool.is_destroyed
