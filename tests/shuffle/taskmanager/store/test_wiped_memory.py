"""Files on tmpfs are removed while the TaskManager runs, as systemd's RemoveIPC does."""

import contextlib
import logging
import os
from pathlib import Path

import pytest

from sluice.protocol.schema import AttachRegionArea, RegionAreaAttached
from sluice.shuffle.taskmanager.bounds.accounts import Accounts
from sluice.shuffle.taskmanager.store.errors import StorageUnavailable
from sluice.shuffle.taskmanager.store.health.directory_health import Condition
from sluice.shuffle.taskmanager.store.health.directory_probe import ProbedDirectory, probe
from sluice.shuffle.taskmanager.store.region_area import RegionAreas
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
from sluice.shuffle.taskmanager.store.tiers.arena_tier import ArenaTier
from sluice.shuffle.taskmanager.store.tiers.memory_tier import MemoryTier
from sluice.shuffle.taskmanager.store.tiers.tier import Extent
from tests.support.mini_cluster import eventually, mini_cluster
from tests.support.removal import remove_used
from tests.support.store import KEY, config, content, fetch, put

SOON_SECONDS = 0.01
LENGTH = 10_000
AREA_BYTES = 1 << 20


@pytest.fixture
async def watched(tmp_path):
    """A store with a memory tier whose directories are probed all the time."""
    store = ShuffleStore.open(config(tmp_path, health_check_seconds=SOON_SECONDS))
    store.watch(lambda lost: None)
    yield store
    await store.close()


def memory(store):
    return next(each for each in store.tiers() if each.tier == "memory")


def is_open(path: Path) -> bool:
    """Whether this process has a file open or mapped."""
    opened = [Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")]
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed in the meantime
            opened.append(str(descriptor.readlink()))
    return any(path.name in each for each in opened)


def extent_of(output: MapOutput) -> Extent:
    extent = output.regions[0].extent
    assert extent is not None
    return extent


def arena_of(output: MapOutput) -> Path:
    tier = extent_of(output).tier
    assert isinstance(tier, ArenaTier)
    return tier.path


def wipe_files(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()


def remove_the_arena(directory: Path) -> None:
    next(directory.glob("arena-*")).unlink()


def remove_the_journal(directory: Path) -> None:
    next(directory.glob("journal*")).unlink()


wipes = pytest.mark.parametrize(
    "remove", [remove_used, wipe_files, remove_the_arena, remove_the_journal]
)


@wipes
async def test_the_memory_tier_comes_back_without_a_restart(watched, tmp_path, remove):
    await put(watched, 1, LENGTH)
    assert memory(watched).extents == 1
    remove(tmp_path / "memory")
    await eventually(lambda: watched.why_lost(KEY, 1))
    await eventually(lambda: memory(watched).healthy)
    again = await put(watched, 1, LENGTH)
    assert extent_of(again).in_memory
    assert await fetch(watched, again) == content(1, LENGTH)
    await watched.close()
    after = ShuffleStore.open(config(tmp_path))
    assert list(after.map_outputs(KEY)) == [1]
    assert await fetch(after, after.map_outputs(KEY)[1]) == content(1, LENGTH)
    await after.close()


@wipes
async def test_a_reader_of_the_memory_that_was_lost_keeps_its_bytes(watched, tmp_path, remove):
    output = await put(watched, 1, LENGTH)
    extent = extent_of(output)
    extent.retain()
    remove(tmp_path / "memory")
    await eventually(lambda: watched.why_lost(KEY, 1))
    await eventually(lambda: memory(watched).healthy)
    other = await put(watched, 2, LENGTH)
    assert extent_of(other).tier is not extent.tier
    assert extent.view is not None
    assert bytes(extent.view) == content(1, LENGTH)
    extent.release()
    assert not is_open(arena_of(output))  # its pages are free with its last reader


async def test_the_memory_that_was_lost_is_free_once_the_tier_is_back(watched, tmp_path):
    before = arena_of(await put(watched, 1, LENGTH))
    remove_used(tmp_path / "memory")
    await eventually(lambda: memory(watched).healthy and memory(watched).extents == 0)
    assert not is_open(before)


async def test_a_data_directory_that_is_removed_is_not_made_again(watched, tmp_path):
    remove_used(tmp_path / "data")  # perhaps a disk that is not mounted
    await eventually(lambda: not watched.tiers()[1].healthy)
    remove_used(tmp_path / "memory")
    await eventually(lambda: (tmp_path / "memory").exists() and memory(watched).healthy)
    assert not (tmp_path / "data").exists()


async def test_a_tier_that_cannot_come_back_is_logged_once(watched, tmp_path, caplog, monkeypatch):
    attempts = []

    def refuse(directory, capacity_bytes, on_excess):
        attempts.append(directory)
        raise StorageUnavailable(directory, "no room")

    monkeypatch.setattr(MemoryTier, "open", refuse)
    with caplog.at_level(logging.ERROR):
        remove_used(tmp_path / "memory")
        await eventually(lambda: len(attempts) > 2)
    assert caplog.text.count("no room") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another user")
def test_a_directory_that_another_user_made_in_the_meantime_is_not_written_to(tmp_path):
    shared = tmp_path / "shm"
    shared.mkdir()
    shared.chmod(0o1777)
    theirs = shared / "sluice"
    theirs.mkdir()
    os.chown(theirs, 12345, 12345)
    finding = probe(ProbedDirectory(theirs, make=True))
    assert finding.condition is Condition.BAD
    assert finding.reason == f"{theirs} belongs to user 12345, not to root or user 0"
    assert list(theirs.iterdir()) == []


def test_only_a_directory_that_may_be_made_is_made(tmp_path):
    missing = tmp_path / "missing"
    assert probe(ProbedDirectory(missing)).condition is Condition.GONE
    assert not missing.exists()
    assert probe(ProbedDirectory(missing, make=True)).condition is Condition.GOOD
    assert missing.stat().st_mode & 0o777 == 0o700
    assert probe(ProbedDirectory(missing / "a" / "b", make=True)).condition is Condition.GONE


# ---- region areas --------------------------------------------------------------------------------


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_region_areas_come_back_without_a_restart(tmp_path, elsewhere):
    shared = tmp_path / "shared"
    settings = {"region_areas_directory": shared / "areas"} if elsewhere else {}
    async with mini_cluster(tmp_path, 1, **settings) as cluster:
        before = await attached(await cluster.producer(0))
        assert is_there(before)
        remove_used(shared if elsewhere else tmp_path / "tm0" / "memory")
        area = await attached(await cluster.producer(0))
        assert is_there(area)
        assert Path(area.path).parent == Path(before.path).parent
        assert Path(area.path).parent.stat().st_mode & 0o777 == 0o711
        assert Path(area.path).parent.parent.stat().st_mode & 0o777 in (0o711, 0o755)


async def test_memory_tier_and_region_areas_come_back_side_by_side(tmp_path):
    async with mini_cluster(tmp_path, 1, health_check_seconds=SOON_SECONDS) as cluster:
        store = cluster[0].store
        before = store.tiers()[0]
        remove_used(tmp_path / "tm0" / "memory")
        assert is_there(await attached(await cluster.producer(0)))
        await eventually(lambda: not store.tiers()[0].healthy or store.tiers()[0] != before)
        await eventually(lambda: store.tiers()[0].healthy)
        assert is_there(await attached(await cluster.producer(0)))
        assert (tmp_path / "tm0" / "memory").stat().st_mode & 0o777 == 0o711


async def test_a_directory_that_the_protocol_cannot_name_has_no_region_areas(tmp_path, caplog):
    directory = tmp_path / os.fsdecode(b"areas-\xff")
    areas = RegionAreas.open(config(tmp_path, region_areas_directory=directory), Accounts())
    assert await areas.create("app", AREA_BYTES) is None
    assert "is not UTF-8" in caplog.text
    areas.close()


async def attached(client) -> RegionAreaAttached:
    client.send(AttachRegionArea("", AREA_BYTES))
    return await client.expect(RegionAreaAttached)


def is_there(area: RegionAreaAttached) -> bool:
    return bool(area.path) and Path(area.path).stat().st_size == AREA_BYTES
