"""Map outputs in the remote tier, through real sockets: what is read is what was written."""

from __future__ import annotations

import asyncio
import random

from benchmarks.wire_clients import read_gate
from sluice.protocol.messages import ReleaseShuffle, ShuffleReleased
from sluice.shuffle.names import ShuffleKey
from tests.support.mini_cluster import eventually, mini_cluster
from tests.support.remote import REMOTE_ONLY, both_places

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
    settings = REMOTE_ONLY | place.settings
    async with mini_cluster(tmp_path, **settings) as cluster:
        attempts = range(4)
        acks = [await cluster.write(0, each, regions_of(each)) for each in attempts]
        assert len(place.data()) == 2 * len(attempts)
        for reader in (0, 1):
            client = await cluster.consumer(reader)
            for start, end in ((0, 3), (1, 2)):
                got = await read_gate(client, 1, [(acks[0], list(attempts))], start, end)
                assert got == [wanted(attempts, start, end)]
        kinds = {tier.kind for tier in cluster[0].store.tiers() if tier.extents}
        assert kinds == {"remote"}


@both_places
async def test_data_three_times_as_large_as_memory_and_disk_are_read_as_written(tmp_path, place):
    settings = {"memory_tier_bytes": MIB // 2, "disk_quota_bytes": MIB // 2, **place.settings}
    async with mini_cluster(tmp_path, **settings) as cluster:
        attempts = range(8)
        acks = await asyncio.gather(
            *(cluster.write(0, each, regions_of(each)) for each in attempts)
        )
        used = {tier.kind: tier.used_bytes for tier in cluster[0].store.tiers()}
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
