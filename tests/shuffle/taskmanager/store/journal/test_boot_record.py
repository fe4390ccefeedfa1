"""The file ``boot`` says how a directory was written, whenever it began to be used."""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from sluice.shuffle.taskmanager.store.journal import power_cuts
from sluice.shuffle.taskmanager.store.journal.journal import Journal
from sluice.shuffle.taskmanager.store.journal.journal_sync import JournalSync
from sluice.shuffle.taskmanager.store.journal.power_cuts import BOOT_NAME, record_boot
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from tests.support.mini_cluster import eventually
from tests.support.store import KEY, content, extent_of, on_disks, put, tier
from tests.support.watched_disks import put_on, watched_disks

if TYPE_CHECKING:
    from pathlib import Path

LENGTH = 20_000
NOT_EACH_COMMIT = pytest.mark.parametrize("mode", ["never", "interval"])


def recorded_mode(directory: Path) -> str:
    return (directory / BOOT_NAME).read_text().split()[1]


async def with_synced_commits(directory: Path) -> None:
    store = ShuffleStore.open(watched_disks(directory, journal_sync="commit"))
    await put_on(store, "b", [1])
    await store.close()
    assert recorded_mode(directory / "b") == "commit"


@NOT_EACH_COMMIT
async def test_a_directory_that_is_mounted_late_records_how_it_is_written(tmp_path, mode):
    await with_synced_commits(tmp_path)
    b, away = tmp_path / "b", tmp_path / "away"
    b.rename(away)
    b.touch()
    store = ShuffleStore.open(watched_disks(tmp_path, journal_sync=mode))
    store.watch(lambda lost: None)
    b.unlink()
    away.rename(b)
    await eventually(lambda: tier(store, "b").healthy)
    assert recorded_mode(b) == "never"
    await store.close()


@NOT_EACH_COMMIT
async def test_a_directory_that_is_used_again_records_how_it_is_written(
    tmp_path, monkeypatch, mode
):
    await with_synced_commits(tmp_path)
    real = Journal.begin_run

    def fails(journal, run):
        if journal.path.parent.name == "b":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(journal, run)

    with monkeypatch.context() as broken:
        broken.setattr(Journal, "begin_run", fails)
        store = ShuffleStore.open(watched_disks(tmp_path, journal_sync=mode))
        assert not tier(store, "b").healthy
    store.watch(lambda lost: None)
    await eventually(lambda: tier(store, "b").healthy)
    assert recorded_mode(tmp_path / "b") == "never"
    await store.close()


async def test_a_removed_directory_that_comes_back_has_a_record(tmp_path):
    store = ShuffleStore.open(watched_disks(tmp_path, journal_sync="commit"))
    store.watch(lambda lost: None)
    shutil.rmtree(tmp_path / "b")
    await eventually(lambda: not tier(store, "b").healthy)
    (tmp_path / "b").mkdir()
    await eventually(lambda: tier(store, "b").healthy)
    assert recorded_mode(tmp_path / "b") == "commit"
    await store.close()


async def test_bytes_that_a_failed_sync_dropped_are_found_at_the_next_start(tmp_path, monkeypatch):
    settings = on_disks(tmp_path, "a", journal_sync="interval", journal_sync_interval_seconds=0.05)
    store = ShuffleStore.open(settings)
    real = os.fdatasync

    def fails(fd):
        if "arena" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd)

    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", fails)
        output = await put(store, 1, LENGTH)
        await eventually(lambda: not tier(store, "a").healthy)
        await eventually(lambda: not (tmp_path / "a" / BOOT_NAME).exists())
    await store.close()
    (arena,) = (tmp_path / "a").glob("arena-*")
    with arena.open("r+b") as file:  # the disk has the bytes of an earlier map output there
        file.seek(extent_of(output).offset)
        file.write(content(77, LENGTH))
    again = ShuffleStore.open(settings)
    assert again.lookup(KEY, 1) is None
    assert again.statistics().forgotten_map_outputs == 1
    assert recorded_mode(tmp_path / "a") == "never"
    await again.close()


def test_a_record_that_a_killed_start_wrote_is_synced_by_the_next(tmp_path, monkeypatch):
    record_boot(tmp_path, JournalSync("never"))
    synced: list[Path] = []
    monkeypatch.setattr(power_cuts, "sync_names", synced.append)
    record_boot(tmp_path, JournalSync("never"))
    assert synced == [tmp_path]
