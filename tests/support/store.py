"""A small store, and map outputs written to it."""

import asyncio
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from crc32c import crc32c

from sluice.shuffle.names import ShuffleKey, SubpartitionRange
from sluice.shuffle.taskmanager.config.storage_config import StorageConfig
from sluice.shuffle.taskmanager.serve.stored_partition_view import Slice
from sluice.shuffle.taskmanager.serve.stored_slices import append_slices
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.store_status import TierStatus
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput, Region
from sluice.shuffle.taskmanager.store.tiers.tier import ExtentRead

KEY = ShuffleKey("app-1", 0)


def config(directory: Path, **changes) -> StorageConfig:
    """A small store below ``directory``; no free-space floor, so that any test disk will do."""
    settings = {
        "data_directories": (directory / "data",),
        "memory_directory": directory / "memory",
        "memory_tier_bytes": 1024 * 1024,
        "min_free_bytes": 0,
        "io_threads": 2,
    }
    return StorageConfig(**(settings | changes))


def on_disks(directory: Path, names: str = "ab", **changes) -> StorageConfig:
    """A small store without a memory tier, with a data directory for each letter."""
    directories = tuple(directory / name for name in names)
    return config(directory, **{"data_directories": directories, "memory_tier_bytes": 0} | changes)


def content(seed: int, length: int) -> bytes:
    """Bytes that differ by seed and by position."""
    word = (seed * 2654435761 % 2**32).to_bytes(4, "little") + b"%06d" % (seed % 10**6)
    return (word * (length // len(word) + 1))[:length]


async def write_region(
    store: ShuffleStore, data: bytes, lengths: list[int], *, key: ShuffleKey = KEY, first: int = 0
) -> Region:
    """Write one region the way its tier wants it."""
    writer = store.begin_region(key, first, lengths)
    if writer.in_memory:
        writer.view[:] = data
    else:
        half = len(data) // 2
        await asyncio.gather(
            writer.write(half, [memoryview(data)[half:]]),
            writer.write(0, [memoryview(data)[: half // 2], memoryview(data)[half // 2 : half]]),
        )
        await writer.flush()
    return writer.finish(crc32c(data))


async def put(
    store: ShuffleStore, attempt: int, length: int, *, key: ShuffleKey = KEY
) -> MapOutput:
    """Commit a map output of one region of ``length`` bytes in four subpartitions."""
    part = length // 4
    lengths = [part, part, part, length - 3 * part]
    region = await write_region(store, content(attempt, length), lengths, key=key)
    output = MapOutput(key, attempt, 4, (region,))
    await store.commit(output)
    return output


async def fetch(store: ShuffleStore, output: MapOutput) -> bytes:
    """Read all of a map output through the store."""
    parts = []
    for region in output.regions:
        if region.extent is not None:
            buffer = bytearray(region.length)
            cut = region.length // 3
            view = memoryview(buffer)
            await store.read_all([ExtentRead(region.extent, 0, [view[:cut], view[cut:]])])
            parts.append(bytes(buffer))
    return b"".join(parts)


def slices_of(outputs: Iterable[MapOutput], wanted: SubpartitionRange) -> list[Slice]:
    """What a view of map outputs reads; it takes over the references."""
    slices: list[Slice] = []
    for output in outputs:
        append_slices(slices, output, wanted.start, wanted.end)
    for each in slices:
        each.extent.retain()
    return slices


def used(store: ShuffleStore) -> list[int]:
    """Bytes in use per tier."""
    return [tier.used_bytes for tier in store.tiers()]


def extent_of(output: MapOutput) -> Any:
    """The extent of the first region; Any, because the tests know that there is one."""
    return output.regions[0].extent


def open_descriptors() -> int:
    """Number of open file descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


class Gate:
    """Lets a test hold a thread inside a blocking call."""

    def __init__(self, monkeypatch, owner, name, error=None):
        self.entered = threading.Event()
        self.proceed = threading.Event()
        self.calls = 0
        real = getattr(owner, name)

        def held(*args):
            self.calls += 1
            self.entered.set()
            assert self.proceed.wait(20)
            if error is not None:
                raise error
            return real(*args)

        monkeypatch.setattr(owner, name, held)

    async def wait_entered(self):
        assert await asyncio.to_thread(self.entered.wait, 20)


def tier(store: ShuffleStore, name: str) -> TierStatus:
    """Return the status of the tier whose directory has a name."""
    return next(each for each in store.tiers() if each.directory.endswith(f"/{name}"))


async def settle(store):
    """Wait until the store's own tasks have ended."""
    async with asyncio.timeout(20):
        tier = store._tiers.remote
        while tasks := [*store._tiers.upkeep.tasks, *store._journal.tasks]:
            await asyncio.wait(tasks)
        if tier is not None and tier._deleting is not None:
            await asyncio.wait({tier._deleting})


def holders_of_data(store: ShuffleStore) -> list[str]:
    """Return the applications that hold more than the releases of their shuffles."""
    return [
        each.application_id
        for each in store.accounts.in_use()
        if sum(each.held) > store.releases.journal_bytes
    ]
