"""Directories on a disk of their own, a loop device, that fails as disks do.

Only where this process may mount: as root, with loop devices.
"""

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from tests.support.store import KEY, config, content, fetch, put

DISK_BYTES = 24 * 1024 * 1024
OUTPUT_BYTES = 100_000
SOON_SECONDS = 0.02
PATIENCE_SECONDS = 60

pytestmark = [
    pytest.mark.asyncio(loop_factories=["uvloop"]),
    pytest.mark.xdist_group("loop devices"),
]


def command(*words: str | Path) -> None:
    subprocess.run([str(word) for word in words], check=True, capture_output=True, timeout=30)


class LoopDisk:
    """An ext4 file system in a file, mounted."""

    def __init__(self, root: Path) -> None:
        self.file = root / "disk"
        self.mounted_at = root / "mounted"
        self.mounted_at.mkdir()
        with self.file.open("wb") as file:
            file.truncate(DISK_BYTES)
        command("mkfs.ext4", "-q", "-m", "0", self.file)
        command("mount", "-o", "loop,errors=remount-ro", self.file, self.mounted_at)
        self.data = self.mounted_at / "data"

    def abort(self) -> None:
        """Let the file system find an error, whereupon it is read-only."""
        command("mount", "-o", "remount,abort", self.mounted_at)

    def freeze(self) -> None:
        command("fsfreeze", "--freeze", self.mounted_at)

    def thaw(self) -> None:
        command("fsfreeze", "--unfreeze", self.mounted_at)

    def unmount(self) -> None:
        command("umount", "--lazy", self.mounted_at)


@pytest.fixture
def disk() -> Iterator[LoopDisk]:
    tools = ("mkfs.ext4", "mount", "umount", "fsfreeze")
    if os.geteuid() != 0 or not all(map(shutil.which, tools)):
        pytest.skip("only root can mount")
    root = Path(tempfile.mkdtemp(prefix="sluice-disk-"))
    try:
        try:
            made = LoopDisk(root)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no loop devices here: {error.stderr.decode().strip()}")
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
    return next(each for each in store.tiers() if each.directory.parent.name == "mounted")


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


async def test_a_full_disk_is_healthy_and_gets_nothing(disk, store):
    filler = disk.mounted_at / "filler"
    with filler.open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, 4096)
        free = os.statvfs(disk.mounted_at)
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
    before = tier(store).used_bytes
    for attempt in range(10, 20):
        await put(store, attempt, OUTPUT_BYTES)
    assert tier(store).used_bytes <= before + OUTPUT_BYTES
    assert tier(store).healthy
    await check_all(store, [*range(6), *range(10, 20)])
