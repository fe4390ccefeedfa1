"""Directories on a disk of their own, a loop device, that fails as disks do.

Only where this process may mount: as root, with loop devices.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from tests.support.loop_disk import LoopDisk, NoLoopDisk
from tests.support.store import KEY, config, content, fetch, put

DISK_BYTES = 24 * 1024 * 1024
OUTPUT_BYTES = 100_000
SOON_SECONDS = 0.02
PATIENCE_SECONDS = 60

pytestmark = [
    pytest.mark.asyncio(loop_factories=["uvloop"]),
    pytest.mark.xdist_group("loop devices"),
]


@pytest.fixture
def disk() -> Iterator[LoopDisk]:
    root = Path(tempfile.mkdtemp(prefix="sluice-disk-"))
    try:
        try:
            made = LoopDisk(root, DISK_BYTES)
        except NoLoopDisk as error:
            pytest.skip(str(error))
        try:
            yield made
        finally:
            made.unmount()
    finally:
        shutil.rmtree(root)


@pytest.fixture
async def store(disk, tmp_path):
    opened = ShuffleStore.open(
        config(
            tmp_path,
            data_directories=(disk.data, tmp_path / "other"),
            memory_tier_bytes=0,
            health_check_seconds=SOON_SECONDS,
            slow_disk_seconds=0.5,
        )
    )
    opened.watch(lambda lost: None)
    for attempt in range(6):
        await put(opened, attempt, OUTPUT_BYTES)
    yield opened
    await opened.close()


def tier(store):
    """The tier on the disk that fails."""
    return next(each for each in store.tiers() if Path(each.directory).parent.name == "mounted")


async def until(condition):
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(SOON_SECONDS)


async def check_all(store, attempts=range(6)):
    for attempt in attempts:
        output = store.lookup(KEY, attempt)
        assert await fetch(store, output) == content(attempt, OUTPUT_BYTES)


async def test_a_read_only_disk_is_left_out_and_read(disk, store):
    disk.abort()
    await until(lambda: not tier(store).healthy)
    assert "Read-only" in tier(store).reason
    await check_all(store)
    for attempt in range(10, 14):
        await put(store, attempt, OUTPUT_BYTES)
    await check_all(store, [*range(6), 10, 11, 12, 13])


async def test_a_disk_that_stands_still_is_left_out_until_it_goes_on(disk, store):
    disk.freeze()
    try:
        await until(lambda: not tier(store).healthy)
        assert "slow" in tier(store).reason
        for attempt in range(10, 14):
            await put(store, attempt, OUTPUT_BYTES)
    finally:
        disk.thaw()
    await until(lambda: tier(store).healthy)
    await check_all(store, [*range(6), 10, 11, 12, 13])


async def test_calls_on_a_disk_that_stands_still_fail_and_others_succeed(disk, store):
    disk.freeze()
    try:
        # The first calls wait for it; whoever repeats them gets the other disk.
        async with asyncio.timeout(PATIENCE_SECONDS):
            results = await asyncio.gather(
                *[put(store, attempt, OUTPUT_BYTES) for attempt in range(10, 22)],
                return_exceptions=True,
            )
        failed = [each for each in results if isinstance(each, Exception)]
        assert failed
        assert all(str(disk.data) in str(each) for each in failed)
        kept = [n for n, each in enumerate(results, 10) if not isinstance(each, Exception)]
        assert kept
        for attempt in range(30, 34):
            await put(store, attempt, OUTPUT_BYTES)
    finally:
        disk.thaw()
    await until(lambda: tier(store).healthy)
    await check_all(store, [*range(6), *kept, *range(30, 34)])
    await store.close()


async def test_a_full_disk_is_healthy_and_gets_nothing(disk, store):
    disk.fill()
    await until(lambda: tier(store).largest_free_bytes < OUTPUT_BYTES)  # a probe found it
    before = tier(store).used_bytes
    for attempt in range(10, 20):
        await put(store, attempt, OUTPUT_BYTES)
    assert tier(store).used_bytes <= before + OUTPUT_BYTES
    assert tier(store).healthy
    await check_all(store, [*range(6), *range(10, 20)])
