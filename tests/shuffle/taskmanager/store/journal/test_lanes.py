"""Two journals of which one is late: what the other one has must survive."""

from __future__ import annotations

import asyncio
import errno
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.taskmanager.store.errors import JournalWriteFailed
from sluice.shuffle.taskmanager.store.journal import journal_files
from sluice.shuffle.taskmanager.store.journal.journal import Journal
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput, release_regions
from tests.support.mini_cluster import eventually
from tests.support.store import KEY, on_disks, put, write_region

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_SECONDS = 30


class LateJournal:
    """Lets the journal of one arena wait before it takes a map output, and another one fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.late = self.failing = b""
        self.appended: list[tuple[bytes, int]] = []
        """The arena of each write, and the number of its map outputs."""
        self._entered = threading.Event()
        self.go_on = threading.Event()
        append = Journal.append

        def waiting(journal, entries, releases):
            if journal.tier_id == self.late and entries:
                self._entered.set()
                assert self.go_on.wait(PATIENCE_SECONDS)
            if journal.tier_id == self.failing and entries:
                raise OSError(errno.EIO, "an error of the test")
            self.appended.append((journal.tier_id, len(entries)))
            return append(journal, entries, releases)

        monkeypatch.setattr(Journal, "append", waiting)

    async def is_late(self) -> None:
        assert await asyncio.to_thread(self._entered.wait, PATIENCE_SECONDS)


@pytest.fixture
def late(monkeypatch) -> Iterator[LateJournal]:
    made = LateJournal(monkeypatch)
    yield made
    made.go_on.set()


async def two_regions(store):
    """Regions on both disks, and the disks."""
    regions = [await write_region(store, each * 100, [100]) for each in (b"x", b"y")]
    return regions, [each.extent.tier for each in regions if each.extent is not None]


async def test_a_journal_that_is_rewritten_keeps_a_row_that_waits_for_the_other(
    tmp_path, late, monkeypatch
):
    settings = on_disks(tmp_path)
    store = ShuffleStore.open(settings)
    regions, (first, second) = await two_regions(store)
    late.late = second.tier_id
    commit = store.commit(MapOutput(KEY, 1, 1, tuple(regions)))
    await late.is_late()
    await eventually(lambda: (first.tier_id, 1) in late.appended)
    monkeypatch.setattr(journal_files, "COMPACTION_FLOOR_BYTES", 0)
    release = store.release_shuffle(ShuffleKey("app-1", 99))  # which lets the lane look
    assert release == 0
    await eventually(lambda: store.statistics().compactions > 0)
    monkeypatch.undo()
    late.go_on.set()
    await commit
    await store.close()
    store = ShuffleStore.open(settings)
    assert store.lookup(KEY, 1) is not None
    await store.close()


async def test_a_commit_that_failed_elsewhere_does_not_stop_a_journal_that_hangs(tmp_path, late):
    store = ShuffleStore.open(on_disks(tmp_path))
    regions, (first, second) = await two_regions(store)
    late.late, late.failing = second.tier_id, first.tier_id
    commit = store.commit(MapOutput(KEY, 1, 1, tuple(regions)))
    await late.is_late()
    with pytest.raises(JournalWriteFailed):
        await commit
    release_regions(regions)
    threads = store._storage.threads.of(second.directory)
    threads.abandon("a test")
    late.go_on.set()
    await eventually(threads.resume)
    await asyncio.wait_for(store.close(), PATIENCE_SECONDS)


@pytest.mark.usefixtures("object_store")
async def test_each_journal_gets_the_row_of_a_map_output_without_bytes_on_disks(tmp_path, late):
    (tmp_path / "remote").mkdir()
    store = ShuffleStore.open(
        on_disks(tmp_path, disk_quota_bytes=0, remote=str(tmp_path / "remote"))
    )
    late.late = store._storage.disks[1].tier_id
    regions = [await write_region(store, each * 100, [100]) for each in (b"x", b"y")]
    first, second = (
        store.commit(MapOutput(KEY, attempt, 1, (region,)))
        for attempt, region in enumerate(regions)
    )
    await late.is_late()
    await asyncio.gather(first, second)
    late.go_on.set()
    await store.close()
    for disk in store._storage.disks:
        assert sum(rows for arena, rows in late.appended if arena == disk.tier_id) == 2


KILLED_START = """
import os, sys
from pathlib import Path
from sluice.shuffle.taskmanager.store.journal import recovery
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from tests.support.store import on_disks

begun = []
begin = recovery.begin_journal

def killed(*args, is_stale):
    if begun:
        os._exit(7)
    begun.append(args)
    begin(*args, is_stale=True)

recovery.begin_journal = killed
ShuffleStore.open(on_disks(Path(sys.argv[1])))
"""


async def test_a_start_that_is_killed_costs_no_directory(tmp_path):
    """It has rewritten the journal of one directory, with releases of its own run."""
    settings = on_disks(tmp_path)
    store = ShuffleStore.open(settings)
    for attempt in range(4):
        await put(store, attempt, 400)
    store.release_shuffle(ShuffleKey("app-1", 7))
    released = store.released()
    assert released is not None
    await released
    await store.close()
    start = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED_START, tmp_path, cwd=Path(__file__).parents[5]
    )
    assert await asyncio.wait_for(start.wait(), PATIENCE_SECONDS) == 7
    store = ShuffleStore.open(settings)
    assert store.statistics().map_outputs == 4
    await store.close()
