"""Broadcast into a stored partition: stored once, read by every subpartition, and recovered."""

from __future__ import annotations

import random

import pytest

from sluice.protocol.events import CheckpointBarrier
from sluice.protocol.schema import DATA
from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.shuffle.partition.result_partition_writer import ALL_SUBPARTITIONS
from sluice.shuffle.records.record_reader import ChannelEvent
from sluice.shuffle.records.serializers import BytesSerializer
from tests.support.api_clients import api_clients
from tests.support.mini_cluster import DISK_ONLY, MEMORY_TIER, SEGMENT_SIZE_BYTES, mini_cluster

READ_AT = pytest.mark.parametrize("reader_at", [0, 1], ids=["local", "remote"])
BOTH_TIERS = pytest.mark.parametrize(
    "memory_tier_bytes", [MEMORY_TIER, DISK_ONLY], ids=["memory", "disk"]
)
SUBPARTITIONS = 20
CONTENT = random.Random(3).randbytes(30 * SEGMENT_SIZE_BYTES)


async def stored(client, map_attempt_id, *parts):
    """Store parts, each for a subpartition or for all, and return the partition's location."""
    async with client.open_result_partition(
        1, map_attempt_id, SUBPARTITIONS, partition_type=ResultPartitionType.BLOCKING
    ) as partition:
        for content, subpartition in parts:
            await partition.emit_buffer(content, subpartition)
    return partition.location


async def read(client, location, start, end=None):
    content = b""
    async with client.open_gate([location], start, end) as gate:
        while (taken := await gate.next_buffer_or_event()) is not None:
            if taken.buffer.data_type == DATA:
                content += taken.buffer.payload
            if taken.buffer.release is not None:
                taken.buffer.release()
    return content


def used_bytes(environment):
    return sum(tier.used_bytes for tier in environment.store.tiers())


@READ_AT
@BOTH_TIERS
async def test_broadcast_data_is_stored_once(tmp_path, memory_tier_bytes, reader_at):
    async with (
        mini_cluster(tmp_path, memory_tier_bytes=memory_tier_bytes) as cluster,
        api_clients(cluster, 0, reader_at) as (producer, consumer),
    ):
        location = await stored(producer, 7, (CONTENT, ALL_SUBPARTITIONS))
        (shuffle,) = cluster[0].store.shuffles()
        assert len(CONTENT) < shuffle.stored_bytes < 1.1 * len(CONTENT)
        assert used_bytes(cluster[0]) < 1.2 * len(CONTENT)  # not 20 times as much
        for subpartition in (0, 1, SUBPARTITIONS - 1):
            assert await read(consumer, location, subpartition) == CONTENT
        assert await read(consumer, location, 3, 6) == CONTENT * 3


@READ_AT
async def test_broadcast_unicast_and_events_keep_their_order(tmp_path, reader_at):
    barrier = CheckpointBarrier(1, 2, False)
    async with (
        mini_cluster(tmp_path) as cluster,
        api_clients(cluster, 0, reader_at) as (producer, consumer),
    ):
        async with producer.open_result_partition(
            1, 7, 3, partition_type=ResultPartitionType.BLOCKING, max_segments=6
        ) as partition:
            writer = partition.record_writer(BytesSerializer())
            expected: list[list[object]] = [[], [], []]
            for number in range(200):
                record = b"%d/" % number * 600
                # Long runs of one kind, so that there are regions of each kind, and mixed ones.
                if number // 50 % 2:
                    pending = writer.emit_to(record, number % 3)
                    expected[number % 3].append(record)
                else:
                    pending = writer.broadcast_emit(record)
                    for each in expected:
                        each.append(record)
                if pending is not None:
                    await pending
                if number == 20:
                    writer.broadcast_event(barrier)
                    for each in expected:
                        each.append(barrier)
        kinds = {
            region.is_broadcast
            for region in cluster[0].store.map_outputs(ShuffleKey("app", 1))[7].regions
        }
        assert kinds == {True, False}
        for subpartition in range(3):
            got = []
            async with consumer.open_gate([partition.location], subpartition) as gate:
                reader = gate.reader(BytesSerializer())
                while (element := await reader.next()) is not None:
                    got.append(
                        element.event if isinstance(element, ChannelEvent) else element.value
                    )
            assert got[:-1] == expected[subpartition]  # the last one is the end


@BOTH_TIERS
async def test_a_restarted_taskmanager_serves_it_to_every_subpartition(tmp_path, memory_tier_bytes):
    settings = {"memory_tier_bytes": memory_tier_bytes}
    async with mini_cluster(tmp_path, 1, **settings) as cluster:
        async with api_clients(cluster, 0) as (producer,):
            location = await stored(producer, 7, (CONTENT, ALL_SUBPARTITIONS), (b"only for two", 2))
        before = used_bytes(cluster[0])
        await cluster[0].close()
        cluster.environments[0] = await cluster.start_one(0, settings)
        assert used_bytes(cluster[0]) == before
        location = location._replace(port=cluster[0].address.port)
        async with api_clients(cluster, 0) as (consumer,):
            for subpartition in (0, SUBPARTITIONS - 1):
                assert await read(consumer, location, subpartition) == CONTENT
            assert await read(consumer, location, 2) == CONTENT + b"only for two"
            with pytest.raises(Exception, match="subpartitions"):
                await read(consumer, location, SUBPARTITIONS)
