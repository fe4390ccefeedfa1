"""Helpers for stores of which a directory hangs."""

import asyncio
import fcntl
from pathlib import Path

from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.tiers.tier import ExtentRead
from tests.support.store import (
    KEY,
    extent_of,
    put,
)
from tests.support.watched_disks import PATIENCE_SECONDS, SIZE


def disk(store, name):
    return next(each for each in store._storage.disks if each.directory.name == name)


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
