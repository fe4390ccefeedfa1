"""A directory that hangs stops what needs it, and nothing else."""

import asyncio
import threading

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.taskmanager.bounds.accounts import Accounts, Resource
from sluice.shuffle.taskmanager.store.errors import (
    DirectoryHangs,
    JournalWriteFailed,
    StorageFull,
)
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput, release_regions
from sluice.shuffle.taskmanager.store.tiers.tier import ExtentRead
from tests.shuffle.taskmanager.store.stuck.rig import (
    Buffer,
    Call,
    begun,
    disk,
    on,
    put_elsewhere,
    regions_on,
)
from tests.support.mini_cluster import eventually
from tests.support.store import (
    KEY,
    content,
    extent_of,
    fetch,
    put,
    settle,
    tier,
    used,
)
from tests.support.stuck_directory import StuckDirectory
from tests.support.watched_disks import (
    PATIENCE_SECONDS,
    SIZE,
    watched_disks,
    written,
    written_without,
)


async def test_commits_succeed_while_another_directory_hangs(store, stuck, tmp_path):
    await put_elsewhere(store, range(6))
    regions = [await written(store, "b", attempt) for attempt in (50, 51)]
    stuck.hang()
    # More calls than it has threads, and a commit; then other commits, before anything is noticed.
    calls = [Call(store, regions[0]) for _ in range(5)]
    waiting = store.commit(MapOutput(KEY, 51, 1, (regions[1],)))
    await stuck.holds(2)
    for attempt in range(10, 14):
        region = await written_without("b", store, attempt)
        await asyncio.wait_for(store.commit(MapOutput(KEY, attempt, 1, (region,))), 20)
    with pytest.raises(JournalWriteFailed, match=f"the journal of {tmp_path / 'b'} cannot"):
        await asyncio.wait_for(waiting, PATIENCE_SECONDS)
    for call in calls:
        with pytest.raises(DirectoryHangs, match=str(tmp_path / "b")) as caught:
            await asyncio.wait_for(call.task, PATIENCE_SECONDS)
        assert caught.value.code is ErrorCode.STORAGE_UNAVAILABLE
        assert caught.value.retryable
    assert not tier(store, "b").healthy
    assert tier(store, "a").healthy
    await put_elsewhere(store, range(20, 26))
    assert not store.why_lost(KEY, 1)
    release_regions(regions)


async def test_regions_go_to_other_disks_before_a_directory_is_given_up(tmp_path, stuck):
    settings = watched_disks(tmp_path).model_copy(update={"slow_disk_seconds": 1.0})
    store = ShuffleStore.open(settings, Accounts())
    store.watch(lambda lost: None)
    stuck.hang()
    await eventually(lambda: not disk(store, "b").answers)
    assert tier(store, "b").healthy
    await put_elsewhere(store, range(4))
    assert tier(store, "b").used_bytes == 0
    stuck.answer()
    await eventually(lambda: disk(store, "b").answers)
    await put_elsewhere(store, range(10, 14))
    assert tier(store, "b").used_bytes > 0
    await store.close()


async def test_a_directory_that_answers_again_is_used_again_with_its_content(store, stuck):
    await put_elsewhere(store, range(6))
    stuck.hang()
    calls = [Call(store, region) for region in regions_on(store, "b")]
    await stuck.holds()
    for call in calls:
        with pytest.raises(DirectoryHangs):
            await asyncio.wait_for(call.task, PATIENCE_SECONDS)
    await put_elsewhere(store, range(10, 14))
    held = tier(store, "b").used_bytes
    assert store.release_shuffle(KEY) == 10 * SIZE
    await settle(store)
    assert calls[0].buffer.retained == 1
    assert calls[0].buffer.released == 0
    assert tier(store, "b").used_bytes < held  # only what threads use is held
    assert tier(store, "b").used_bytes > 0
    stuck.answer()
    await eventually(lambda: tier(store, "b").healthy)
    await settle(store)
    assert [call.buffer.retained for call in calls] == [call.buffer.released for call in calls]
    assert used(store) == [0, 0]
    other = ShuffleKey("app-2", 0)
    for attempt in range(4):
        await put(store, attempt, SIZE, key=other)
    assert tier(store, "b").used_bytes > 0
    for attempt, output in store.map_outputs(other).items():
        assert await fetch(store, output) == content(attempt, SIZE)


async def test_a_commit_that_failed_can_be_repeated_elsewhere(store, stuck):
    region = await written(store, "b", 7)
    stuck.hang()
    with pytest.raises(JournalWriteFailed):
        await asyncio.wait_for(store.commit(MapOutput(KEY, 7, 1, (region,))), PATIENCE_SECONDS)
    region.release()
    await put_elsewhere(store, [7])
    assert await fetch(store, store.lookup(KEY, 7)) == content(7, SIZE)
    stuck.answer()
    await eventually(lambda: tier(store, "b").healthy)
    assert await fetch(store, store.lookup(KEY, 7)) == content(7, SIZE)
    assert tier(store, "b").used_bytes == 0


async def test_a_write_holds_its_buffers_and_its_extent_until_the_thread_ends(store, stuck):
    writer = begun(store, "b")
    stuck.hang()
    buffer = Buffer()
    writing = asyncio.ensure_future(writer.write(0, [buffer.memory], [buffer]))
    await stuck.holds()
    with pytest.raises(DirectoryHangs):
        await asyncio.wait_for(writing, PATIENCE_SECONDS)
    with pytest.raises(DirectoryHangs):
        writer.finish(0)
    writer.abort()
    assert (buffer.retained, buffer.released) == (1, 0)
    account = store.accounts.of(KEY.application_id)
    assert account.amount(Resource.DISK_TIER_BYTES) > 0
    stuck.answer()
    await eventually(lambda: buffer.released)
    assert used(store) == [0, 0]
    assert account.amount(Resource.DISK_TIER_BYTES) == 0


async def test_a_cancelled_reader_waits_until_the_directory_is_given_up(store, stuck):
    await put_elsewhere(store, range(2))
    stuck.hang()
    call = Call(store, regions_on(store, "b")[0])
    await stuck.holds()
    call.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(call.task, PATIENCE_SECONDS)
    assert (call.buffer.retained, call.buffer.released) == (1, 0)
    stuck.answer()
    await eventually(lambda: call.buffer.released)


async def test_a_read_of_two_disks_fails_with_the_one_that_hangs(store, stuck, tmp_path):
    await put_elsewhere(store, range(2))
    stuck.hang()
    buffer = Buffer()
    reads = [
        ExtentRead(extent_of(output), 0, [buffer.memory])
        for output in store.map_outputs(KEY).values()
    ]
    with pytest.raises(DirectoryHangs, match=str(tmp_path / "b")):
        await asyncio.wait_for(store.read_all(reads, uses=[buffer]), PATIENCE_SECONDS)
    (output,) = (each for each in store.map_outputs(KEY).values() if on(each) == "a")
    assert await fetch(store, output) == content(output.map_attempt_id, SIZE)


async def test_reads_fail_at_once_until_a_probe_is_answered(store, stuck):
    await put_elsewhere(store, range(2))
    region = regions_on(store, "b")[0]
    stuck.hang()
    await eventually(lambda: not tier(store, "b").healthy)
    with pytest.raises(DirectoryHangs, match="it is slow"):
        await Call(store, region).task
    stuck.answer()
    await eventually(lambda: not disk(store, "b").threads.is_abandoned)
    await Call(store, region).task


async def test_a_call_that_hangs_is_noticed_although_probes_are_answered(store, tmp_path):
    """As when only some blocks of a disk cannot be read."""
    await put_elsewhere(store, range(2))
    with pytest.MonkeyPatch.context() as patch:
        arena = StuckDirectory(patch, tmp_path / "b", ("arena",), ("pread", "preadv"))
        region = regions_on(store, "b")[0]
        arena.hang()
        calls = [Call(store, region) for _ in range(4)]
        for call in calls:
            with pytest.raises(DirectoryHangs, match="it hangs"):
                await asyncio.wait_for(call.task, PATIENCE_SECONDS)
        assert not tier(store, "b").healthy
        await put_elsewhere(store, range(10, 14))
        arena.answer()
        await eventually(lambda: tier(store, "b").healthy)
    await Call(store, region).task


async def test_everything_fails_by_name_while_all_directories_hang(tmp_path, monkeypatch):
    stuck = StuckDirectory(monkeypatch, tmp_path)
    store = ShuffleStore.open(watched_disks(tmp_path), Accounts())
    store.watch(lambda lost: None)
    await put_elsewhere(store, range(4))
    regions = [await written(store, name, 50) for name in "ab"]
    stuck.hang()
    commits = [
        store.commit(MapOutput(KEY, 50 + n, 1, (region,))) for n, region in enumerate(regions)
    ]
    store.release_shuffle(ShuffleKey("none", 1))
    for name, commit in zip("ab", commits, strict=True):
        with pytest.raises(JournalWriteFailed, match=str(tmp_path / name)):
            await asyncio.wait_for(commit, PATIENCE_SECONDS)
    await eventually(lambda: not any(each.healthy for each in store.tiers()))
    assert all("it is slow" in each.reason or each.reason for each in store.tiers())
    with pytest.raises(StorageFull, match=f"{tmp_path / 'a'} .*{tmp_path / 'b'}"):
        store.begin_region(KEY, 0, [SIZE])
    for attempt in range(2):
        found = store.lookup(KEY, attempt)
        assert found is not None
        with pytest.raises(DirectoryHangs):
            await fetch(store, found)
    release_regions(regions)
    stuck.answer()
    await eventually(lambda: all(each.healthy for each in store.tiers()))
    await put_elsewhere(store, range(60, 64))
    await store.close()
    assert stuck.touched_in_loop == []
    again = ShuffleStore.open(watched_disks(tmp_path))
    assert sorted(again.map_outputs(KEY)) == [*range(4), *range(60, 64)]
    await again.close()


@pytest.mark.interpreted
async def test_free_space_is_returned_when_a_directory_that_hung_answers(store, stuck):
    await put_elsewhere(store, range(4))
    tried = disk(store, "b")
    tried._always_kept_bytes = tried._retained_bytes = 0
    with pytest.MonkeyPatch.context() as patch:
        entered, proceed = threading.Event(), threading.Event()

        def punch(*_: object) -> str:
            entered.set()
            assert proceed.wait(PATIENCE_SECONDS)
            return ""

        patch.setattr(tried, "punch", punch)
        store.release_shuffle(KEY)
        assert await asyncio.to_thread(entered.wait, PATIENCE_SECONDS)
        stuck.hang()
        await eventually(lambda: not tier(store, "b").healthy)
        await settle(store)
        assert tried.excess_bytes == 0
        stuck.answer()
        proceed.set()
        await eventually(lambda: tier(store, "b").healthy)
    assert tried._trimming_bytes == 0
    assert used(store) == [0, 0]
