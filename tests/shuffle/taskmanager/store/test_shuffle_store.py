"""The store on real files: life of regions, releases, failures of one directory."""

import asyncio
import errno
import os

import pytest

from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.taskmanager.store.errors import (
    OutsideRegion,
    StorageClosed,
    StorageFull,
    StorageReadFailed,
    StorageWriteFailed,
)
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
from sluice.shuffle.taskmanager.store.tiers import disk_tier
from sluice.shuffle.taskmanager.store.tiers.memory_tier import MemoryTier
from sluice.shuffle.taskmanager.store.tiers.tier import ExtentRead
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

MIB = 1024 * 1024


async def test_outputs_fill_memory_first_then_disk_and_come_back_byte_equal(opened):
    store = opened()
    outputs = [await put(store, attempt, 400_000) for attempt in range(5)]
    assert [extent_of(o).in_memory for o in outputs] == [True, True, False, False, False]
    for attempt, output in enumerate(outputs):
        assert store.lookup(KEY, attempt) is output
        assert await fetch(store, output) == content(attempt, 400_000)
    assert list(store.map_outputs(KEY)) == [0, 1, 2, 3, 4]
    assert store.shuffles()[0].stored_bytes == 2_000_000
    assert store.release_shuffle(KEY) == 2_000_000
    await settle(store)
    assert used(store) == [0, 0]
    assert store.shuffles() == []
    assert store.map_outputs(KEY) == {}
    assert store.lookup(KEY, 0) is None
    assert store.release_shuffle(KEY) == 0
    assert store.statistics().stored_bytes == store.statistics().map_outputs == 0


async def test_released_space_is_used_again_and_no_new_page_is_touched(opened):
    store = opened(memory_tier_bytes=0)
    for round_number in range(4):
        for attempt in range(3):
            output = await put(store, attempt, 100_000)
        touched = extent_of(output).tier.path.stat().st_size
        if round_number == 0:
            first = touched
        assert touched == first
        store.release_shuffle(KEY)
        await settle(store)
    assert first < 320_000


async def test_an_empty_region_takes_no_extent(opened):
    store = opened()
    writer = store.begin_region(KEY, 0, [0, 0, 0])
    assert writer.in_memory
    assert len(writer.view) == 0
    await writer.write(0, [])
    region = writer.finish(0)
    await store.commit(MapOutput(KEY, 1, 3, (region,)))
    assert used(store) == [0, 0]
    assert region.slice(0, 3) == (0, 0)
    assert store.release_shuffle(KEY) == 0
    assert store.map_outputs(KEY) == {}


async def test_several_regions_keep_their_order(opened):
    store = opened()
    first = await write_region(store, b"aabbb", [2, 3])
    second = await write_region(store, b"cccc", [4], first=1)
    output = MapOutput(KEY, 1, 2, (first, second))
    await store.commit(output)
    pieces = []
    for region in output.regions:
        offset, length = region.slice(1, 2)
        assert region.extent is not None
        assert region.extent.view is not None
        pieces.append(bytes(region.extent.view[offset : offset + length]))
    assert pieces == [b"bbb", b"cccc"]


async def test_aborted_regions_leave_nothing(opened):
    store = opened()
    for lengths in ([10], [2 * MIB]):
        writer = store.begin_region(KEY, 0, lengths)
        assert sum(used(store)) > 0
        writer.abort()
        writer.abort()
        assert used(store) == [0, 0]
        with pytest.raises(RuntimeError, match="finished or aborted"):
            writer.finish(0)
        with pytest.raises(RuntimeError, match="finished or aborted"):
            _ = writer.view


async def test_bytes_outside_a_region_are_refused(opened):
    store = opened()
    for length in (100, 2 * MIB):
        writer = store.begin_region(KEY, 0, [length])
        for offset, size in ((length, 1), (-1, 1), (1, length)):
            with pytest.raises(OutsideRegion) as caught:
                await writer.write(offset, [memoryview(bytes(size))])
            assert caught.value.limit == length
        with pytest.raises(OutsideRegion):
            await store.read_all(
                [ExtentRead(writer._extent, length - 1, [memoryview(bytearray(2))])]
            )
        writer.abort()


async def test_only_reads_that_a_reader_waits_for_count_for_their_tier(opened):
    store = opened(memory_tier_bytes=0)
    output = await put(store, 0, 100)
    for for_reader, counted in ((False, 0), (True, 1), (True, 2), (False, 2)):
        read = ExtentRead(extent_of(output), 0, [memoryview(bytearray(100))])
        await store.read_all([read], for_reader=for_reader)
        (found,) = store.region_reads()
        assert (found.tier, found.read.count) == ("disk", counted)
    assert store.read_cached([read])
    assert store.region_reads() == [found]


async def test_bytes_outside_a_region_are_not_read_from_the_page_cache(opened):
    """The bytes behind a region may belong to another application."""
    store = opened(memory_tier_bytes=0)
    output, _ = await put(store, 0, 100), await put(store, 1, 8192)
    extent = extent_of(output)
    for offset, within in ((98, True), (99, False), (-1, False)):
        read = ExtentRead(extent, offset, [memoryview(bytearray(2))])
        assert store.read_cached([read]) is within


async def test_the_view_of_a_region_on_disk_is_refused(opened):
    store = opened(memory_tier_bytes=0)
    writer = store.begin_region(KEY, 0, [10])
    with pytest.raises(RuntimeError, match=r"use write\(\)"):
        _ = writer.view
    writer.abort()


async def test_write_works_for_a_region_in_memory_too(opened):
    store = opened()
    writer = store.begin_region(KEY, 0, [6])
    await writer.write(2, [memoryview(b"cd"), memoryview(b"ef")])
    await writer.write(0, [memoryview(b"ab")])
    assert bytes(writer.view) == b"abcdef"
    writer.abort()


async def test_full_tiers_are_an_error_to_that_job_only(opened):
    store = opened(disk_quota_bytes=MIB)
    kept = [await put(store, attempt, MIB) for attempt in range(2)]
    with pytest.raises(StorageFull, match="disk_quota_bytes") as caught:
        store.begin_region(KEY, 0, [4097])
    assert caught.value.required_bytes == caught.value.value == 4097
    assert caught.value.limit == 0
    assert caught.value.retryable
    for attempt, output in enumerate(kept):
        assert await fetch(store, output) == content(attempt, MIB)
    store.release_shuffle(KEY)
    await settle(store)
    await put(store, 9, MIB)


async def test_a_lease_outlives_the_release(opened):
    store = opened()
    outputs = [await put(store, attempt, 600_000) for attempt in range(2)]
    in_memory, on_disk = map(extent_of, outputs)
    assert (in_memory.in_memory, on_disk.in_memory) == (True, False)
    in_memory.retain()
    on_disk.retain()
    assert store.release_shuffle(KEY) == 1_200_000
    others = [await put(store, attempt, 300_000, key=ShuffleKey("x", 1)) for attempt in range(3)]
    assert bytes(in_memory.view) == content(0, 600_000)
    assert await fetch(store, outputs[1]) == content(1, 600_000)
    in_memory.release()
    on_disk.release()
    store.release_application("x")
    await settle(store)
    assert used(store) == [0, 0]
    assert all(extent_of(o).references == 0 for o in others)


async def test_a_read_under_way_holds_the_extent_through_a_release(opened, monkeypatch):
    store = opened(memory_tier_bytes=0)
    output = await put(store, 1, 50_000)
    gate = Gate(monkeypatch, os, "preadv")
    reading = asyncio.create_task(fetch(store, output))
    await gate.wait_entered()
    store.release_shuffle(KEY)
    await settle(store)
    assert used(store)[0] > 0
    fresh = await put(store, 2, 50_000)
    assert extent_of(fresh).offset != extent_of(output).offset
    gate.proceed.set()
    assert await reading == content(1, 50_000)
    store.release_shuffle(KEY)
    await settle(store)
    assert used(store) == [0]


async def test_a_cancelled_read_ends_only_when_the_thread_has_left_the_buffer(opened, monkeypatch):
    store = opened(memory_tier_bytes=0)
    output = await put(store, 1, 50_000)
    gate = Gate(monkeypatch, os, "preadv")
    buffer = bytearray(100)
    extent = extent_of(output)
    reading = asyncio.create_task(store.read_all([ExtentRead(extent, 0, [memoryview(buffer)])]))
    await gate.wait_entered()
    for _ in range(3):
        reading.cancel()
        await asyncio.sleep(0)
        assert not reading.done()
    assert extent.references == 2
    gate.proceed.set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert bytes(buffer) == content(1, 100)
    assert extent.references == 1


async def test_an_abort_during_a_write_frees_the_space_when_the_thread_has_ended(
    opened, monkeypatch
):
    store = opened(memory_tier_bytes=0)
    gate = Gate(monkeypatch, os, "pwritev")
    writer = store.begin_region(KEY, 0, [100])
    writing = asyncio.create_task(writer.write(0, [memoryview(bytes(100))]))
    await gate.wait_entered()
    with pytest.raises(RuntimeError, match="under way"):
        writer.finish(0)
    writer.abort()
    assert used(store) == [4096]
    gate.proceed.set()
    await writing
    assert used(store) == [0]


async def test_a_failed_write_costs_the_region_and_the_next_goes_to_another_disk(
    opened, tmp_path, monkeypatch
):
    directories = (tmp_path / "a", tmp_path / "b")
    store = opened(data_directories=directories, memory_tier_bytes=0)
    broken_fd = store._storage.disks[0].fd
    real = os.pwritev

    def failing(fd, buffers, offset):
        if fd == broken_fd:
            raise OSError(errno.EIO, "medium error")
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "pwritev", failing)
    writer = store.begin_region(KEY, 0, [10])
    with pytest.raises(StorageWriteFailed, match="medium error") as caught:
        await writer.write(0, [memoryview(bytes(10))])
    assert caught.value.retryable
    with pytest.raises(StorageWriteFailed):
        writer.finish(0)
    writer.abort()
    assert [tier.healthy for tier in store.tiers()] == [False, True]
    for attempt in range(3):
        output = await put(store, attempt, 5000)
        assert extent_of(output).tier.directory == directories[1]
        assert await fetch(store, output) == content(attempt, 5000)
    store.release_shuffle(KEY)
    await settle(store)
    assert used(store) == [0, 0]


async def test_regions_go_round_the_data_directories(opened, tmp_path):
    store = opened(data_directories=(tmp_path / "a", tmp_path / "b"), memory_tier_bytes=0)
    outputs = [await put(store, attempt, 100) for attempt in range(4)]
    names = [extent_of(output).tier.directory.name for output in outputs]
    assert names == ["a", "b", "a", "b"]


async def test_a_read_error_is_typed_and_takes_the_disk_out_of_service(opened, monkeypatch):
    store = opened(memory_tier_bytes=0)
    output = await put(store, 1, 5000)

    def broken(fd, buffers, offset):
        raise OSError(errno.EIO, "medium error")

    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(StorageReadFailed, match="medium error"):
        await fetch(store, output)
    assert not store.tiers()[0].healthy
    with pytest.raises(StorageFull, match="medium error"):
        store.begin_region(KEY, 0, [1])


async def test_a_truncated_arena_is_a_short_read(opened):
    store = opened(memory_tier_bytes=0)
    output = await put(store, 1, 5000)
    os.truncate(extent_of(output).tier.path, 4000)
    with pytest.raises(StorageReadFailed, match="end of file"):
        await fetch(store, output)


@pytest.mark.interpreted
async def test_disk_space_goes_back_after_a_release(opened, monkeypatch):
    monkeypatch.setattr(disk_tier, "RETAINED_FREE_BYTES", MIB)
    store = opened(memory_tier_bytes=0)
    for attempt in range(8):
        await put(store, attempt, MIB)
    path = store._storage.disks[0].path
    before = path.stat().st_blocks * 512
    assert before >= 8 * MIB
    store.release_shuffle(KEY)
    await settle(store)
    assert path.stat().st_blocks * 512 <= MIB
    await put(store, 1, 2 * MIB)


async def test_memory_pages_are_prepared_by_a_thread(opened):
    store = opened(memory_tier_bytes=32 * MIB)
    await put(store, 1, 100)
    await settle(store)
    (arena,) = store._storage.memory.directory.glob("arena-*")
    assert arena.stat().st_blocks * 512 >= 32 * MIB
    assert await fetch(store, store.map_outputs(KEY)[1]) == content(1, 100)


async def test_applications_are_kept_apart(opened):
    store = opened()
    keys = [ShuffleKey(app, shuffle) for app in ("a", "b") for shuffle in (0, 1)]
    for key in keys:
        await put(store, 5, 1000, key=key)
    assert sorted(store.applications()) == ["a", "b"]
    assert store.release_application("a") == 2000
    assert store.release_application("a") == 0
    assert [s.key for s in store.shuffles()] == keys[2:]
    assert store.statistics().commits == 4


async def test_a_closed_store_refuses_everything(opened):
    store = opened()
    await put(store, 1, 100)
    region = await write_region(store, b"x", [1])
    await store.close()
    await store.close()
    for call in (
        lambda: store.begin_region(KEY, 0, [1]),
        lambda: store.commit(MapOutput(KEY, 2, 1, (region,))),
        lambda: store.release_shuffle(KEY),
        lambda: store.release_application("app-1"),
    ):
        with pytest.raises(StorageClosed):
            call()


async def test_upkeep_that_fails_is_logged_and_tried_again(opened, monkeypatch, caplog):
    store = opened(memory_tier_bytes=32 * MIB)

    def bug(self, start, end):
        raise ValueError("a bug")

    with monkeypatch.context() as broken:
        broken.setattr(MemoryTier, "prepare", bug)
        await put(store, 1, 100)
        await settle(store)
    assert f"upkeep of {store.tiers()[0].directory} failed" in caplog.text
    await put(store, 2, 100)
    await settle(store)
    assert not store._storage.memory.wants_backing


async def test_an_extent_that_was_given_back_cannot_be_read(opened):
    store = opened()
    extent = extent_of(await put(store, 1, 100))
    store.release_shuffle(KEY)
    await settle(store)
    with pytest.raises(RuntimeError, match="after its last release"):
        await store.read_all([ExtentRead(extent, 0, [memoryview(bytearray(1))])])
