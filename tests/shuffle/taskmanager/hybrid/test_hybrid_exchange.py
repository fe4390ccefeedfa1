"""Hybrid partitions on real TaskManagers: a slow or absent reader does not stop the writer."""

from __future__ import annotations

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
    PARTITION_PIPELINED_BOUNDED,
    PRIORITY_EVENT,
    BacklogAnnouncement,
    ChecksummedBuffer,
    PartitionConsumed,
    ReleaseShuffle,
    ResumeConsumption,
    ShuffleReleased,
    WatchConsumption,
)
from sluice.shuffle.gate.partition_request_client import PartitionRequestClient
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.shuffle.taskmanager.bounds.accounts import Resource
from sluice.shuffle.taskmanager.store.releases import INTERVAL_BYTES
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
    eventually,
    mini_cluster,
    storage_leftovers,
    until_clean,
)

if TYPE_CHECKING:
    from sluice.protocol.schema import Message

HYBRID = ResultPartitionType.HYBRID_SELECTIVE
BARRIER = encode_event(CheckpointBarrier(1, 2, False))
UNALIGNED = encode_event(CheckpointBarrier(3, 4, True))


@TIERS
@READ_AT
async def test_a_writer_without_a_reader_finishes(tmp_path, tier, reader_at):
    async with mini_cluster(tmp_path, memory_tier_bytes=tier) as cluster:
        writer = await a_writer(cluster)
        content = buffers(MANY)
        for data in content:
            await writer.send(0, data)
        await writer.finish()
        assert stored_bytes(cluster) > 0
        # What is finished and unread takes no network memory.
        pool = cluster[0].network_pool
        await eventually(lambda: pool.available_segments == pool.total_segments)
        reader = await a_reader(cluster, writer, reader_at)
        await reader.read_all()
        assert reader.data() == b"".join(content)
        await until_clean(cluster[0], storage_leftovers)


async def test_a_pipelined_writer_stops_where_a_hybrid_one_goes_on(tmp_path):
    """The other test would prove nothing if the pool had room for everything."""
    async with mini_cluster(tmp_path, 1) as cluster:
        writer = await a_writer(cluster, partition_type=PARTITION_PIPELINED_BOUNDED)
        sent = 0
        await writer.hear()
        while writer.credit:
            await writer.send(0, bytes(SEGMENT_SIZE_BYTES))
            sent += 1
        assert sent < MANY
        cluster[0].partitions.release_application("app")


@TIERS
@READ_AT
async def test_a_slow_reader_gets_every_byte_in_order(tmp_path, tier, reader_at):
    """Buffers of all lengths, and events between them; the reader takes one for ten."""
    async with mini_cluster(tmp_path, memory_tier_bytes=tier) as cluster:
        writer = await a_writer(cluster)
        reader = await a_reader(cluster, writer, reader_at)
        expected: list[tuple[int, bytes]] = []
        for number in range(MANY):
            data = number.to_bytes(4, "big") * (1 + number * 37 % (SEGMENT_SIZE_BYTES // 4))
            await writer.send(0, data)
            expected.append((DATA, data))
            if number % 23 == 0:
                await writer.send(0, BARRIER, EVENT)
                expected.append((EVENT, BARRIER))
            if number % 10 == 0:
                await reader.read_one()
        await writer.finish()
        await reader.read_all()
        assert joined(reader.received[0]) == joined(expected)
        await until_clean(cluster[0], storage_leftovers)


async def test_a_fast_reader_is_served_from_memory(tmp_path):
    """Buffers that were consumed from memory are not written."""
    async with mini_cluster(tmp_path, 1) as cluster:
        writer = await a_writer(cluster)
        reader = await a_reader(cluster, writer)
        for number, data in enumerate(buffers(MANY)):
            await writer.send(0, data)
            await reader.read_until(number + 1)
            assert stored_bytes(cluster) == 0
        await writer.finish()
        await reader.read_all()


@TIERS
async def test_a_blocking_event_holds_up_what_was_spilled_behind_it(tmp_path, tier):
    async with mini_cluster(tmp_path, 1, memory_tier_bytes=tier) as cluster:
        writer = await a_writer(cluster)
        content = buffers(100)
        for number, data in enumerate(content):
            await writer.send(0, data)
            if number == 49:
                await writer.send(0, BARRIER, BLOCKING_EVENT)
        reader = await a_reader(cluster, writer)
        while BLOCKING_EVENT not in reader.kinds():
            await reader.read_one()
        await reader.round_trip()
        assert reader.received[0][-1] == (BLOCKING_EVENT, BARRIER)
        assert reader.data() == b"".join(content[:50])
        reader.client.send(ResumeConsumption(reader.channel()))
        await writer.finish()
        await reader.read_all()
        assert reader.data() == b"".join(content)


@TIERS
async def test_a_priority_event_overtakes_what_was_spilled(tmp_path, tier):
    async with mini_cluster(tmp_path, 1, memory_tier_bytes=tier) as cluster:
        writer = await a_writer(cluster)
        content = buffers(100)
        for data in content:
            await writer.send(0, data)
        await writer.send(0, UNALIGNED, PRIORITY_EVENT)
        await writer.finish()
        reader = await a_reader(cluster, writer)
        await reader.read_all()
        assert reader.received[0][0] == (PRIORITY_EVENT, UNALIGNED)
        assert reader.data() == b"".join(content)


@TIERS
async def test_a_spilled_backlog_is_announced(tmp_path, tier, monkeypatch):
    """A TaskManager without credit is told of it; then each buffer carries what is behind it."""
    heard: list[Message] = []
    receive = PartitionRequestClient.message_received

    def message_received(self, message, payload_length):
        heard.append(message)
        receive(self, message, payload_length)

    monkeypatch.setattr(PartitionRequestClient, "message_received", message_received)
    async with mini_cluster(
        tmp_path, memory_tier_bytes=tier, exclusive_buffers_per_channel=0
    ) as cluster:
        writer = await a_writer(cluster)
        content = buffers(100)
        for data in content:
            await writer.send(0, data)
        await writer.finish()
        pool = cluster[0].network_pool
        await eventually(lambda: pool.available_segments == pool.total_segments)
        reader = await a_reader(cluster, writer, 1)
        await reader.read_all()
        assert reader.data() == b"".join(content)
        announced = [each.backlog for each in heard if type(each) is BacklogAnnouncement]
        assert announced == [100]
        carried = [
            each.backlog
            for each in heard
            if type(each) is ChecksummedBuffer and each.data_type == DATA
        ]
        assert carried == list(reversed(range(100)))


@TIERS
async def test_a_broadcast_buffer_is_stored_once(tmp_path, tier):
    async with mini_cluster(tmp_path, 1, memory_tier_bytes=tier) as cluster:
        writer = await a_writer(cluster, 10)
        content = buffers(100)
        for data in content:
            await writer.send(EVERY_SUBPARTITION, data)
        await writer.finish()
        pool = cluster[0].network_pool
        await eventually(lambda: pool.available_segments == pool.total_segments)
        assert stored_bytes(cluster) < 2 * 100 * SEGMENT_SIZE_BYTES
        for subpartition in range(10):
            reader = await a_reader(cluster, writer, 0, subpartition)
            await reader.read_all()
            assert reader.data() == b"".join(content)
        await until_clean(cluster[0], storage_leftovers)


@TIERS
@pytest.mark.parametrize("how", ["shuffle", "application", "producer"])
async def test_a_release_frees_what_was_spilled(tmp_path, tier, how):
    async with mini_cluster(tmp_path, 1, memory_tier_bytes=tier) as cluster:
        writer = await a_writer(cluster)
        for data in buffers(MANY):
            await writer.send(0, data)
        assert stored_bytes(cluster) > 0
        if how == "shuffle":
            driver = await cluster.driver(0)
            driver.send(ReleaseShuffle(1))
            await driver.expect(ShuffleReleased)
        elif how == "application":
            cluster[0].partitions.release_application("app")
        else:
            writer.client.vanish()
        await until_clean(cluster[0], storage_leftovers)
        account = cluster[0].store.accounts.of("app")
        assert not account.amount(Resource.MEMORY_TIER_BYTES)
        assert not account.amount(Resource.DISK_TIER_BYTES)
        # The release of a shuffle is itself kept, and charged.
        assert account.amount(Resource.METADATA_BYTES) <= INTERVAL_BYTES * (how == "shuffle")


@TIERS
async def test_a_lost_reader_of_several_costs_the_writer_nothing(tmp_path, tier):
    async with mini_cluster(tmp_path, 1, memory_tier_bytes=tier) as cluster:
        writer = await a_writer(cluster, 2)
        lost = await a_reader(cluster, writer, 0, 1)
        content = buffers(MANY)
        for number, data in enumerate(content):
            await writer.send(number % 2, data)
            if number == MANY // 2:
                lost.client.vanish()
        await writer.finish()
        reader = await a_reader(cluster, writer)
        await reader.read_all()
        assert reader.data() == b"".join(content[::2])
        await until_clean(cluster[0], storage_leftovers)


async def test_full_storage_fails_the_partition_with_its_remedy(tmp_path):
    async with mini_cluster(
        tmp_path, 1, memory_tier_bytes=64 * SEGMENT_SIZE_BYTES, disk_quota_bytes=0
    ) as cluster:
        writer = await a_writer(cluster)
        reader = await a_reader(cluster, writer, credit=1)
        reader.give_credit = 0
        with pytest.raises(RemoteError, match="Raise memory_tier_bytes") as caught:
            await send_all(writer)
        assert caught.value.code is ErrorCode.STORAGE_FULL
        reader.add_credit(1)
        await reader.read_all()
        assert reader.errors[0].code is ErrorCode.PRODUCER_FAILED


async def test_a_quota_of_storage_fails_the_partition(tmp_path):
    quota = 64 * SEGMENT_SIZE_BYTES
    async with mini_cluster(
        tmp_path, 1, quota_memory_tier_bytes=quota, quota_disk_tier_bytes=quota
    ) as cluster:
        writer = await a_writer(cluster)
        with pytest.raises(RemoteError) as caught:
            await send_all(writer)
        assert caught.value.code is ErrorCode.QUOTA_EXCEEDED
        await until_clean(cluster[0], storage_leftovers)


async def test_a_finished_partition_outlives_full_storage(tmp_path):
    """Its last buffers stay in memory: there is room for fewer than the pool holds."""
    async with mini_cluster(
        tmp_path, 1, memory_tier_bytes=SEGMENT_SIZE_BYTES, disk_quota_bytes=0
    ) as cluster:
        writer = await a_writer(cluster)
        content = buffers(4)
        for data in content:
            await writer.send(0, data)
        await writer.finish()
        reader = await a_reader(cluster, writer)
        await reader.read_all()
        assert reader.data() == b"".join(content)


async def test_the_writer_is_told_when_the_reader_has_the_end(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        writer = await a_writer(cluster)
        for data in buffers(MANY):
            await writer.send(0, data)
        writer.client.send(WatchConsumption(writer.number))
        await writer.finish()
        assert len(cluster[0].partitions.pipelined) == 1  # a drain waits for it
        reader = await a_reader(cluster, writer)
        await reader.read_all()
        await reader.close()
        assert await writer.client.expect(PartitionConsumed) == PartitionConsumed(writer.number)
        assert len(cluster[0].partitions.pipelined) == 0


@TIERS
@TASKS
async def test_tasks_write_ahead_of_their_reader(tmp_path, tier, clients_at):
    async with (
        mini_cluster(tmp_path, 1, memory_tier_bytes=tier) as cluster,
        clients_at(cluster, 0) as (client,),
    ):
        async with client.open_result_partition(1, 7, 2, partition_type=HYBRID) as partition:
            for number, data in enumerate(buffers(MANY)):
                await partition.emit_buffer(data, number % 2)
        for subpartition in range(2):
            async with client.open_gate([partition.location], subpartition) as gate:
                content = b"".join(buffers(MANY)[subpartition::2])
                assert await read_bytes(gate) == content
        await partition.wait_consumed(30)
        await until_clean(cluster[0], storage_leftovers)


@TASKS
async def test_small_flushed_buffers_are_read_in_order(tmp_path, clients_at):
    """A buffer timeout of 0 flushes every record, with and without its reader."""
    async with (
        mini_cluster(tmp_path, 1) as cluster,
        clients_at(cluster, 0) as (client,),
    ):
        expected = b""
        async with (
            client.open_result_partition(
                1, 7, 1, partition_type=HYBRID, buffer_timeout_seconds=0
            ) as partition,
            client.open_gate([partition.location], 0) as gate,
        ):
            for number in range(1000):
                data = number.to_bytes(4, "big") * 50
                expected += data
                await partition.emit_buffer(data, 0)
            await partition.finish()
            assert await read_bytes(gate) == expected


async def test_full_storage_fails_an_embedded_writer(tmp_path):
    async def write(client) -> None:
        async with client.open_result_partition(1, 7, 1, partition_type=HYBRID) as partition:
            for data in buffers(MANY):
                await partition.emit_buffer(data, 0)

    async with (
        mini_cluster(
            tmp_path, 1, memory_tier_bytes=64 * SEGMENT_SIZE_BYTES, disk_quota_bytes=0
        ) as cluster,
        embedded_clients(cluster, 0) as (client,),
    ):
        with pytest.raises(SluiceError) as caught:
            await write(client)
        assert caught.value.code is ErrorCode.STORAGE_FULL
