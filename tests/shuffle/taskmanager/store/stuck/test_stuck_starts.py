"""A start, or a stop, while directories hang."""

import asyncio
import errno
import os
import shutil
import threading

import pytest

from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.taskmanager.bounds.accounts import Accounts
from sluice.shuffle.taskmanager.store.errors import (
    DirectoryHangs,
    JournalWriteFailed,
    StorageUnavailable,
)
from sluice.shuffle.taskmanager.store.files import directory_threads
from sluice.shuffle.taskmanager.store.files.journal_places import place_on
from sluice.shuffle.taskmanager.store.health.directories import ID_NAME
from sluice.shuffle.taskmanager.store.journal import recovery, start_journals
from sluice.shuffle.taskmanager.store.journal.journal import Journal
from sluice.shuffle.taskmanager.store.journal.power_cuts import BOOT_NAME
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
from tests.shuffle.taskmanager.store.stuck.rig import (
    Call,
    disk,
    is_locked,
    put_elsewhere,
    regions_on,
)
from tests.support.mini_cluster import eventually
from tests.support.store import (
    KEY,
    content,
    fetch,
    open_descriptors,
    put,
    settle,
    tier,
    used,
)
from tests.support.stuck_directory import StuckDirectory
from tests.support.watched_disks import PATIENCE_SECONDS, SIZE, put_on, watched_disks, written

ENDED = ShuffleKey("ended", 1)


async def test_a_start_leaves_a_directory_out_that_hangs(tmp_path, stuck):
    await ShuffleStore.open(watched_disks(tmp_path)).close()
    stuck.hang()
    opened = await asyncio.to_thread(ShuffleStore.open, watched_disks(tmp_path), Accounts())
    assert "does not answer" in tier(opened, "b").reason
    assert [each.unread for each in opened.tiers()] == [False, True]
    opened.watch(lambda lost: None)
    await put_elsewhere(opened, range(4))
    stuck.answer()
    await eventually(lambda: tier(opened, "b").healthy)
    assert not any(each.unread for each in opened.tiers())
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


@pytest.mark.parametrize("prefixes", [("",), ("journal", "health")], ids=["all", "journal"])
async def test_a_late_directory_is_adopted_when_it_answers(tmp_path, monkeypatch, prefixes):
    first = ShuffleStore.open(watched_disks(tmp_path), Accounts())
    await put_on(first, "b", range(6))
    for attempt in range(4):  # on both
        await put(first, attempt, SIZE, key=ENDED)
    await put_on(first, "a", [6])
    await first.close()
    stuck = StuckDirectory(monkeypatch, tmp_path / "b", prefixes)
    stuck.hang()
    opened = await asyncio.to_thread(ShuffleStore.open, watched_disks(tmp_path), Accounts())
    assert sorted(opened.map_outputs(KEY)) == [6]
    adopted: list[MapOutput] = []
    opened.watch(lambda lost: None, on_adopted=adopted.extend)
    opened.release_shuffle(KEY, 2)
    opened.release_application(ENDED.application_id)
    await put_elsewhere(opened, [3, 10])  # the map attempt 3 was sent again
    stuck.answer()
    await eventually(lambda: tier(opened, "b").healthy)
    assert sorted(each.map_attempt_id for each in adopted) == [2, 4, 5]
    expected = [2, 3, 4, 5, 6, 10]
    assert sorted(opened.map_outputs(KEY)) == expected
    assert not opened.map_outputs(ENDED)
    await put_elsewhere(opened, range(20, 24))
    opened.release_shuffle(KEY, 3)
    await opened.close()
    again = ShuffleStore.open(watched_disks(tmp_path), Accounts())
    assert sorted(again.map_outputs(KEY)) == [*expected[1:], *range(20, 24)]
    assert not again.map_outputs(ENDED)
    for attempt, output in again.map_outputs(KEY).items():
        assert await fetch(again, output) == content(attempt, SIZE)
    again.release_shuffle(KEY)
    await settle(again)
    assert used(again) == [0, 0]
    await again.close()


async def test_a_release_of_an_earlier_run_counts_for_a_directory_that_answers_late(
    tmp_path, monkeypatch
):
    first = ShuffleStore.open(watched_disks(tmp_path), Accounts())
    await put_on(first, "b", range(4))
    with pytest.MonkeyPatch.context() as patch:
        journal = StuckDirectory(patch, tmp_path / "b", ("journal", "releases"))
        journal.hang()
        first.release_shuffle(KEY, 2)  # the journal of b never has it
        released = first.released()
        assert released is not None
        await asyncio.wait_for(released, PATIENCE_SECONDS)
        killed = tmp_path / "killed"
        for name in "ab":
            await asyncio.to_thread(shutil.copytree, tmp_path / name, killed / name)
        journal.answer()
    await first.close()
    stuck = StuckDirectory(monkeypatch, killed / "b")
    stuck.hang()
    opened = await asyncio.to_thread(ShuffleStore.open, watched_disks(killed), Accounts())
    opened.watch(lambda lost: None)
    stuck.answer()
    await eventually(lambda: tier(opened, "b").healthy)
    assert sorted(opened.map_outputs(KEY)) == [2, 3]
    await opened.close()


@pytest.mark.parametrize("is_rewritten", [False, True])
@pytest.mark.parametrize("mode", ["never", "commit"])
async def test_a_release_counts_for_a_directory_that_missed_it_and_then_a_start(
    tmp_path, mode, is_rewritten
):
    """The journals that have it may be rewritten by a start, which writes no row of its own."""
    first = ShuffleStore.open(watched_disks(tmp_path, journal_sync=mode), Accounts())
    await put_on(first, "b", range(4))
    await put_on(first, "a", [9])
    killed = tmp_path / "killed"
    with pytest.MonkeyPatch.context() as patch:
        journal = StuckDirectory(patch, tmp_path / "b", ("journal", "releases"))
        journal.hang()
        first.release_shuffle(KEY, 2)
        released = first.released()
        assert released is not None
        await asyncio.wait_for(released, PATIENCE_SECONDS)
        for name in "ab":
            await asyncio.to_thread(shutil.copytree, tmp_path / name, killed / name)
        journal.answer()
    await first.close()
    (killed / "b").rename(killed / "away")
    (killed / "b").touch()
    if is_rewritten:
        (killed / "a" / BOOT_NAME).write_text("another-start never\n")
    await ShuffleStore.open(watched_disks(killed, journal_sync=mode), Accounts()).close()
    (killed / "b").unlink()
    (killed / "away").rename(killed / "b")
    opened = ShuffleStore.open(watched_disks(killed, journal_sync=mode), Accounts())
    assert sorted(opened.map_outputs(KEY)) == [2, 3, 9]
    await opened.close()


async def test_a_start_does_not_wait_for_the_sync_of_a_journal_elsewhere(tmp_path, monkeypatch):
    settings = watched_disks(tmp_path, names="ba", journal_sync="commit")
    first = ShuffleStore.open(settings, Accounts())
    await put_on(first, "a", range(3))
    await first.close()
    (tmp_path / "a" / BOOT_NAME).write_text("another-start never\n")
    real_create = Journal.create

    def create(cls, directory, *args, **options):
        if directory.name == "a":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real_create(directory, *args, **options)

    stuck = StuckDirectory(monkeypatch, tmp_path / "b")
    real_end = start_journals.end_start

    def end_start(*args):
        stuck.hang()
        real_end(*args)

    monkeypatch.setattr(Journal, "create", classmethod(create))
    monkeypatch.setattr(recovery, "end_start", end_start)
    starting = asyncio.to_thread(ShuffleStore.open, settings, Accounts())
    opened = await asyncio.wait_for(starting, PATIENCE_SECONDS)
    assert sorted(opened.map_outputs(KEY)) == [0, 1, 2]
    assert not any(each.healthy for each in opened.tiers())
    stuck.answer()
    await opened.close()


async def test_a_directory_that_was_away_for_a_whole_run_is_emptied(tmp_path, monkeypatch, caplog):
    first = ShuffleStore.open(watched_disks(tmp_path), Accounts())
    await put_on(first, "b", range(4))
    await first.close()
    stuck = StuckDirectory(monkeypatch, tmp_path / "b")
    stuck.hang()
    away = await asyncio.to_thread(ShuffleStore.open, watched_disks(tmp_path), Accounts())
    await put_elsewhere(away, [10])
    await away.close()
    opened = await asyncio.to_thread(ShuffleStore.open, watched_disks(tmp_path), Accounts())
    opened.watch(lambda lost: None)
    stuck.answer()
    await eventually(lambda: tier(opened, "b").healthy)
    assert list(opened.map_outputs(KEY)) == [10]
    assert f"{tmp_path / 'b'} is emptied: it was last used in run 1" in caplog.text
    await opened.close()


async def test_a_directory_is_locked_until_the_threads_of_its_start_have_ended(
    tmp_path, monkeypatch
):
    first = ShuffleStore.open(watched_disks(tmp_path), Accounts())
    await put_on(first, "b", range(4))
    await first.close()
    probes = StuckDirectory(monkeypatch, tmp_path / "b", ("health",))
    journal = StuckDirectory(monkeypatch, tmp_path / "b", ("journal",))
    probes.hang()
    journal.hang()
    opened = await asyncio.to_thread(ShuffleStore.open, watched_disks(tmp_path), Accounts())
    probes.answer()
    threads = opened._storage.threads.of(tmp_path / "b")
    assert not threads.resume()
    opened.watch(lambda lost: None)
    await opened.close()
    assert is_locked(tmp_path / "b")
    journal.answer()
    await eventually(lambda: not is_locked(tmp_path / "b"))
    again = ShuffleStore.open(watched_disks(tmp_path), Accounts())
    assert len(again.map_outputs(KEY)) in (0, 4)
    await again.close()


async def test_a_start_does_not_wait_for_another_directory(tmp_path, monkeypatch):
    """The journal of a has moved to b, which hangs only there."""
    first = ShuffleStore.open(watched_disks(tmp_path), Accounts())
    await put_on(first, "a", range(4))
    place = place_on(tmp_path / "b", disk(first, "a").tier_id)
    await first.close()
    place.mkdir(mode=0o700)
    stuck = StuckDirectory(monkeypatch, tmp_path / "b", ("journal-of-", "health"))
    stuck.hang()
    opened = await asyncio.to_thread(ShuffleStore.open, watched_disks(tmp_path), Accounts())
    assert sorted(opened.map_outputs(KEY)) == list(range(4))
    stuck.answer()
    await opened.close()


async def test_the_id_is_read_without_a_directory_that_hangs(tmp_path, monkeypatch):
    first = ShuffleStore.open(watched_disks(tmp_path), Accounts())
    identity = first.taskmanager_id
    await first.close()
    stuck = StuckDirectory(monkeypatch, tmp_path / "a", (ID_NAME, "health"))
    stuck.hang()
    opened = await asyncio.to_thread(ShuffleStore.open, watched_disks(tmp_path), Accounts())
    assert opened.taskmanager_id == identity
    stuck.answer()
    await opened.close()


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
