"""Commits of the store and the journal behind them."""

import asyncio
import errno
import os

import pytest

from sluice.shuffle.names import MapAttemptKey, ShuffleKey
from sluice.shuffle.taskmanager.store.errors import (
    DuplicateMapOutput,
    JournalWriteFailed,
    ReleasedDuringCommit,
    StorageClosed,
)
from sluice.shuffle.taskmanager.store.journal import journal_files, journal_lane
from sluice.shuffle.taskmanager.store.journal.journal import Journal
from sluice.shuffle.taskmanager.store.output_index import DAMAGED
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput, release_regions
from sluice.shuffle.taskmanager.store.tiers.slot_allocator import occupied_bytes
from tests.support.mini_cluster import eventually
from tests.support.store import (
    KEY,
    Gate,
    content,
    extent_of,
    fetch,
    put,
    settle,
    used,
    write_region,
)


async def held_commit(store: ShuffleStore, monkeypatch) -> tuple[Gate, asyncio.Future[None]]:
    """Commit map attempt 1; its write to the journal waits at the gate."""
    gate = Gate(monkeypatch, os, "pwrite")
    region = await write_region(store, b"x", [1])
    committing = store.commit(MapOutput(KEY, 1, 1, (region,)))
    await gate.wait_entered()
    return gate, committing


async def test_a_map_attempt_commits_once(opened):
    store = opened()
    output = await put(store, 7, 100)
    with pytest.raises(DuplicateMapOutput, match="attempt 7 of shuffle 0 of app-1"):
        store.commit(output)
    again = await write_region(store, b"x", [1])
    under_way = store.commit(MapOutput(KEY, 8, 1, (again,)))
    other = await write_region(store, b"y", [1])
    with pytest.raises(DuplicateMapOutput):
        store.commit(MapOutput(KEY, 8, 1, (other,)))
    release_regions([other])
    await under_way
    store.release_shuffle(KEY)
    await settle(store)
    assert used(store) == [0, 0]


async def test_a_copy_takes_the_place_of_what_its_producer_had_secured_here(opened):
    store = opened()
    attempt = MapAttemptKey(KEY, 7)
    await store.secure(attempt, 1, [await write_region(store, content(1, 9_000), [9_000])])
    # The producer went to another TaskManager, wrote all of it there, and the copy is here.
    whole = await write_region(store, content(2, 5_000), [5_000])
    output = MapOutput(KEY, 7, 1, (whole,), "origin", 2)
    await store.commit(output)
    await settle(store)
    assert store.open_output(attempt) is None
    assert sum(used(store)) == occupied_bytes(5_000)
    assert await fetch(store, output) == content(2, 5_000)
    await store.close()
    again = opened()
    assert again.open_output(attempt) is None
    assert sum(used(again)) == occupied_bytes(5_000)
    again.release_shuffle(KEY)
    await settle(again)
    assert used(again) == [0, 0]


async def test_a_commit_is_visible_only_once_it_is_written(opened, monkeypatch):
    store = opened()
    gate, committing = await held_commit(store, monkeypatch)
    assert store.lookup(KEY, 1) is None
    assert not committing.done()
    gate.proceed.set()
    await committing
    assert store.lookup(KEY, 1) is not None


async def test_commits_that_wait_share_one_write(opened, monkeypatch):
    store = opened()
    regions = [await write_region(store, b"x", [1]) for _ in range(20)]
    gate = Gate(monkeypatch, os, "pwrite")
    first = store.commit(MapOutput(KEY, 0, 1, (regions[0],)))
    await gate.wait_entered()
    rest = [store.commit(MapOutput(KEY, n, 1, (regions[n],))) for n in range(1, 20)]
    gate.proceed.set()
    await asyncio.gather(first, *rest)
    assert gate.calls == 2
    assert len(store.map_outputs(KEY)) == 20


@pytest.mark.parametrize("whole_application", [False, True])
async def test_a_release_fails_the_commits_under_way(opened, monkeypatch, whole_application):
    store = opened()
    other = ShuffleKey("app-2", 0)
    regions = [await write_region(store, b"x", [1]) for _ in range(3)]
    gate = Gate(monkeypatch, os, "pwrite")
    written = store.commit(MapOutput(KEY, 0, 1, (regions[0],)))
    await gate.wait_entered()
    queued = store.commit(MapOutput(KEY, 1, 1, (regions[1],)))
    kept = store.commit(MapOutput(other, 1, 1, (regions[2],)))
    if whole_application:
        store.release_application(KEY.application_id)
    else:
        store.release_shuffle(KEY)
    gate.proceed.set()
    await kept
    for future, region in ((written, regions[0]), (queued, regions[1])):
        with pytest.raises(ReleasedDuringCommit):
            await future
        region.release()  # it still belongs to the caller
    assert store.map_outputs(KEY) == {}
    await settle(store)
    await store.close()
    again = opened()
    assert [s.key for s in again.shuffles()] == [other]


async def test_a_cancelled_commit_is_still_written(opened, monkeypatch):
    store = opened()
    gate, committing = await held_commit(store, monkeypatch)
    committing.cancel()
    gate.proceed.set()
    await settle(store)
    assert store.lookup(KEY, 1) is not None
    assert store.release_shuffle(KEY) == 1
    await settle(store)
    assert used(store) == [0, 0]


async def test_a_cancelled_commit_that_fails_releases_its_regions(opened, monkeypatch):
    store = opened()
    gate = Gate(monkeypatch, os, "pwrite", OSError(errno.ENOSPC, "no space"))
    region = await write_region(store, b"x", [1])
    committing = store.commit(MapOutput(KEY, 1, 1, (region,)))
    await gate.wait_entered()
    committing.cancel()
    gate.proceed.set()
    await settle(store)
    assert store.lookup(KEY, 1) is None
    assert used(store) == [0, 0]


def full(fd, data, offset):
    raise OSError(errno.ENOSPC, "no space")


async def test_without_a_journal_nothing_is_acknowledged(opened, monkeypatch):
    store = opened()
    kept = await put(store, 1, 100)
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", full)
        region = await write_region(store, b"x", [1])
        output = MapOutput(KEY, 2, 1, (region,))
        with pytest.raises(JournalWriteFailed, match="no space") as caught:
            await store.commit(output)
        assert caught.value.retryable
        assert store.lookup(KEY, 2) is None
        # a release that could not be written is written with what comes later
        store.release_shuffle(KEY)
        await settle(store)
        assert store.lookup(KEY, 1) is None
        released = store.released()
        assert released is not None
        assert not released.done()
        # its space is not given to others: a crash would bring the row back
        assert extent_of(kept).references == 1
    key = ShuffleKey("app-1", 9)
    await store.commit(MapOutput(key, 2, 1, (region,)))
    assert store.released() is None
    assert extent_of(kept).references == 0
    await store.close()
    again = opened()
    assert [s.key for s in again.shuffles()] == [key]


async def test_a_late_release_is_written_when_the_disk_has_room(opened, monkeypatch):
    monkeypatch.setattr(journal_lane, "RETRY_SECONDS", 0.01)
    store = opened()
    await put(store, 1, 100)
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", full)
        store.release_shuffle(KEY)
        await settle(store)
        released = store.released()
    async with asyncio.timeout(20):
        await released
    await eventually(lambda: used(store) == [0, 0])  # each directory in its own time


async def test_a_release_is_valid_when_it_is_written_and_not_before(opened, monkeypatch):
    store = opened()
    await put(store, 1, 100)
    assert store.released() is None
    gate = Gate(monkeypatch, os, "pwrite")
    assert store.release_shuffle(KEY) == 100
    released = store.released()
    assert released is not None
    await gate.wait_entered()
    assert not released.done()
    assert used(store)[0] > 0
    gate.proceed.set()
    await released
    assert store.released() is None
    await eventually(lambda: used(store) == [0, 0])  # each directory in its own time


def break_journal(monkeypatch, store, number, error=errno.EIO):
    """Let the journal of a directory refuse every write."""
    broken = list(store._journal.files.journals.values())[number]
    real = Journal.append

    def failing(self, entries, releases):
        if self.tier_id == broken.tier_id:
            raise OSError(error, "medium error")
        real(self, entries, releases)

    monkeypatch.setattr(Journal, "append", failing)


async def test_a_journal_that_breaks_costs_its_directory_only(opened, tmp_path, monkeypatch):
    directories = (tmp_path / "a", tmp_path / "b")
    store = opened(data_directories=directories, memory_tier_bytes=0)
    first, second = [await put(store, attempt, 1000) for attempt in (1, 2)]
    third = await write_region(store, b"x" * 100, [100])
    assert [extent_of(first).tier, extent_of(second).tier] == store._storage.disks
    break_journal(monkeypatch, store, 0)
    with pytest.raises(JournalWriteFailed, match="medium error"):
        await store.commit(MapOutput(KEY, 3, 1, (third,)))
    third.release()
    assert [tier.healthy for tier in store.tiers()] == [False, True]
    for attempt in (4, 5, 6):
        output = await put(store, attempt, 1000)
        assert extent_of(output).tier.directory == directories[1]
    assert await fetch(store, first) == content(1, 1000)
    await store.close()
    monkeypatch.undo()
    again = opened(data_directories=directories, memory_tier_bytes=0)
    assert sorted(again.map_outputs(KEY)) == [1, 2, 4, 5, 6]


async def test_rows_that_a_broken_journal_lacks_are_not_undone(opened, tmp_path, monkeypatch):
    """Another journal keeps the release, also when it is rewritten."""
    monkeypatch.setattr(journal_files, "COMPACTION_FLOOR_BYTES", 500)
    directories = (tmp_path / "a", tmp_path / "b")
    changes = {"data_directories": directories, "memory_tier_bytes": 0}
    store = opened(**changes)
    keys = [ShuffleKey("app-1", shuffle) for shuffle in range(2)]
    for key in keys:
        for attempt in range(2):
            await put(store, attempt, 1000, key=key)
    break_journal(monkeypatch, store, 0)
    store.release_shuffle(keys[0])
    released = store.released()
    assert released is not None
    await released
    await eventually(lambda: [tier.healthy for tier in store.tiers()] == [False, True])
    for attempt in range(30):
        await put(store, attempt, 1000, key=ShuffleKey("app-2", 0))
        store.release_shuffle(ShuffleKey("app-2", 0))
    await settle(store)
    assert store.statistics().compactions > 0
    await store.close()
    monkeypatch.undo()
    for _ in range(2):
        again = opened(**changes)
        assert [each.key for each in again.shuffles()] == [keys[1]]
        assert sorted(again.map_outputs(keys[1])) == [0, 1]
        await again.close()


async def test_without_any_journal_left_releases_and_commits_fail(opened, monkeypatch):
    store = opened(memory_tier_bytes=0)
    await put(store, 1, 100)
    region = store.begin_region(KEY, 0, [0]).finish(0)
    break_journal(monkeypatch, store, 0)
    store.release_shuffle(KEY)
    released = store.released()
    assert released is not None
    with pytest.raises(JournalWriteFailed):
        await released
    assert used(store) == [0]
    with pytest.raises(JournalWriteFailed):
        await store.commit(MapOutput(KEY, 2, 1, (region,)))


async def test_a_map_output_in_two_arenas_needs_both_journals(opened, tmp_path, monkeypatch):
    directories = (tmp_path / "a", tmp_path / "b")
    changes = {"data_directories": directories, "memory_tier_bytes": 0}
    store = opened(**changes)
    regions = [await write_region(store, b"x" * 100, [100], first=n) for n in range(2)]
    whole = [await write_region(store, b"y" * 100, [100], first=n) for n in range(2)]
    await store.commit(MapOutput(KEY, 1, 2, tuple(whole)))
    break_journal(monkeypatch, store, 1, errno.ENOSPC)
    with pytest.raises(JournalWriteFailed):
        await store.commit(MapOutput(KEY, 2, 2, tuple(regions)))
    release_regions(regions)
    await store.close()
    monkeypatch.undo()
    again = opened(**changes)
    assert sorted(again.map_outputs(KEY)) == [1]
    assert sum(used(again)) == 8192
    assert await fetch(again, again.map_outputs(KEY)[1]) == b"y" * 200


async def test_the_journal_shrinks_when_dead_rows_outweigh_live_ones(opened, monkeypatch):
    monkeypatch.setattr(journal_files, "COMPACTION_FLOOR_BYTES", 2000)
    store = opened()
    keep = ShuffleKey("keeper", 1)
    await put(store, 1, 100, key=keep)
    largest = 0
    for attempt in range(300):
        await put(store, attempt, 100)
        store.release_shuffle(KEY)
        largest = max(largest, store.statistics().journal_bytes)
    await settle(store)
    assert store.statistics().compactions > 3
    assert largest < 3 * 4000  # a release goes to both journals
    await store.close()
    again = opened()
    assert [s.key for s in again.shuffles()] == [keep]
    assert await fetch(again, again.map_outputs(keep)[1]) == content(1, 100)


async def test_a_failed_compaction_loses_no_row(opened, monkeypatch):
    monkeypatch.setattr(journal_files, "COMPACTION_FLOOR_BYTES", 500)
    store = opened()

    def refused(*_):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(Journal, "create", refused)
    for attempt in range(30):
        await put(store, attempt, 100)
        store.release_shuffle(KEY)
    last = await put(store, 99, 100)
    await settle(store)
    assert store.statistics().compactions == 0
    assert store.lookup(KEY, 99) is last


async def test_when_the_loop_ends_no_commit_waits_for_ever(opened, monkeypatch):
    store = opened()
    gate = Gate(monkeypatch, os, "pwrite")
    regions = [await write_region(store, b"x", [1]) for _ in range(2)]
    writing = store.commit(MapOutput(KEY, 0, 1, (regions[0],)))
    await gate.wait_entered()
    queued = store.commit(MapOutput(KEY, 1, 1, (regions[1],)))
    for task in store._journal.tasks:
        task.cancel()
    gate.proceed.set()
    for future in (writing, queued):
        with pytest.raises(StorageClosed):
            await future
    release_regions(regions)
    assert used(store) == [0, 0]


async def test_a_bug_in_the_journal_fails_the_commit(opened, monkeypatch):
    store = opened()
    region = await write_region(store, b"x", [1])

    def bug(self, entries, releases):
        raise ValueError("a bug")

    with monkeypatch.context() as broken:
        broken.setattr(Journal, "append", bug)
        future = store.commit(MapOutput(KEY, 0, 1, (region,)))
        (task,) = store._journal.tasks
        with pytest.raises(JournalWriteFailed, match="a bug"):
            await future
        with pytest.raises(ValueError, match="a bug"):
            await task
    await store.commit(MapOutput(KEY, 0, 1, (region,)))


async def test_close_writes_what_is_queued(opened, monkeypatch):
    store = opened()
    gate = Gate(monkeypatch, os, "pwrite")
    regions = [await write_region(store, b"x", [1]) for _ in range(3)]
    futures = [store.commit(MapOutput(KEY, n, 1, (r,))) for n, r in enumerate(regions)]
    closing = asyncio.create_task(store.close())
    await gate.wait_entered()
    gate.proceed.set()
    await closing
    assert all(future.done() and future.exception() is None for future in futures)
    monkeypatch.undo()
    again = opened()
    assert sorted(again.map_outputs(KEY)) == [0, 1, 2]


async def test_a_journal_comes_back_after_rows_that_no_journal_took(opened):
    store = opened()
    await put(store, 1, 100)
    arenas = list(store._journal.files.journals)
    for arena in arenas:
        store._journal.lose(arena)
    await settle(store)
    store.release_shuffle(KEY)
    async with asyncio.timeout(10):
        assert await asyncio.gather(*map(store._journal.restore, arenas)) == [True, True]
    await put(store, 2, 100)


async def test_a_dropped_map_output_does_not_come_back(opened):
    store = opened()
    for attempt in range(3):
        await put(store, attempt, 100)
    dropped = store.lookup(KEY, 1)
    assert dropped is not None
    store.drop(dropped, DAMAGED)
    assert sorted(store.map_outputs(KEY)) == [0, 2]
    await settle(store)
    await store.close()
    store = opened()
    assert sorted(store.map_outputs(KEY)) == [0, 2]
    await put(store, 1, 200)
    await settle(store)
    await store.close()
    again = opened()
    found = again.lookup(KEY, 1)
    assert found is not None
    assert found.total_bytes == 200
