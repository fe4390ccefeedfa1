"""Helpers for stores of which a directory hangs."""

import asyncio
import fcntl
from pathlib import Path
from typing import Any

from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput, release_regions
from sluice.shuffle.taskmanager.store.tiers.disk_tier import DiskTier
from sluice.shuffle.taskmanager.store.tiers.tier import ExtentRead
from tests.support.store import (
    KEY,
    content,
    extent_of,
    on_disks,
    put,
    write_region,
)

SOON_SECONDS = 0.01
SLOW_SECONDS = 0.5
PATIENCE_SECONDS = 30
SIZE = 10_000


def watched_disks(tmp_path: Path, **changes: object):
    """Disks that are probed all the time."""
    times: dict[str, Any] = {
        "health_check_seconds": SOON_SECONDS,
        "slow_disk_seconds": SLOW_SECONDS,
    }
    return on_disks(tmp_path, **times | changes)


def disk(store, name):
    return next(each for each in store._storage.disks if each.directory.name == name)


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


async def put_elsewhere(store, attempts):
    """Commit map outputs, each of which must succeed in time."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        for attempt in attempts:
            await put(store, attempt, SIZE)


class Buffer:
    """Counts its references, like the segments of a read."""

    def __init__(self) -> None:
        self.memory = memoryview(bytearray(SIZE))
        self.retained = self.released = 0

    def retain(self) -> None:
        self.retained += 1

    def release(self) -> None:
        self.released += 1


class Call:
    """A call that uses a disk in the background, so that the disk hangs with it."""

    def __init__(self, store: ShuffleStore, region, buffer: Buffer | None = None) -> None:
        self.buffer = buffer or Buffer()
        reads = [ExtentRead(region.extent, 0, [self.buffer.memory])]
        self.task = asyncio.ensure_future(store.read_all(reads, uses=[self.buffer]))


def is_locked(directory: Path) -> bool:
    with (directory / "lock").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


async def written_without(name, store, attempt):
    """A region beside a disk that hangs: no thread may have to write to that disk."""
    while True:
        writer = store.begin_region(KEY, 0, [SIZE])
        if writer._extent.tier.directory.name != name:
            await writer.write(0, [memoryview(content(attempt, SIZE))])
            return writer.finish(0)
        writer.abort()


def regions_on(store, name):
    return [
        output.regions[0]
        for output in store.map_outputs(KEY).values()
        if extent_of(output).tier.directory.name == name
    ]


def begun(store, name):
    """A region that nothing was written to, on a disk."""
    while True:
        writer = store.begin_region(KEY, 0, [SIZE])
        if writer._extent.tier.directory.name == name:
            return writer
        writer.abort()


def on(output):
    return extent_of(output).tier.directory.name


async def put_on(store, name, attempts):
    other = "b" if name == "a" else "a"
    for attempt in attempts:
        region = await written_without(other, store, attempt)
        commit = store.commit(MapOutput(KEY, attempt, 1, (region,)))
        await asyncio.wait_for(commit, PATIENCE_SECONDS)
