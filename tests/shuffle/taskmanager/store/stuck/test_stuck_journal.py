"""The journal of a directory that hangs: rows and releases beside it."""

import asyncio
import errno
import shutil
from functools import partial

import pytest

from sluice.shuffle.names import MapAttemptKey, ShuffleKey
from sluice.shuffle.taskmanager.store.errors import (
    JournalWriteFailed,
)
from sluice.shuffle.taskmanager.store.journal import journal_lane
from sluice.shuffle.taskmanager.store.journal.journal import Journal
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
from tests.shuffle.taskmanager.store.stuck.rig import disk, put_elsewhere
from tests.support.mini_cluster import eventually
from tests.support.store import (
    KEY,
    content,
    fetch,
    settle,
    tier,
    used,
)
from tests.support.stuck_directory import StuckDirectory
from tests.support.watched_disks import (
    PATIENCE_SECONDS,
    SIZE,
    put_on,
    watched_disks,
    written,
    written_without,
)


async def test_a_journal_that_hangs_alone_costs_its_directory_only(store, tmp_path):
    await put_elsewhere(store, range(4))
    region = await written(store, "b", 50)
    with pytest.MonkeyPatch.context() as patch:
        journal = StuckDirectory(patch, tmp_path / "b", ("journal",))
        journal.hang()
        committing = store.commit(MapOutput(KEY, 50, 1, (region,)))
        await put_on(store, "a", range(10, 14))
        with pytest.raises(JournalWriteFailed, match=str(tmp_path / "b")):
            await asyncio.wait_for(committing, PATIENCE_SECONDS)
        region.release()
        await put_elsewhere(store, range(20, 24))
        journal.answer()
        await eventually(lambda: tier(store, "b").healthy)
    await put_elsewhere(store, range(30, 34))
    await store.close()
    again = ShuffleStore.open(watched_disks(tmp_path))
    expected = [*range(4), *range(10, 14), *range(20, 24), *range(30, 34)]
    assert sorted(again.map_outputs(KEY)) == expected
    for attempt, output in again.map_outputs(KEY).items():
        assert await fetch(again, output) == content(attempt, SIZE)
    await again.close()


async def test_a_journal_that_lies_in_a_directory_that_hangs_moves_away(store, stuck, monkeypatch):
    monkeypatch.setattr(journal_lane, "RETRY_SECONDS", 3600.0)
    arena = disk(store, "a").tier_id
    journals = store._journal.files.journals
    with pytest.MonkeyPatch.context() as patch:
        home = journals[arena]

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "full")

        patch.setattr(home, "append", full)
        await put_on(store, "a", [1])
    assert journals[arena].path.parent.parent.name == "b"
    region = await written_without("b", store, 2)
    stuck.hang()
    commit = store.commit(MapOutput(KEY, 2, 1, (region,)))
    await asyncio.wait_for(commit, PATIENCE_SECONDS)
    assert journals[arena].path.parent.name == "a"
    assert tier(store, "a").healthy
    store.release_shuffle(KEY)
    await asyncio.wait_for(store.released(), PATIENCE_SECONDS)
    await settle(store)
    assert used(store) == [0, 0]


async def test_a_map_output_without_bytes_is_committed_while_a_directory_hangs(store, stuck):
    stuck.hang()
    await eventually(lambda: not tier(store, "b").healthy)
    region = store.begin_region(KEY, 0, [0]).finish(0)
    await asyncio.wait_for(store.commit(MapOutput(KEY, 1, 1, (region,))), PATIENCE_SECONDS)
    assert store.lookup(KEY, 1) is not None


async def test_secured_regions_survive_beside_a_directory_that_hangs(store, stuck, tmp_path):
    attempt = MapAttemptKey(KEY, 7)
    first = await written_without("b", store, 7)
    stuck.hang()
    await asyncio.wait_for(store.secure(attempt, 1, [first]), PATIENCE_SECONDS)
    await eventually(lambda: not tier(store, "b").healthy)
    store.drop_open(attempt)
    await settle(store)
    assert used(store) == [0, 0]


async def test_a_release_is_valid_without_the_directory_that_hangs(store, stuck, tmp_path):
    await put_elsewhere(store, range(6))
    stuck.hang()
    store.release_shuffle(KEY)
    released = store.released()
    if released is not None:
        await asyncio.wait_for(released, PATIENCE_SECONDS)
    await eventually(lambda: not tier(store, "b").healthy)
    await settle(store)
    assert used(store) == [0, 0]
    stuck.answer()
    await eventually(lambda: tier(store, "b").healthy)
    # The journal of b was written again: it has the release, whatever becomes of the other.
    await store.close()
    for path in (tmp_path / "a").iterdir():
        path.unlink()
    again = ShuffleStore.open(watched_disks(tmp_path))
    assert len(again.map_outputs(KEY)) == 0
    await again.close()


async def test_a_failed_commit_does_not_come_back_after_its_release(store, stuck, tmp_path):
    region = await written(store, "b", 7)
    stuck.hang()
    committing = store.commit(MapOutput(KEY, 7, 1, (region,)))
    await stuck.holds()
    with pytest.raises(JournalWriteFailed):
        await asyncio.wait_for(committing, PATIENCE_SECONDS)
    region.release()
    assert tier(store, "b").used_bytes > 0  # its row may still reach the journal
    store.release_shuffle(KEY)
    await asyncio.wait_for(store.released(), PATIENCE_SECONDS)
    stuck.answer()
    await eventually(lambda: tier(store, "b").healthy)
    assert used(store) == [0, 0]
    await store.close()
    again = ShuffleStore.open(watched_disks(tmp_path))
    assert again.lookup(KEY, 7) is None
    await again.close()


async def test_a_journal_whose_rewrite_hangs_is_written_again_later(store, stuck, tmp_path):
    await put_elsewhere(store, range(4))
    region = await written(store, "b", 50)
    stuck.hang()
    with pytest.raises(JournalWriteFailed):
        await asyncio.wait_for(store.commit(MapOutput(KEY, 50, 1, (region,))), PATIENCE_SECONDS)
    region.release()
    with pytest.MonkeyPatch.context() as patch:
        rewrite = StuckDirectory(patch, tmp_path / "b", ("journal.new",))
        rewrite.hang()
        stuck.answer()
        await rewrite.holds()
        await put_on(store, "a", range(10, 14))
        store.release_shuffle(ShuffleKey("app-1", 0), 2)
        await asyncio.wait_for(store.released(), PATIENCE_SECONDS)
        await eventually(lambda: disk(store, "b").threads.is_abandoned)
        await settle(store)
        assert not tier(store, "b").healthy
        rewrite.answer()
        await eventually(lambda: tier(store, "b").healthy)
    await put_elsewhere(store, range(20, 24))
    await store.close()
    again = ShuffleStore.open(watched_disks(tmp_path))
    assert sorted(again.map_outputs(KEY)) == [2, 3, *range(10, 14), *range(20, 24)]
    await again.close()


async def test_a_rename_that_comes_after_the_end_hides_no_rows(store, tmp_path, monkeypatch):
    """The journal of a is written anew in b, which hangs; a goes on, and the process is killed."""
    monkeypatch.setattr(journal_lane, "RETRY_SECONDS", 0.01)
    await put_on(store, "a", range(4))
    journal = store._journal.files.journals[disk(store, "a").tier_id]
    put_into_place = f"journal-{journal.generation + 1:08d}-{journal.run:08d}"
    with pytest.MonkeyPatch.context() as patch:
        late = StuckDirectory(patch, tmp_path / "b", ("journal-of-",), ("rename",))
        late.hang()
        patch.setattr(journal, "append", refuse)
        region = await written_without("b", store, 4)
        with pytest.raises(JournalWriteFailed, match="full"):
            await asyncio.wait_for(store.commit(MapOutput(KEY, 4, 1, (region,))), PATIENCE_SECONDS)
        region.release()
        patch.setattr(journal, "append", partial(Journal.append, journal))
        await eventually(lambda: disk(store, "a").has_journal_room)
        await put_on(store, "a", [5])
        store.release_shuffle(KEY, 2)
        await asyncio.wait_for(store.released(), PATIENCE_SECONDS)
        killed = tmp_path / "killed"
        for name in "ab":
            await asyncio.to_thread(shutil.copytree, tmp_path / name, killed / name)
        (unnamed,) = killed.glob("b/journal-of-*/journal.new")
        unnamed.rename(unnamed.with_name(put_into_place))  # the kernel completes the call
        again = await asyncio.to_thread(ShuffleStore.open, watched_disks(killed))
        assert sorted(again.map_outputs(KEY)) == [2, 3, 5]
        for attempt, output in again.map_outputs(KEY).items():
            assert await fetch(again, output) == content(attempt, SIZE)
        await again.close()
        late.answer()
        await eventually(lambda: tier(store, "b").healthy)
    assert not list(tmp_path.glob("b/journal-of-*/journal*"))
    await put_elsewhere(store, range(20, 24))
    await store.close()
    again = ShuffleStore.open(watched_disks(tmp_path))
    assert sorted(again.map_outputs(KEY)) == [2, 3, 5, *range(20, 24)]
    await again.close()


def refuse(*_: object) -> None:
    raise OSError(errno.ENOSPC, "full")
