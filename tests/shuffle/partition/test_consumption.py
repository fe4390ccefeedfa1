"""Finished pipelined partitions stay until they are read, and their writers can wait for that."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from sluice import BytesSerializer, ClientConfig, ResultPartitionType, ShuffleClient, TaskManager
from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.shuffle.partition.consumption import Consumption
from tests.support.api_clients import TASKS, embedded_clients, emitted, give_back, next_of
from tests.support.mini_cluster import eventually, mini_cluster, taskmanager_config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sluice.shuffle.client.result_partition import ResultPartition
    from sluice.shuffle.client.shuffle_environment import ShuffleEnvironment


@contextlib.contextmanager
def ends_with(code: ErrorCode) -> Iterator[None]:
    """Expect an error of this process or of the TaskManager."""
    with pytest.raises(SluiceError) as caught:
        yield
    assert caught.value.code is code


RECORDS = [b"one", b"two"]


async def written(client: ShuffleEnvironment, **settings) -> ResultPartition:
    """Write a partition and finish it."""
    async with client.open_result_partition(1, 0, 1, **settings) as partition:
        writer = partition.record_writer(BytesSerializer())
        for record in RECORDS:
            await emitted(writer.emit(record))
    return partition


async def read(client: ShuffleEnvironment, partition: ResultPartition) -> list[bytes]:
    async with client.open_gate([partition.location], 0) as gate:
        return [record async for record in gate.records(BytesSerializer())]


def config(directory, drain_seconds):
    return taskmanager_config(directory).model_copy(update={"drain_timeout_seconds": drain_seconds})


async def test_the_end_of_an_embedded_taskmanager_waits_for_readers(tmp_path):
    async def read_late() -> list[bytes]:
        await eventually(lambda: taskmanager.state == "draining")
        try:
            return await read(beside, partition)
        finally:
            await beside.close()

    async with TaskManager.embedded(config(tmp_path, 20)) as taskmanager:
        async with taskmanager.client("app") as client:
            partition = await written(client)
        beside = await ShuffleClient.connect(client.address, "app")
        reading = asyncio.create_task(read_late())
    assert await reading == RECORDS


async def test_both_sides_learn_why_an_embedded_taskmanager_ended(tmp_path):
    async def read_on() -> None:
        async with beside.open_gate([partition.location], 0) as gate:
            await next_of(gate)
            begun.set()
            await stopped.wait()
            while (taken := await gate.next_buffer_or_event()) is not None:
                give_back(taken.buffer)

    begun, stopped = asyncio.Event(), asyncio.Event()
    async with TaskManager.embedded(config(tmp_path, 0.2)) as taskmanager:
        client = taskmanager.client("app")
        async with client.open_result_partition(1, 0, 1) as partition:
            for _ in range(6):
                await partition.emit_buffer(bytes(4096), 0)
        memory = ClientConfig(exclusive_buffers_per_channel=1, floating_buffers_per_gate=1)
        beside = await ShuffleClient.connect(client.address, "app", memory)
        other = await written_beside(beside)
        waiting = [asyncio.create_task(each.wait_consumed()) for each in (partition, other)]
        reading = asyncio.create_task(read_on())
        await begun.wait()
    stopped.set()
    for task in (*waiting, reading):
        with ends_with(ErrorCode.SHUTTING_DOWN):
            await task
    await beside.close()


async def written_beside(client: ShuffleClient) -> ResultPartition:
    async with client.open_result_partition(2, 0, 1) as partition:
        await partition.emit_buffer(b"one", 0)
    return partition


@TASKS
async def test_a_writer_waits_until_its_partition_is_read(tmp_path, clients_at):
    async with mini_cluster(tmp_path, 1) as cluster, clients_at(cluster, 0) as (client,):
        partition = await written(client)
        waiting = asyncio.create_task(partition.wait_consumed())
        with ends_with(ErrorCode.DEADLINE_EXCEEDED):
            await partition.wait_consumed(0.01)
        assert not waiting.done()
        cancelled = asyncio.create_task(partition.wait_consumed())
        await asyncio.sleep(0)  # it waits from its first step on
        cancelled.cancel()
        assert await read(client, partition) == RECORDS
        await waiting
        await partition.wait_consumed()


async def test_a_writer_learns_of_a_reader_that_leaves(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster, embedded_clients(cluster, 0) as (client,):
        partition = await written(client)
        async with client.open_gate([partition.location], 0) as gate:
            await next_of(gate)  # the end is still there
        with ends_with(ErrorCode.PARTITION_RELEASED):
            await partition.wait_consumed(20)


@TASKS
async def test_a_stored_partition_has_no_last_reader(tmp_path, clients_at):
    async with mini_cluster(tmp_path, 1) as cluster, clients_at(cluster, 0) as (client,):
        partition = await written(client, partition_type=ResultPartitionType.BLOCKING)
        with ends_with(ErrorCode.MALFORMED_MESSAGE):
            await partition.wait_consumed()


async def test_a_drain_waits_for_unread_partitions(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        beside = await ShuffleClient.connect(cluster[0].address, "app")
        partition = await written(beside)
        cluster[0].drain()
        idle = asyncio.create_task(cluster[0].wait_idle())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(idle), 0.05)
        assert await read(beside, partition) == RECORDS
        await asyncio.wait_for(idle, 20)
        await beside.close()


async def test_the_first_outcome_counts():
    consumption = Consumption()
    consumption.end()
    consumption.end(SluiceError("too late"))
    await consumption.wait("partition", 1)
