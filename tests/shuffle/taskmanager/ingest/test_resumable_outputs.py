"""Map outputs that go on, on another connection or in the next process; and late writers."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c

from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    AbortPartition,
    AddCredit,
    BeginRegion,
    FinishPartition,
    OpenPartition,
    PartitionAborted,
    PartitionFinished,
    PartitionOpened,
    PartitionResumed,
    RegionData,
    RegionSecured,
    ReleaseApplication,
    ReleaseShuffle,
    ResumePartition,
    SecureRegion,
    encode,
)
from sluice.shuffle.taskmanager.ingest.producer_handler import ProducerHandler
from sluice.shuffle.taskmanager.store.journal import journal_files
from tests.support.mini_cluster import (
    DISK_ONLY,
    MEMORY_TIER,
    SEGMENT_SIZE_BYTES,
    eventually,
    mini_cluster,
    storage_leftovers,
    until_clean,
)
from tests.support.wire_clients import read_gate, write_region

if TYPE_CHECKING:
    from sluice.protocol.schema import Message
    from tests.support.mini_cluster import MiniCluster
    from tests.support.wire_clients import Client

both_tiers = pytest.mark.parametrize("memory_tier_bytes", [MEMORY_TIER, DISK_ONLY])

_random = random.Random(7)
REGIONS = [[_random.randbytes(9_000), b"", _random.randbytes(700)] for _ in range(4)]
TOTAL = sum(len(part) for parts in REGIONS for part in parts)
SHUFFLE, ATTEMPT = 1, 7


async def write(client: Client, regions: range, *, secure: bool = True) -> None:
    for region in regions:
        await write_region(client, 0, region, REGIONS[region])
        if secure:
            client.send(SecureRegion(0, region))
            assert await client.expect(RegionSecured) == RegionSecured(0, region)


async def begin(cluster: MiniCluster, regions: int, *, secure: bool = True) -> Client:
    client = await cluster.producer(0)
    client.send(OpenPartition(0, SHUFFLE, ATTEMPT, 3))
    await client.expect(PartitionOpened)
    await write(client, range(regions), secure=secure)
    return client


async def resume(cluster: MiniCluster) -> tuple[Client, Message]:
    client = await cluster.producer(0)
    client.send(ResumePartition(0, SHUFFLE, ATTEMPT, 3))
    return client, await client.expect(PartitionResumed)


def stored(regions: int) -> PartitionResumed:
    size = sum(len(part) for parts in REGIONS[:regions] for part in parts)
    return PartitionResumed(0, regions, size, committed=False)


async def finish(cluster: MiniCluster, client: Client) -> None:
    """Commit, and check that readers get what was written."""
    client.send(FinishPartition(0, TOTAL, len(REGIONS)))
    await client.expect(PartitionFinished)
    consumer = await cluster.consumer(0)
    content = await read_gate(consumer, SHUFFLE, [(consumer.ack, [ATTEMPT])], 0, 3)
    assert content == [b"".join(part for parts in REGIONS for part in parts)]


async def restart(cluster: MiniCluster, **settings: float) -> None:
    await cluster[0].close()
    cluster.environments[0] = await cluster.start_one(0, settings)


@both_tiers
async def test_a_map_output_goes_on_after_a_lost_connection(tmp_path, memory_tier_bytes):
    async with mini_cluster(tmp_path, 1, memory_tier_bytes=memory_tier_bytes) as cluster:
        before = await begin(cluster, 2)
        await write(before, range(2, 3), secure=False)  # complete, but not acknowledged
        before.vanish()
        await eventually(lambda: cluster[0].resumable.parked == 1)
        client, answer = await resume(cluster)
        assert answer == stored(2)
        await write(client, range(2, 4))
        await finish(cluster, client)
        assert cluster[0].resumable.parked == 0


@both_tiers
async def test_a_map_output_goes_on_after_a_restart(tmp_path, memory_tier_bytes):
    async with mini_cluster(tmp_path, 1, memory_tier_bytes=memory_tier_bytes) as cluster:
        await begin(cluster, 1)
        await restart(cluster, memory_tier_bytes=memory_tier_bytes)
        client, answer = await resume(cluster)
        assert answer == stored(1)
        await write(client, range(1, 3))
        await restart(cluster, memory_tier_bytes=memory_tier_bytes)
        client, answer = await resume(cluster)
        assert answer == stored(3)
        await write(client, range(3, 4), secure=False)
        await finish(cluster, client)
        await restart(cluster, memory_tier_bytes=memory_tier_bytes)
        _, answer = await resume(cluster)
        assert answer == PartitionResumed(0, len(REGIONS), TOTAL, committed=True)


async def test_secured_regions_survive_a_new_journal(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_files, "COMPACTION_FLOOR_BYTES", 0)
    async with mini_cluster(tmp_path, 1) as cluster:
        client = await begin(cluster, 2)
        driver = await cluster.driver(0)
        for shuffle_id in range(2, 12):
            await cluster.write(0, 9, [[b"a"] * 50], shuffle_id=shuffle_id)
            driver.send(ReleaseShuffle(shuffle_id))
        await eventually(lambda: cluster[0].store.statistics().compactions >= 2)
        await write(client, range(2, 3))
        await restart(cluster)
        client, answer = await resume(cluster)
        assert answer == stored(3)
        await write(client, range(3, 4))
        await finish(cluster, client)


async def test_a_map_output_without_secured_regions_begins_anew(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        before = await begin(cluster, 2, secure=False)
        before.vanish()
        client, answer = await resume(cluster)
        assert answer == stored(0)
        await write(client, range(4))
        await finish(cluster, client)


async def test_a_connection_that_still_writes_loses_the_map_output(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        zombie = await begin(cluster, 2)
        client, answer = await resume(cluster)
        assert answer == stored(2)
        with pytest.raises(RemoteError) as failed:
            await write(zombie, range(2, 3))
        assert failed.value.code == ErrorCode.PARTITION_RELEASED
        await write(client, range(2, 4))
        await finish(cluster, client)


@both_tiers
async def test_a_payload_of_the_writer_before_reaches_no_memory_of_others(
    tmp_path, memory_tier_bytes
):
    """The rest of it arrives when its region has been given up, and the next one has its place."""
    data = b"".join(REGIONS[1])
    async with mini_cluster(tmp_path, 1, memory_tier_bytes=memory_tier_bytes) as cluster:
        zombie = await begin(cluster, 1)
        (handler,) = cluster[0].handlers.values()
        assert isinstance(handler, ProducerHandler)
        zombie.send(BeginRegion(0, 1, 0, [len(part) for part in REGIONS[1]], crc32c(data)))
        await zombie.expect(AddCredit)
        frame = encode(RegionData(0, 0), SEGMENT_SIZE_BYTES) + bytes(SEGMENT_SIZE_BYTES)
        zombie._transport.write(frame[:-3000])
        await eventually(lambda: handler._arriving is not None)
        client, answer = await resume(cluster)
        assert answer == stored(1)
        await write(client, range(1, 4))
        zombie._transport.write(frame[-3000:])
        await eventually(lambda: cluster[0].counters.late_messages == {"RegionData": 1})
        await finish(cluster, client)


async def test_a_committed_map_output_takes_no_more_regions(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        client = await begin(cluster, 4)
        await finish(cluster, client)
        zombie, answer = await resume(cluster)
        assert answer == PartitionResumed(0, len(REGIONS), TOTAL, committed=True)
        zombie.send(BeginRegion(0, len(REGIONS), 0, [1], 0))  # of nothing that is open
        assert "not open" in str(await zombie.until_lost())
        again = await cluster.producer(0)
        again.send(OpenPartition(0, SHUFFLE, ATTEMPT, 3))
        await write_region(again, 0, 0, [b"other", b"", b""])
        again.send(FinishPartition(0, 5, 1))
        with pytest.raises(RemoteError) as refused:
            await again.expect(PartitionFinished)
        assert refused.value.code == ErrorCode.DUPLICATE_MAP_OUTPUT
        # Another attempt is another map output: readers of the first one never see it.
        again.send(OpenPartition(0, SHUFFLE, ATTEMPT + 1, 3))
        await write_region(again, 0, 0, [b"other", b"", b""])
        again.send(FinishPartition(0, 5, 1))
        await again.expect(PartitionFinished)
        consumer = await cluster.consumer(0)
        content = await read_gate(consumer, SHUFFLE, [(consumer.ack, [ATTEMPT])], 0, 3)
        assert content == [b"".join(part for parts in REGIONS for part in parts)]


async def test_a_second_writer_cannot_secure_into_a_begun_map_output(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        client = await begin(cluster, 1)
        with pytest.raises(RemoteError) as refused:
            await begin(cluster, 1)
        assert refused.value.code == ErrorCode.DUPLICATE_MAP_OUTPUT
        await write(client, range(1, 4))
        await finish(cluster, client)


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_map_output_whose_producer_stays_away_is_given_up(tmp_path, restarted):
    async with mini_cluster(tmp_path, 1, map_output_resume_timeout_seconds=0.05) as cluster:
        client = await begin(cluster, 2)
        if restarted:
            await restart(cluster, map_output_resume_timeout_seconds=0.05)
        else:
            client.vanish()
        await until_clean(cluster[0], storage_leftovers)
        await restart(cluster)
        _, answer = await resume(cluster)
        assert answer == stored(0)


@pytest.mark.parametrize("how", ["abort", "shuffle", "application"])
async def test_a_map_output_that_was_given_up_does_not_come_back(tmp_path, how):
    async with mini_cluster(tmp_path, 1) as cluster:
        client = await begin(cluster, 2)
        driver = await cluster.driver(0)
        if how == "abort":
            client.send(AbortPartition(0))
            await client.expect(PartitionAborted)
        else:
            driver.send(ReleaseShuffle(SHUFFLE) if how == "shuffle" else ReleaseApplication())
        await until_clean(cluster[0], storage_leftovers)
        await restart(cluster)
        assert cluster[0].store.open_outputs() == []
        assert storage_leftovers(cluster[0]) == []


async def test_a_region_that_is_not_complete_cannot_be_secured(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        client = await begin(cluster, 1)
        client.send(SecureRegion(0, 1))
        with pytest.raises(RemoteError) as refused:
            await client.expect(RegionSecured)
        assert refused.value.code == ErrorCode.REGION_MISMATCH
