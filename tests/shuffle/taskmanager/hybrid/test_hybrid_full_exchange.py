"""Hybrid partitions that are kept, on real TaskManagers: a lost reader costs no producer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.protocol.events import CheckpointBarrier, encode_event
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    BLOCKING_EVENT,
    DATA,
    EVENT,
    EVERY_SUBPARTITION,
    PARTITION_HYBRID_FULL,
    PRIORITY_EVENT,
    ErrorResponse,
    PartitionConsumed,
    ReleaseShuffle,
    ResumeConsumption,
    ShuffleReleased,
    WatchConsumption,
)
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.shuffle.partition.result_partition_writer import ALL_SUBPARTITIONS
from sluice.shuffle.taskmanager.bounds.accounts import Resource
from tests.shuffle.taskmanager.hybrid.exchange import (
    MANY,
    READ_AT,
    TIERS,
    a_reader,
    a_writer,
    buffers,
    joined,
    read_bytes,
    send_all,
    stored_bytes,
)
from tests.support.api_clients import TASKS, embedded_clients
from tests.support.mini_cluster import (
    SEGMENT_SIZE_BYTES,
    MiniCluster,
    eventually,
    mini_cluster,
    storage_leftovers,
    until_clean,
)

if TYPE_CHECKING:
    from tests.support.pipelined_clients import PipelinedWriter

FULL = ResultPartitionType.HYBRID_FULL
BARRIER = encode_event(CheckpointBarrier(1, 2, False))


async def a_kept_writer(cluster: MiniCluster, subpartitions: int = 1) -> PipelinedWriter:
    return await a_writer(cluster, subpartitions, PARTITION_HYBRID_FULL)


async def released(cluster: MiniCluster) -> None:
    """Release the shuffle; then nothing is left of it."""
    driver = await cluster.driver(0)
    driver.send(ReleaseShuffle(1))
    await driver.expect(ShuffleReleased)
    await until_clean(cluster[0], storage_leftovers)
    account = cluster[0].store.accounts.of("app")
    assert not account.amount(Resource.MEMORY_TIER_BYTES)
    assert not account.amount(Resource.DISK_TIER_BYTES)
    assert not account.amount(Resource.OPEN_PARTITIONS)


@TIERS
@READ_AT
async def test_a_lost_reader_is_replaced_while_the_writer_goes_on(tmp_path, tier, reader_at):
    """Readers are lost in all parts of the stream; what they have taken is read again."""
    async with mini_cluster(tmp_path, memory_tier_bytes=tier) as cluster:
        writer = await a_kept_writer(cluster)
        expected: list[tuple[int, bytes]] = []
        lost = await a_reader(cluster, writer, reader_at)
        for number in range(MANY):
            data = number.to_bytes(4, "big") * (1 + number * 37 % (SEGMENT_SIZE_BYTES // 4))
            await writer.send(0, data)
            expected.append((DATA, data))
            if number % 23 == 0:
                await writer.send(0, BARRIER, EVENT)
                expected.append((EVENT, BARRIER))
            await lost.read_until(min(number % 100, 60))
            if number % 100 == 99:
                lost.client.vanish()
                lost = await a_reader(cluster, writer, reader_at)
        await writer.finish()
        for reader in (lost, await a_reader(cluster, writer, 0)):
            await reader.read_all()
            assert joined(reader.received[0]) == joined(expected)
            await reader.close()
        await released(cluster)


@TIERS
async def test_readers_at_the_same_time_get_it_all(tmp_path, tier):
    async with mini_cluster(tmp_path, memory_tier_bytes=tier) as cluster:
        writer = await a_kept_writer(cluster, 2)
        readers = [await a_reader(cluster, writer, at, 1) for at in (0, 1, 0)]
        content = buffers(MANY)
        for number, data in enumerate(content):
            await writer.send(EVERY_SUBPARTITION, data)
            if number % 3 == 0:
                await readers[number % 2].read_one()
        await writer.finish()
        for reader in (*readers, await a_reader(cluster, writer, 1, 0)):
            await reader.read_all()
            assert reader.data() == b"".join(content)
        await released(cluster)


@TIERS
async def test_a_finished_partition_takes_no_network_memory_and_stays(tmp_path, tier):
    async with mini_cluster(tmp_path, 1, memory_tier_bytes=tier) as cluster:
        writer = await a_kept_writer(cluster)
        content = buffers(MANY)
        for data in content:
            await writer.send(0, data)
        writer.client.send(WatchConsumption(writer.number))
        await writer.finish()
        pool = cluster[0].network_pool
        await eventually(lambda: pool.available_segments == pool.total_segments)
        assert cluster[0].partitions.has_unread_pipelined  # a drain waits for it
        lost = await a_reader(cluster, writer)
        await lost.read_until(10)
        lost.client.vanish()
        reader = await a_reader(cluster, writer)
        await reader.read_all()
        await reader.close()
        assert await writer.client.expect(PartitionConsumed) == PartitionConsumed(writer.number)
        assert not cluster[0].partitions.has_unread_pipelined
        again = await a_reader(cluster, writer)
        await again.read_all()
        assert again.data() == reader.data() == b"".join(content)
        assert stored_bytes(cluster) >= MANY * SEGMENT_SIZE_BYTES
        await released(cluster)


@TIERS
async def test_a_blocking_event_holds_up_each_reader(tmp_path, tier):
    async with mini_cluster(tmp_path, 1, memory_tier_bytes=tier) as cluster:
        writer = await a_kept_writer(cluster)
        content = buffers(100)
        for number, data in enumerate(content):
            await writer.send(0, data)
            if number == 49:
                await writer.send(0, BARRIER, BLOCKING_EVENT)
        await writer.finish()
        for _ in range(2):
            reader = await a_reader(cluster, writer)
            while BLOCKING_EVENT not in reader.kinds():
                await reader.read_one()
            await reader.round_trip()
            assert reader.received[0][-1] == (BLOCKING_EVENT, BARRIER)
            assert reader.data() == b"".join(content[:50])
            reader.client.send(ResumeConsumption(reader.channel()))
            await reader.read_all()
            assert reader.data() == b"".join(content)
        await released(cluster)


async def test_a_priority_event_is_refused_with_its_remedy(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        writer = await a_kept_writer(cluster)
        await writer.send(0, BARRIER, PRIORITY_EVENT)
        with pytest.raises(RemoteError, match="as an ordinary event") as caught:
            await writer.hear(ErrorResponse)
        assert caught.value.code is ErrorCode.MALFORMED_MESSAGE


async def test_a_failed_producer_fails_its_readers(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        writer = await a_kept_writer(cluster)
        for data in buffers(100):
            await writer.send(0, data)
        readers = [await a_reader(cluster, writer) for _ in range(2)]
        await readers[0].read_until(3)
        writer.client.vanish()
        for reader in readers:
            await reader.read_all()
            assert reader.errors[0].code is ErrorCode.PRODUCER_FAILED
        await until_clean(cluster[0], storage_leftovers)


async def test_a_finished_partition_is_read_from_memory_while_storage_is_full(tmp_path):
    async with mini_cluster(
        tmp_path, 1, memory_tier_bytes=SEGMENT_SIZE_BYTES, disk_quota_bytes=0
    ) as cluster:
        writer = await a_kept_writer(cluster)
        content = buffers(4)
        for data in content:
            await writer.send(0, data)
        await writer.finish()
        for _ in range(2):
            reader = await a_reader(cluster, writer)
            await reader.read_all()
            assert reader.data() == b"".join(content)
        await released(cluster)


async def test_full_storage_fails_the_partition(tmp_path):
    """Also beside a reader that keeps up: all of it is kept."""
    async with mini_cluster(
        tmp_path, 1, memory_tier_bytes=64 * SEGMENT_SIZE_BYTES, disk_quota_bytes=0
    ) as cluster:
        writer = await a_kept_writer(cluster)
        reader = await a_reader(cluster, writer)
        reading = asyncio.create_task(reader.read_all())
        with pytest.raises(RemoteError, match="Raise memory_tier_bytes") as caught:
            await send_all(writer)
        assert caught.value.code is ErrorCode.STORAGE_FULL
        await reading
        assert reader.errors[0].code is ErrorCode.PRODUCER_FAILED
        await until_clean(cluster[0], storage_leftovers)


@TIERS
@TASKS
async def test_tasks_read_again(tmp_path, tier, clients_at):
    async with (
        mini_cluster(tmp_path, 1, memory_tier_bytes=tier) as cluster,
        clients_at(cluster, 0) as (client,),
    ):
        async with client.open_result_partition(
            1, 7, 2, partition_type=FULL, buffer_timeout_seconds=0
        ) as partition:
            for number, data in enumerate(buffers(MANY)):
                await partition.emit_buffer(data, number % 2)
                if number == MANY // 2:  # a reader fails meanwhile, and an event keeps its place
                    partition.writer.emit_event(BARRIER, PRIORITY_EVENT, ALL_SUBPARTITIONS)
                    async with client.open_gate([partition.location], 0) as gate:
                        taken = await gate.next_buffer_or_event()
                        if taken.buffer.release is not None:
                            taken.buffer.release()
        with pytest.raises(SluiceError) as caught:
            await partition.wait_consumed(0.01)
        assert caught.value.code is ErrorCode.DEADLINE_EXCEEDED
        for _ in range(2):
            for subpartition in range(2):
                async with client.open_gate([partition.location], subpartition) as gate:
                    content = b"".join(buffers(MANY)[subpartition::2])
                    assert await read_bytes(gate) == content
            await partition.wait_consumed(30)
        await released(cluster)


async def test_an_embedded_partition_outlives_its_client(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        async with (
            embedded_clients(cluster, 0) as (client,),
            client.open_result_partition(1, 7, 1, partition_type=FULL) as partition,
        ):
            for data in buffers(100):
                await partition.emit_buffer(data, 0)
        for _ in range(2):
            async with (
                embedded_clients(cluster, 0) as (client,),
                client.open_gate([partition.location], 0) as gate,
            ):
                assert await read_bytes(gate) == b"".join(buffers(100))
        await released(cluster)
