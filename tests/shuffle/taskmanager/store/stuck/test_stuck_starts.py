"""A start, or a stop, while directories hang."""

import asyncio
import threading

import pytest

from sluice.shuffle.taskmanager.bounds.accounts import Accounts
from sluice.shuffle.taskmanager.store.errors import (
    DirectoryHangs,
    JournalWriteFailed,
    StorageUnavailable,
)
from sluice.shuffle.taskmanager.store.files import directory_threads
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
from tests.shuffle.taskmanager.store.stuck.rig import (
    PATIENCE_SECONDS,
    Call,
    is_locked,
    put_elsewhere,
    regions_on,
    watched_disks,
    written,
)
from tests.support.mini_cluster import eventually
from tests.support.store import (
    KEY,
    open_descriptors,
    tier,
)
from tests.support.stuck_directory import StuckDirectory


async def test_a_start_leaves_a_directory_out_that_hangs(tmp_path, stuck):
    await ShuffleStore.open(watched_disks(tmp_path)).close()
    stuck.hang()
    opened = await asyncio.to_thread(ShuffleStore.open, watched_disks(tmp_path), Accounts())
    assert "does not answer" in tier(opened, "b").reason
    opened.watch(lambda lost: None)
    await put_elsewhere(opened, range(4))
    stuck.answer()
    await eventually(lambda: tier(opened, "b").healthy)
    await put_elsewhere(opened, range(10, 14))
    assert tier(opened, "b").used_bytes > 0
    await opened.close()


async def test_a_start_fails_by_name_if_all_directories_hang(tmp_path, monkeypatch):
    stuck = StuckDirectory(monkeypatch, tmp_path)
    stuck.hang()
    names = f"{tmp_path / 'a'}, {tmp_path / 'b'}"
    with pytest.raises(StorageUnavailable, match=f"{names} cannot be used: it does not answer"):
        await asyncio.to_thread(ShuffleStore.open, watched_disks(tmp_path))
    before = set(threading.enumerate())
    stuck.answer()
    for thread in before:
        if thread.name == "sluice-start":
            await asyncio.to_thread(thread.join, PATIENCE_SECONDS)


@pytest.mark.parametrize("prefix", ["journal", "arena"])
async def test_a_start_whose_directory_hangs_on_the_way_continues(tmp_path, monkeypatch, prefix):
    first = ShuffleStore.open(watched_disks(tmp_path))
    await put_elsewhere(first, range(4))
    await first.close()
    stuck = StuckDirectory(monkeypatch, tmp_path / "b", (prefix, "health"))
    stuck.hang()
    opened = await asyncio.to_thread(ShuffleStore.open, watched_disks(tmp_path), Accounts())
    assert not tier(opened, "b").healthy
    opened.watch(lambda lost: None)
    await put_elsewhere(opened, range(10, 14))
    stuck.answer()
    await eventually(lambda: tier(opened, "b").healthy)
    await put_elsewhere(opened, range(20, 24))
    await opened.close()


@pytest.mark.parametrize("is_noticed", [True, False])
async def test_a_close_ends_in_time_while_a_directory_hangs(
    store, stuck, tmp_path, monkeypatch, is_noticed
):
    monkeypatch.setattr(directory_threads, "CLOSE_SECONDS", 0.1)
    descriptors, before = open_descriptors(), set(threading.enumerate())
    await put_elsewhere(store, range(4))
    region = await written(store, "b", 50)
    stuck.hang()
    call = Call(store, regions_on(store, "b")[0])
    commit = store.commit(MapOutput(KEY, 50, 1, (region,)))
    await stuck.holds(2)
    if is_noticed:
        await eventually(lambda: not tier(store, "b").healthy)
    await asyncio.wait_for(store.close(), PATIENCE_SECONDS)
    with pytest.raises(DirectoryHangs):
        await call.task
    with pytest.raises(JournalWriteFailed):
        await commit
    assert is_locked(tmp_path / "b")  # its threads may still write there
    assert not is_locked(tmp_path / "a")
    stuck.answer()
    for thread in threading.enumerate():
        if thread not in before and thread.name.startswith("sluice-"):
            await asyncio.to_thread(thread.join, PATIENCE_SECONDS)
    assert open_descriptors() < descriptors
    again = await asyncio.to_thread(ShuffleStore.open, watched_disks(tmp_path))
    assert sorted(again.map_outputs(KEY)) in ([0, 1, 2, 3], [0, 1, 2, 3, 50])
    await again.close()
