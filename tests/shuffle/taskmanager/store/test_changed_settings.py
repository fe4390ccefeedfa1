"""A restart with smaller settings: what is stored stays and is reported, new map outputs wait."""

from __future__ import annotations

import os

import pytest

from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.taskmanager.bounds.accounts import Accounts
from sluice.shuffle.taskmanager.store.errors import StorageFull
from sluice.shuffle.taskmanager.store.region_area import RegionAreas
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from tests.support.store import KEY, config, content, extent_of, fetch, put, settle

LENGTH = 200_000
ATTEMPTS = 10
FIRST, SECOND = KEY, ShuffleKey(KEY.application_id, 1)
NO_MEMORY = {"memory_tier_bytes": 0}
MEMORY = {"memory_tier_bytes": 4 * 1024 * 1024}


async def filled(directory, length=LENGTH, **changes):
    """Close a store with map outputs of two shuffles; return the file of the arena they are in."""
    store = ShuffleStore.open(config(directory, **changes))
    for attempt in range(ATTEMPTS):
        await put(store, attempt, length, key=FIRST if attempt < ATTEMPTS // 2 else SECOND)
    await store.close()
    return arena_in(directory / ("memory" if changes["memory_tier_bytes"] else "data"))


def arena_in(directory):
    (path,) = directory.glob("arena-*")
    return path


def allotted(path):
    return path.stat().st_blocks * 512


async def stored(store):
    """The attempts that can be read, byte by byte."""
    found = []
    for key in (FIRST, SECOND):
        for attempt, output in store.map_outputs(key).items():
            assert await fetch(store, output) == content(attempt, output.total_bytes)
            found.append(attempt)
    return sorted(found)


@pytest.mark.parametrize(
    ("quota", "length"), [(2 * LENGTH, LENGTH), (4096, LENGTH), (0, LENGTH), (0, 50)]
)
async def test_a_quota_below_use_keeps_all_map_outputs(tmp_path, caplog, quota, length):
    """Not even a small one gets into a page above the quota that others share."""
    arena = await filled(tmp_path, length, **NO_MEMORY)
    size = arena.stat().st_size
    for _ in range(2):
        caplog.clear()
        store = ShuffleStore.open(config(tmp_path, disk_quota_bytes=quota, **NO_MEMORY))
        assert await stored(store) == list(range(ATTEMPTS))
        assert store.statistics().forgotten_map_outputs == 0
        assert arena.stat().st_size >= size
        with pytest.raises(StorageFull):
            store.begin_region(FIRST, 0, [1])
        await store.close()
        (said,) = [each.message for each in caplog.records if " allows " in each.message]
        assert f"disk_quota_bytes allows {quota // 4096 * 4096}" in said
        assert str(tmp_path / "data") in said
    store = ShuffleStore.open(config(tmp_path, **NO_MEMORY))
    assert await stored(store) == list(range(ATTEMPTS))
    await put(store, 100, LENGTH)
    await store.close()


async def test_a_quota_below_use_takes_map_outputs_when_there_is_room(tmp_path):
    arena = await filled(tmp_path, **NO_MEMORY)
    quota = (ATTEMPTS // 2 + 1) * LENGTH
    store = ShuffleStore.open(config(tmp_path, disk_quota_bytes=quota, **NO_MEMORY))
    with pytest.raises(StorageFull):
        store.begin_region(FIRST, 0, [LENGTH])
    store.release_shuffle(SECOND)  # it lies behind the others
    await settle(store)
    assert allotted(arena) <= quota
    await put(store, 100, LENGTH // 2)
    with pytest.raises(StorageFull):
        store.begin_region(FIRST, 0, [LENGTH])
    assert await stored(store) == [*range(ATTEMPTS // 2), 100]
    assert arena.stat().st_blocks * 512 <= quota
    await store.close()


async def test_space_above_the_quota_is_not_used_again(tmp_path):
    await filled(tmp_path, **NO_MEMORY)
    quota = (ATTEMPTS // 2 + 1) * LENGTH
    store = ShuffleStore.open(config(tmp_path, disk_quota_bytes=quota, **NO_MEMORY))
    store.release_shuffle(FIRST)  # it lies before the others
    await settle(store)
    extent = extent_of(await put(store, 100, LENGTH // 2, key=SECOND))
    assert extent.offset + extent.length <= quota
    assert await stored(store) == [*range(ATTEMPTS // 2, ATTEMPTS), 100]
    await store.close()


@pytest.mark.parametrize("size", [2 * LENGTH, 0])
async def test_a_smaller_memory_tier_keeps_all_map_outputs(tmp_path, caplog, size):
    await filled(tmp_path, **MEMORY)
    for _ in range(2):
        caplog.clear()
        store = ShuffleStore.open(config(tmp_path, memory_tier_bytes=size))
        assert await stored(store) == list(range(ATTEMPTS))
        assert f"memory_tier_bytes allows {size // 4096 * 4096}" in caplog.text
        memory, disk = store.tiers()
        assert memory.used_bytes > (memory.capacity_bytes or 0)
        writer = store.begin_region(FIRST, 0, [LENGTH])
        assert not writer.in_memory
        writer.abort()
        assert disk.healthy
        await store.close()


async def test_a_memory_tier_that_is_turned_off_goes_with_its_last_map_output(tmp_path, caplog):
    arena = await filled(tmp_path, **MEMORY)
    store = ShuffleStore.open(config(tmp_path, **NO_MEMORY))
    identity = store.taskmanager_id
    store.release_shuffle(SECOND)
    await settle(store)
    assert 0 < allotted(arena) < ATTEMPTS // 2 * (LENGTH + 4096)
    store.release_shuffle(FIRST)
    await settle(store)
    assert allotted(arena) == 0
    assert not extent_of(await put(store, 100, LENGTH)).in_memory
    await store.close()
    for _ in range(2):
        caplog.clear()
        store = ShuffleStore.open(config(tmp_path, **NO_MEMORY))
        assert await stored(store) == [100]
        assert [tier.tier for tier in store.tiers()] == ["disk"]
        assert store.taskmanager_id == identity
        await store.close()
        assert sorted(os.listdir(tmp_path / "memory")) == ["lock", "taskmanager-id"]
    assert "memory_tier_bytes" not in caplog.text  # said once
    store = ShuffleStore.open(config(tmp_path, **MEMORY))  # turned on again
    assert extent_of(await put(store, 101, LENGTH)).in_memory
    assert await stored(store) == [100, 101]
    await store.close()


async def test_an_empty_memory_tier_that_is_turned_off_is_removed_and_reported(tmp_path, caplog):
    """What was released does not come back with its journal, which had the releases."""
    arena = await filled(tmp_path, **MEMORY)
    store = ShuffleStore.open(config(tmp_path, **(MEMORY | {"memory_tier_bytes": 4096})))
    for attempt in range(20, 24):
        await put(store, attempt, LENGTH, key=SECOND)  # on disk
    store.release_shuffle(FIRST)
    store.release_shuffle(SECOND)
    await settle(store)
    await store.close()
    assert arena.exists()
    for _ in range(2):
        store = ShuffleStore.open(config(tmp_path, **NO_MEMORY))
        assert await stored(store) == []
        await store.close()
    assert not arena.exists()
    assert "memory_tier_bytes is 0: removed the memory tier" in caplog.text
    assert str(tmp_path / "memory") in caplog.text


@pytest.mark.parametrize("runs", [True, False])
async def test_the_memory_tier_of_another_taskmanager_is_left_alone(tmp_path, runs):
    """The directory is the same by default, and the other one may be away for its upgrade."""
    await filled(tmp_path, **MEMORY)
    other = ShuffleStore.open(config(tmp_path, **MEMORY))
    if not runs:
        await other.close()
    changes = NO_MEMORY | {"memory_directory": tmp_path / "memory"}
    store = ShuffleStore.open(config(tmp_path / "own", **changes))
    assert [tier.tier for tier in store.tiers()] == ["disk"]
    assert await stored(store) == []
    await store.close()
    if not runs:
        other = ShuffleStore.open(config(tmp_path, **MEMORY))
    assert await stored(other) == list(range(ATTEMPTS))
    await other.close()


@pytest.mark.parametrize("changes", [NO_MEMORY, {"memory_directory": None}])
async def test_a_memory_tier_never_turned_on_leaves_no_directory(tmp_path, changes):
    store = ShuffleStore.open(config(tmp_path, **changes))
    assert [tier.tier for tier in store.tiers()] == ["disk"]
    await store.close()
    assert not (tmp_path / "memory").exists()


def left_areas(directory):
    """Files as a killed daemon leaves them, and one that is not ours."""
    areas = directory / "memory" / "areas"
    areas.mkdir(parents=True)
    names = ["0" * 32, "f" * 32]
    for name in names:
        (areas / name).write_bytes(bytes(5000))
    (areas / "other").touch()
    return areas


def test_areas_that_are_left_when_they_are_turned_off_are_removed_and_reported(tmp_path, caplog):
    areas = left_areas(tmp_path)
    RegionAreas.open(config(tmp_path, region_areas_bytes=0), Accounts()).close()
    assert sorted(os.listdir(areas)) == ["lock", "other"]
    (record,) = caplog.records
    assert "region_areas_bytes is 0: removed 2 region areas" in record.message
    assert "10000 bytes" in record.message
    caplog.clear()
    RegionAreas.open(config(tmp_path, region_areas_bytes=0), Accounts()).close()
    assert not caplog.records


def test_areas_of_a_running_taskmanager_stay(tmp_path, caplog):
    areas = left_areas(tmp_path)
    running = RegionAreas.open(config(tmp_path), Accounts())
    (areas / ("a" * 32)).touch()
    RegionAreas.open(config(tmp_path, region_areas_bytes=0), Accounts()).close()
    assert (areas / ("a" * 32)).exists()
    assert "may be left" in caplog.text
    running.close()
