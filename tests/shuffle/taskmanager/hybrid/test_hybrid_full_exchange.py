"""Full hybrid partitions on real TaskManagers: a lost reader costs no producer."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

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
    PARTITION_HYBRID_SELECTIVE,
    PRIORITY_EVENT,
    ErrorResponse,
    PartitionConsumed,
    ReleaseShuffle,
    ResumeConsumption,
    ShuffleReleased,
    WatchConsumption,
)
from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.partition.event_buffers import MAX_EVENTS_BESIDE_POOL
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.shuffle.partition.result_partition_writer import ALL_SUBPARTITIONS
from sluice.shuffle.taskmanager.bounds.accounts import Resource
from sluice.shuffle.taskmanager.hybrid import hybrid_spiller
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
async def test_a_new_reader_replaces_a_lost_one_during_writes(tmp_path, tier, reader_at):
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


async def test_a_finished_partition_is_readable_with_full_storage(tmp_path):
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


async def test_stuck_readers_do_not_stop_the_writer(tmp_path):
    """Each has taken buffers at another place, more in all than half of the partition's pool."""
    async with mini_cluster(tmp_path, 1, memory_tier_bytes=1 << 30) as cluster:
        writer = await a_kept_writer(cluster)
        content = buffers(6 * MANY)
        stuck = [await a_reader(cluster, writer) for _ in range(8)]
        for data in content[:100]:
            await writer.send(0, data)
        for number, reader in enumerate(stuck):
            await reader.read_until(10 + number * 4)
        for reader in stuck:
            reader.add_credit(1_000_000)
            reader.client.stop_reading()
        healthy = await a_reader(cluster, writer)
        for number, data in enumerate(content[100:], 100):
            await writer.send(0, data)
            await healthy.read_until(number)  # keeps up, so the others take from memory too
        await writer.finish()
        await healthy.read_all()
        assert healthy.data() == b"".join(content)
        for reader in stuck:
            reader.client.vanish()
        await healthy.close()
        await released(cluster)


@pytest.mark.parametrize("kind", [PARTITION_HYBRID_SELECTIVE, PARTITION_HYBRID_FULL])
async def test_many_subpartitions_store_a_broadcast_buffer_once(tmp_path, kind):
    """It has more copies than go to one region."""
    subpartitions, count = 300, 60
    async with mini_cluster(tmp_path, 1, network_segments=1024) as cluster:
        writer = await a_writer(cluster, subpartitions, kind)
        content = buffers(count)
        for data in content:
            await writer.send(EVERY_SUBPARTITION, data)
        await writer.finish()
        pool = cluster[0].network_pool
        await eventually(lambda: pool.available_segments == pool.total_segments)
        assert stored_bytes(cluster) == count * SEGMENT_SIZE_BYTES
        reader = await a_reader(cluster, writer, 0, subpartitions - 1)
        await reader.read_all()
        assert reader.data() == b"".join(content)
        await released(cluster)


@TIERS
async def test_damaged_bytes_fail_the_partition(tmp_path, tier):
    """Also when it is finished: a new producer is the only remedy."""
    async with mini_cluster(tmp_path, 1, memory_tier_bytes=tier) as cluster:
        writer = await a_kept_writer(cluster)
        for data in buffers(100):
            await writer.send(0, data)
        writer.client.send(WatchConsumption(writer.number))
        await writer.finish()
        pool = cluster[0].network_pool
        await eventually(lambda: pool.available_segments == pool.total_segments)
        (arena,) = (tmp_path / "tm0").glob(f"{'memory' if tier else 'data'}/**/arena-*")
        with arena.open("r+b") as file:
            file.seek(50 * SEGMENT_SIZE_BYTES)
            file.write(b"changed")
        other = await a_reader(cluster, writer)
        await other.read_until(1)
        reader = await a_reader(cluster, writer)
        await reader.read_all()
        assert reader.errors[0].code is ErrorCode.STORAGE_CORRUPT
        assert len(reader.data()) < 100 * SEGMENT_SIZE_BYTES
        with pytest.raises(RemoteError) as caught:
            await writer.hear(PartitionConsumed)
        assert caught.value.code is ErrorCode.STORAGE_CORRUPT
        assert cluster[0].partitions.missing(ShuffleKey("app", 1), [7]) == [7]
        await other.read_all()
        assert other.errors[0].code is ErrorCode.STORAGE_CORRUPT
        await until_clean(cluster[0], storage_leftovers)


async def test_lost_bytes_fail_the_producer(tmp_path):
    async with mini_cluster(tmp_path, 1, memory_tier_bytes=0) as cluster:
        writer = await a_kept_writer(cluster)
        for data in buffers(100):
            await writer.send(0, data)
        (arena,) = (tmp_path / "tm0").glob("data/**/arena-*")
        os.truncate(arena, 0)
        reader = await a_reader(cluster, writer)
        await reader.read_all()
        assert reader.errors[0].code is ErrorCode.STORAGE_CORRUPT
        with pytest.raises(RemoteError) as caught:
            await writer.hear(ErrorResponse)
        assert caught.value.code is ErrorCode.STORAGE_CORRUPT
        await until_clean(cluster[0], storage_leftovers)


async def test_a_read_partition_that_cannot_spill_is_released(tmp_path, monkeypatch):
    """Until then it waits in network memory, for readers and for room."""
    monkeypatch.setattr(hybrid_spiller, "PAUSE_SECONDS", 0.05)
    async with mini_cluster(
        tmp_path, 1, memory_tier_bytes=SEGMENT_SIZE_BYTES, disk_quota_bytes=0
    ) as cluster:
        writer = await a_kept_writer(cluster)
        for data in buffers(4):
            await writer.send(0, data)
        await writer.finish()
        pool = cluster[0].network_pool
        reader = await a_reader(cluster, writer)
        await reader.read_all()
        assert pool.available_segments < pool.total_segments
        await reader.close()
        await eventually(lambda: pool.available_segments == pool.total_segments)
        late = await a_reader(cluster, writer)
        await late.read_all()
        assert late.errors[0].code is ErrorCode.STORAGE_FULL
        await until_clean(cluster[0], storage_leftovers)


@pytest.mark.parametrize("kind", [ResultPartitionType.HYBRID_SELECTIVE, FULL])
async def test_events_alone_are_spilled_too(tmp_path, kind):
    """They have memory of their own when the pool is used up."""
    count = 3 * MAX_EVENTS_BESIDE_POOL
    async with (
        mini_cluster(tmp_path, 1) as cluster,
        embedded_clients(cluster, 0) as (client,),
    ):
        async with client.open_result_partition(1, 7, 1, partition_type=kind) as partition:
            writer: Any = partition.writer
            for number in range(count):
                writer.emit_event(BARRIER, EVENT, 0)
                if number % 100 == 0:
                    await eventually(lambda: not writer.has_events_beside_pool)
        async with client.open_gate([partition.location], 0) as gate:
            for _ in range(count):
                taken = await gate.next_buffer_or_event()
                assert taken is not None
                assert bytes(taken.buffer.payload) == BARRIER
            assert await read_bytes(gate) == b""
        await released(cluster)
