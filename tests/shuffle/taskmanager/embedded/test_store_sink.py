"""Regions that an embedded task writes to the store: limits, failures, cancellation."""

from __future__ import annotations

import asyncio

import pytest
from crc32c import crc32c

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.partition.region_builder import OutgoingRegion
from sluice.shuffle.taskmanager.embedded.store_sink import StoreSink
from tests.support.mini_cluster import DISK_ONLY, MEMORY_TIER, mini_cluster, storage_leftovers

KEY = ShuffleKey("app", 1)
TIERS = pytest.mark.parametrize(
    "memory_tier_bytes", [MEMORY_TIER, DISK_ONLY], ids=["memory", "disk"]
)


def region(number: int, *parts: bytes) -> OutgoingRegion:
    return OutgoingRegion(
        number, [len(part) for part in parts], crc32c(b"".join(parts)), parts, is_broadcast=False
    )


def sink(environment, map_attempt_id: int = 7) -> StoreSink:
    return StoreSink(environment.producer_services, KEY, map_attempt_id, 2)


@TIERS
async def test_regions_become_a_map_output(tmp_path, memory_tier_bytes):
    async with mini_cluster(tmp_path, 1, memory_tier_bytes=memory_tier_bytes) as cluster:
        writer = sink(cluster[0])
        await writer.write_region(region(0, b"a", b"bc"))
        await writer.write_region(region(1, b"", b""))
        assert cluster[0].store.lookup(KEY, 7) is None
        await writer.finish(3, 2)
        writer.abort()  # after the commit there is nothing to give up
        output = cluster[0].store.lookup(KEY, 7)
        assert output is not None
        assert [each.length for each in output.regions] == [3, 0]
        assert cluster[0].counters.regions_written == 2
        assert cluster[0].counters.map_outputs_committed == 1
        again = sink(cluster[0])
        await again.write_region(region(0, b"x", b""))
        with pytest.raises(SluiceError) as caught:
            await again.finish(1, 1)
        assert caught.value.code is ErrorCode.DUPLICATE_MAP_OUTPUT
        assert sum(cluster[0].producer_services.commits.counts) == 1  # without the refused one


@TIERS
async def test_an_abort_gives_every_region_up(tmp_path, memory_tier_bytes):
    async with mini_cluster(tmp_path, 1, memory_tier_bytes=memory_tier_bytes) as cluster:
        writer = sink(cluster[0])
        await writer.write_region(region(0, bytes(1000), b""))
        writing = asyncio.create_task(writer.write_region(region(1, bytes(1000), b"")))
        await asyncio.sleep(0)
        writer.abort()
        await writing
        assert not storage_leftovers(cluster[0])


async def test_a_cancelled_write_gives_its_region_up(tmp_path):
    async with mini_cluster(tmp_path, 1, memory_tier_bytes=DISK_ONLY) as cluster:
        writer = sink(cluster[0])
        writing = asyncio.create_task(writer.write_region(region(0, bytes(1000), b"")))
        await asyncio.sleep(0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert not storage_leftovers(cluster[0])


async def test_there_is_a_limit_to_regions(tmp_path):
    async with mini_cluster(tmp_path, 1, max_regions_per_partition=1) as cluster:
        writer = sink(cluster[0])
        await writer.write_region(region(0, b"a", b""))
        with pytest.raises(SluiceError, match="max_regions_per_partition"):
            await writer.write_region(region(1, b"a", b""))
        writer.abort()
