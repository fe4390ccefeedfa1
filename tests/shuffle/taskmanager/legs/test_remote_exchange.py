"""Map outputs in the remote tier, through real sockets: what is read is what was written."""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import pytest
from crc32c import crc32c

from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    AddCredit,
    BeginRegion,
    OpenPartition,
    RegionData,
    ReleaseShuffle,
    ShuffleReleased,
)
from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.partition.region_builder import OutgoingRegion
from sluice.shuffle.taskmanager.embedded.store_sink import StoreSink
from sluice.shuffle.taskmanager.store.region_area import AreasDirectory, RegionAreas
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
from tests.support.mini_cluster import eventually, mini_cluster
from tests.support.remote import REMOTE_ONLY, both_places, s3_place, tier_of
from tests.support.s3 import SECRET_KEY, s3_proxy
from tests.support.wire_clients import read_gate, write_map_output

MIB = 1024 * 1024
KEY = ShuffleKey("app", 1)


def noise(seed: int, length: int) -> bytes:
    return random.Random(seed).randbytes(length)


def regions_of(attempt: int) -> list[list[bytes]]:
    """Three regions of three subpartitions; one is large, and one is empty."""
    return [
        [noise(attempt, 70_000), b"", noise(attempt + 1, 3)],
        [b"", b"", b""],
        [noise(attempt + 2, 9), noise(attempt + 3, 300_000), noise(attempt + 4, 5000)],
    ]


def wanted(attempts: range, start: int, end: int) -> bytes:
    return b"".join(
        b"".join(b"".join(parts[start:end]) for parts in regions_of(attempt))
        for attempt in attempts
    )


@both_places
async def test_a_host_without_disks_stores_and_serves_map_outputs(tmp_path, place):
    settings: dict[str, Any] = REMOTE_ONLY | place.settings
    async with mini_cluster(tmp_path, **settings) as cluster:
        attempts = range(4)
        acks = [await cluster.write(0, each, regions_of(each)) for each in attempts]
        assert len(place.data()) == 2 * len(attempts)
        for reader in (0, 1):
            client = await cluster.consumer(reader)
            for start, end in ((0, 3), (1, 2)):
                got = await read_gate(client, 1, [(acks[0], list(attempts))], start, end)
                assert got == [wanted(attempts, start, end)]
        kinds = {tier.tier for tier in cluster[0].store.tiers() if tier.extents}
        assert kinds == {"remote"}


@both_places
async def test_data_three_times_as_large_as_memory_and_disk_are_read_as_written(tmp_path, place):
    settings: dict[str, Any] = {
        "memory_tier_bytes": MIB // 2,
        "disk_quota_bytes": MIB // 2,
        **place.settings,
    }
    async with mini_cluster(tmp_path, **settings) as cluster:
        attempts = range(8)
        acks = await asyncio.gather(
            *(cluster.write(0, each, regions_of(each)) for each in attempts)
        )
        used = {tier.tier: tier.used_bytes for tier in cluster[0].store.tiers()}
        assert used["remote"] > 1.5 * MIB
        assert used["memory"]
        assert used["disk"]
        client = await cluster.consumer(1)
        got = await read_gate(client, 1, [(acks[0], list(attempts))], 0, 3)
        assert got == [wanted(attempts, 0, 3)]
        account = cluster[0].accounts.of("app")
        assert sum(account.held) >= sum(used.values())
    assert place.data() == []


@both_places
async def test_a_map_output_that_moved_is_served_by_another_taskmanager(tmp_path, place):
    async with mini_cluster(tmp_path, **place.settings) as cluster:
        attempts = range(3)
        for each in attempts:
            await cluster.write(0, each, regions_of(each))
        for output in list(cluster[0].store.map_outputs(KEY).values()):
            await cluster[0].store.move_to_remote(output)
        await cluster[0].close()

        client = await cluster.consumer(1)
        got = await read_gate(client, 1, [(client.ack, list(attempts))], 0, 3)
        assert got == [wanted(attempts, 0, 3)]
        assert len(cluster[1].store.map_outputs(KEY)) == 3

        driver = await cluster.driver(1)
        driver.send(ReleaseShuffle(1))
        await driver.expect(ShuffleReleased)
        await eventually(lambda: place.data() == [])
        cluster.environments.pop(0)


@both_places
async def test_embedded_tasks_and_region_areas_write_there_too(tmp_path, place):
    settings: dict[str, Any] = REMOTE_ONLY | place.settings
    async with mini_cluster(tmp_path, 1, **settings) as cluster:
        store = cluster[0].store
        sink = StoreSink(cluster[0].producer_services, KEY, 1, 2)
        parts = (noise(1, 5000), noise(2, 100_000))
        lengths = [len(part) for part in parts]
        await sink.write_region(
            OutgoingRegion(0, lengths, crc32c(b"".join(parts)), parts, is_broadcast=False)
        )
        await sink.finish(sum(lengths), 1)

        areas = RegionAreas(AreasDirectory(tmp_path / "areas"), 16 * MIB)
        area = await areas.create("app", 4 * MIB)
        assert area is not None
        data = noise(3, 3 * MIB)
        os.pwrite(area.fd, data, 4096)
        writer = store.begin_region(KEY, 0, [len(data), 0])
        assert await writer.copy_from(area, 4096, checksum=True) == crc32c(data)
        await writer.flush()
        await store.commit(MapOutput(KEY, 2, 2, (writer.finish(crc32c(data)),)))
        area.release()
        areas.close()

        client = await cluster.consumer(0)
        got = await read_gate(client, 1, [(client.ack, [1, 2])], 0, 2)
        assert got == [b"".join(parts) + data]


async def test_an_outage_fails_writers_and_readers_with_a_typed_error(tmp_path, s3):
    place = s3_place(s3)
    async with s3_proxy(s3) as proxy:
        settings = REMOTE_ONLY | place.settings | {"remote_endpoint": proxy.endpoint}
        async with mini_cluster(tmp_path, 1, **settings, remote_timeout_seconds=2) as cluster:
            ack = await cluster.write(0, 1, [[noise(1, 200_000)]])
            proxy.rule = lambda method, path: 503
            for _ in range(2):  # the second one meets a tier that is left out
                client = await cluster.producer(0)
                with pytest.raises(RemoteError) as failed:
                    await write_map_output(client, 1, 2, [[noise(2, 200_000)]])
                codes = (ErrorCode.STORAGE_UNAVAILABLE, ErrorCode.STORAGE_FULL)
                assert failed.value.code in codes
                assert SECRET_KEY not in str(failed.value)
            reader = await cluster.consumer(0)
            with pytest.raises(RemoteError) as failed:
                await read_gate(reader, 1, [(ack, [1])], 0, 1)
            assert failed.value.code is ErrorCode.STORAGE_UNAVAILABLE
            proxy.rule = lambda method, path: None
            await eventually(lambda: cluster[0].store.tiers()[-1].healthy)
            again = await cluster.consumer(0)
            assert await read_gate(again, 1, [(ack, [1])], 0, 1) == [noise(1, 200_000)]


async def test_a_map_output_that_nobody_has_costs_one_lookup(tmp_path, object_store):
    settings: dict[str, Any] = {
        "remote": str(tmp_path / "remote"),
        "partition_request_timeout_seconds": 0.1,
    }
    async with mini_cluster(tmp_path, 1, **settings) as cluster:
        client = await cluster.consumer(0)
        with pytest.raises(RemoteError) as failed:
            await read_gate(client, 1, [(client.ack, [1])], 0, 1)
        assert failed.value.code is ErrorCode.PARTITION_NOT_FOUND
        moved = cluster[0].store.remote
        assert moved is not None
        assert moved.lookups == 1


async def test_a_taskmanager_that_ends_leaves_no_upload_behind(tmp_path, object_store):
    settings: dict[str, Any] = REMOTE_ONLY | {"remote": str(tmp_path / "remote")}
    async with mini_cluster(tmp_path, 1, **settings) as cluster:
        client = await cluster.producer(0)
        client.send(OpenPartition(0, 1, 1, 1))
        client.send(BeginRegion(0, 0, 0, [20 * MIB], 0))
        await client.expect(AddCredit)
        client.send(RegionData(0, 0), bytes(4096))
        tier = tier_of(cluster[0].store)
        await eventually(lambda: tier.budget.used_bytes)
        client.vanish()
        await client.until_lost()
        await eventually(lambda: not tier.budget.used_bytes)
