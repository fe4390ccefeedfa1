"""A journal that cannot be rewritten is kept until its next generation is in place."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from typing import TYPE_CHECKING

import pytest

from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.taskmanager.store import store_health
from sluice.shuffle.taskmanager.store.errors import JournalWriteFailed
from sluice.shuffle.taskmanager.store.files.journal_places import releases_path
from sluice.shuffle.taskmanager.store.journal import power_cuts
from sluice.shuffle.taskmanager.store.journal.journal import Entry, Journal, _record
from sluice.shuffle.taskmanager.store.journal.power_cuts import BOOT_NAME
from sluice.shuffle.taskmanager.store.journal.rows import pack_release_shuffle
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from tests.shuffle.taskmanager.store.journal.rig import journal_in
from tests.support.mini_cluster import eventually
from tests.support.store import KEY, content, fetch, on_disks, put, settle, tier
from tests.support.watched_disks import put_on, watched_disks

if TYPE_CHECKING:
    from pathlib import Path

LENGTH = 20_000
ATTEMPTS = [*range(6)]


def refusing(names: str, number: int):
    """Refuse to create journals in directories."""
    real = Journal.create

    def create(cls, directory, *args, **options):
        if directory.name in names or directory.parent.name in names:
            raise OSError(number, os.strerror(number))
        return real(directory, *args, **options)

    return classmethod(create)


def restart_host(directory: Path) -> None:
    (directory / BOOT_NAME).write_text("another-start never\n")


def kill_between_the_writes_of_a_release(directory: Path) -> None:
    path = journal_in(directory)
    arena = bytes.fromhex(next(directory.glob("arena-*")).stem.split("-")[-1])
    row = pack_release_shuffle(ShuffleKey("gone", 1))
    with releases_path(path).open("ab") as file:
        file.write(_record(arena, Entry(1, 99, row)))


async def filled(directory: Path) -> None:
    store = ShuffleStore.open(on_disks(directory))
    for attempt in ATTEMPTS:
        await put(store, attempt, LENGTH)
    await store.close()


@pytest.mark.parametrize("names", ["ab", "b"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("made_stale", [restart_host, kill_between_the_writes_of_a_release])
async def test_a_journal_is_kept_if_its_successor_cannot_be_written(
    tmp_path, monkeypatch, names, number, made_stale
):
    await filled(tmp_path)
    for name in "ab":
        made_stale(tmp_path / name)
    with monkeypatch.context() as full:
        full.setattr(Journal, "create", refusing(names, number))
        store = ShuffleStore.open(on_disks(tmp_path))
        assert sorted(store.map_outputs(KEY)) == ATTEMPTS
        store.release_shuffle(KEY, 2)
        await settle(store)
        acknowledged = names == "b"
        await store.close()
    again = ShuffleStore.open(on_disks(tmp_path))
    assert sorted(again.map_outputs(KEY)) == ATTEMPTS[2 if acknowledged else 0 :]
    for attempt, output in again.map_outputs(KEY).items():
        assert await fetch(again, output) == content(attempt, LENGTH)
    await again.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
async def test_a_kept_journal_is_replaced_when_there_is_room(tmp_path, monkeypatch, number):
    await filled(tmp_path)
    for name in "ab":
        restart_host(tmp_path / name)
    with monkeypatch.context() as full:
        full.setattr(Journal, "create", refusing("ab", number))
        store = ShuffleStore.open(watched_disks(tmp_path))
    store.watch(lambda lost: None)
    await eventually(lambda: all(each.healthy for each in store.tiers()))
    await put(store, 10, LENGTH)
    journals = [journal_in(tmp_path / name) for name in "ab"]
    await store.close()
    assert all(path.exists() for path in journals)
    again = ShuffleStore.open(on_disks(tmp_path))
    assert sorted(again.map_outputs(KEY)) == [*ATTEMPTS, 10]
    await again.close()


async def test_a_rewritten_journal_leaves_no_older_one(tmp_path, monkeypatch):
    store = ShuffleStore.open(watched_disks(tmp_path))
    store.watch(lambda lost: None)
    await put_on(store, "b", range(3))
    real = Journal.append

    def fails(journal, *args):
        if journal.path.parent.name == "b":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(journal, *args)

    for number in range(2):
        with monkeypatch.context() as broken:
            broken.setattr(Journal, "append", fails)
            store.release_shuffle(ShuffleKey("app-1", 10 + number))
            await eventually(lambda: not tier(store, "b").healthy)
        await eventually(lambda: tier(store, "b").healthy)
        assert [*(tmp_path / "b").glob("journal-*")] == [journal_in(tmp_path / "b")]
        assert len([*(tmp_path / "b").glob("releases-*")]) == 1
    await store.close()


async def test_a_release_counts_for_a_journal_that_two_starts_could_not_rewrite(
    tmp_path, monkeypatch
):
    keys = [ShuffleKey("app-1", 10 + number) for number in range(4)]
    store = ShuffleStore.open(on_disks(tmp_path))
    for key in keys:
        for attempt in range(2):  # the disks take turns
            await put(store, attempt, LENGTH, key=key)
    real = Journal.append

    def fails(journal, *args):
        if journal.path.parent.name == "b":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(journal, *args)

    with monkeypatch.context() as broken:
        broken.setattr(Journal, "append", fails)
        store.release_shuffle(keys[0])
        await settle(store)
    await store.close()
    for key in keys[1:3]:
        with monkeypatch.context() as full:
            full.setattr(Journal, "create", refusing("b", errno.EIO))
            restart_host(tmp_path / "a")  # so that the journal there is rewritten
            store = ShuffleStore.open(on_disks(tmp_path))
            store.release_shuffle(key)
            await settle(store)
            await store.close()
    again = ShuffleStore.open(on_disks(tmp_path))
    assert [each.key for each in again.shuffles()] == keys[3:]
    await again.close()


async def test_a_directory_whose_journal_fails_while_it_comes_back_stays_out(tmp_path, monkeypatch):
    store = ShuffleStore.open(on_disks(tmp_path, "a"))
    await put(store, 0, LENGTH)
    begin = power_cuts.begin_writing
    (disk,) = store._storage.disks
    begun, proceed = threading.Event(), threading.Event()

    def fails(journal, *args):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def fail(shuffle_id: int) -> None:
        with monkeypatch.context() as broken:
            broken.setattr(Journal, "append", fails)
            store.release_shuffle(ShuffleKey("app-1", shuffle_id))
            await settle(store)

    def slow(*args):
        begun.set()
        proceed.wait(60)
        begin(*args)

    monkeypatch.setattr(store_health, "begin_writing", slow)
    await fail(10)
    coming_back = asyncio.create_task(store._health.take_back(disk))
    await asyncio.to_thread(begun.wait, 60)
    await fail(11)
    proceed.set()
    assert not await coming_back
    assert not disk.healthy
    assert await store._health.take_back(disk)
    await put(store, 1, LENGTH)
    await store.close()


async def test_a_release_that_failed_survives_when_a_journal_is_back(tmp_path, monkeypatch):
    store = ShuffleStore.open(on_disks(tmp_path, "a"))
    await put(store, 0, LENGTH)
    (disk,) = store._storage.disks

    def fails(journal, *args):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(Journal, "append", fails)
        store.release_shuffle(KEY)
        released = store.released()
        assert released is not None
        with pytest.raises(JournalWriteFailed, match="no directory is left"):
            await released
        await settle(store)
    assert store.released() is released  # a driver that repeats the release gets the error again
    assert await store._health.take_back(disk)
    assert store.released() is None
    await store.close()
    again = ShuffleStore.open(on_disks(tmp_path, "a"))
    assert not again.map_outputs(KEY)
    await again.close()
