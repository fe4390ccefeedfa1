"""Stores on two disks that are probed all the time, and map outputs on one of them."""

import asyncio
from pathlib import Path
from typing import Any

from crc32c import crc32c

from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput, release_regions
from sluice.shuffle.taskmanager.store.tiers.disk_tier import DiskTier
from tests.support.store import KEY, content, on_disks, write_region

SOON_SECONDS = 0.01
SLOW_SECONDS = 0.5
PATIENCE_SECONDS = 30
SIZE = 10_000


def watched_disks(tmp_path: Path, names: str = "ab", **changes: object):
    """Disks that are probed all the time."""
    times: dict[str, Any] = {
        "health_check_seconds": SOON_SECONDS,
        "slow_disk_seconds": SLOW_SECONDS,
    }
    return on_disks(tmp_path, names, **times | changes)


async def written(store, name, attempt=100):
    """A region on a disk."""
    regions = []
    while True:
        regions.append(await write_region(store, content(attempt, SIZE), [SIZE]))
        extent = regions[-1].extent
        assert extent is not None
        assert isinstance(extent.tier, DiskTier)
        if extent.tier.directory.name == name:
            release_regions(regions[:-1])
            return regions[-1]


async def written_without(name, store, attempt):
    """A region beside a disk that hangs: no thread may have to write to that disk."""
    while True:
        writer = store.begin_region(KEY, 0, [SIZE])
        if writer._extent.tier.directory.name != name:
            data = content(attempt, SIZE)
            await writer.write(0, [memoryview(data)])
            return writer.finish(crc32c(data))
        writer.abort()


async def put_on(store, name, attempts):
    other = "b" if name == "a" else "a"
    for attempt in attempts:
        region = await written_without(other, store, attempt)
        commit = store.commit(MapOutput(KEY, attempt, 1, (region,)))
        await asyncio.wait_for(commit, PATIENCE_SECONDS)
