"""The file system of the memory tier is full: other programs' writes do not stop ours.

Runs only if this process may mount a tmpfs: as root.
"""

import errno
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.shuffle.taskmanager.status.room import StorageRoom
from sluice.shuffle.taskmanager.store.errors import JournalWriteFailed, StorageFull
from sluice.shuffle.taskmanager.store.journal import journal, journal_files, journal_lane
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
from sluice.shuffle.taskmanager.store.tiers.memory_tier import BACKING_AHEAD_BYTES
from tests.support.mini_cluster import eventually
from tests.support.small_tmpfs import NoTmpfs, SmallTmpfs
from tests.support.store import KEY, content, extent_of, fetch, put, settle, write_region

MIB = 1024 * 1024
OUTPUT_BYTES = 10_000
SOON_SECONDS = 0.01

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])


@pytest.fixture
def tmpfs(tmp_path) -> Iterator[SmallTmpfs]:
    try:
        made = SmallTmpfs(tmp_path / "shm", 16 * MIB)
    except NoTmpfs as error:
        pytest.skip(str(error))
    yield made
    made.unmount()


@pytest.fixture(autouse=True)
def _small_reserve(monkeypatch):
    """Reserve room for a few map outputs only, and look for more soon."""
    monkeypatch.setattr(journal, "RESERVED_BYTES", 128 * 1024)
    monkeypatch.setattr(journal, "RELEASES_BYTES", 16 * 1024)
    monkeypatch.setattr(journal_files, "RESERVED_BYTES", 128 * 1024)
    monkeypatch.setattr(journal_lane, "RETRY_SECONDS", SOON_SECONDS)


@pytest.fixture
def opened_in_shm(tmp_path, tmpfs, opened):
    def open_store(**changes):
        settings = {"memory_directory": tmpfs.mounted_at / "memory", "memory_tier_bytes": 8 * MIB}
        return opened(**settings | changes)

    return open_store


def not_ready(store) -> str | None:
    return StorageRoom().none_because(store.tiers())


async def put_wide(store, attempt, subpartitions=2000) -> MapOutput:
    """Commit a map output with a row of 8 KB."""
    region = await write_region(store, b"x" * subpartitions, [1] * subpartitions)
    output = MapOutput(KEY, attempt, subpartitions, (region,))
    await store.commit(output)
    return output


async def warm(store) -> None:
    """Give the tier pages, so that new regions go there when the file system is full."""
    await put(store, 0, OUTPUT_BYTES)
    await settle(store)


async def put_many_wide(store, attempts=range(1, 31)) -> None:
    for attempt in attempts:
        assert extent_of(await put_wide(store, attempt)).in_memory


async def with_a_moved_journal(opened_in_shm, tmpfs):
    """Open a store whose journal found no room beside the memory tier's arena."""
    store = opened_in_shm()
    await warm(store)
    tmpfs.fill()
    await put_many_wide(store)
    assert journal_directory(store) != tmpfs.mounted_at / "memory"
    return store


def journal_of(store) -> journal.Journal:
    """Return the memory tier's journal."""
    memory = store._tiers.tiers()[0]
    assert memory.kind == "memory"
    return store._journal.files.journals[memory.tier_id]


def journal_directory(store) -> Path:
    """Return the directory of the memory tier's journal."""
    return journal_of(store).path.parent


async def test_every_write_succeeds_while_another_program_fills_it(opened_in_shm, tmpfs, tmp_path):
    store = opened_in_shm()
    await warm(store)
    tmpfs.fill()
    for attempt in range(1, 300):
        await put(store, attempt, OUTPUT_BYTES)
    assert not_ready(store) is None
    await put_wide(store, 999)
    for attempt in range(300):
        assert await fetch(store, store.lookup(KEY, attempt)) == content(attempt, OUTPUT_BYTES)
    store.release_shuffle(KEY)
    released = store.released()
    if released is not None:
        await released
    await settle(store)
    for attempt in range(50):
        await put(store, attempt, OUTPUT_BYTES)
    await store.close()
    again = opened_in_shm()
    assert sorted(again.map_outputs(KEY)) == list(range(50))
    for attempt in range(50):
        assert await fetch(again, again.lookup(KEY, attempt)) == content(attempt, OUTPUT_BYTES)


async def test_a_journal_without_room_moves_to_a_disk_and_back(opened_in_shm, tmpfs, caplog):
    home = tmpfs.mounted_at / "memory"
    store = await with_a_moved_journal(opened_in_shm, tmpfs)
    moved = journal_directory(store)
    assert moved.parent == store._config.data_directories[0]
    assert not list(home.glob("journal-*"))
    assert "it is kept in" in caplog.text
    tmpfs.make_room()
    await eventually(lambda: journal_directory(store) == home)
    await settle(store)
    assert not list(moved.glob("*"))
    await put_wide(store, 31)
    await store.close()
    again = opened_in_shm()
    assert sorted(again.map_outputs(KEY)) == list(range(32))
    assert not moved.exists()


async def test_a_start_finds_a_journal_that_has_moved(opened_in_shm, tmpfs):
    store = await with_a_moved_journal(opened_in_shm, tmpfs)
    await store.close()
    tmpfs.fill()
    for _ in range(2):  # with and without room beside the arena
        again = opened_in_shm()
        assert sorted(again.map_outputs(KEY)) == list(range(31))
        assert await fetch(again, again.lookup(KEY, 0)) == content(0, OUTPUT_BYTES)
        await again.close()
        tmpfs.make_room()
    assert journal_directory(again) == tmpfs.mounted_at / "memory"


async def test_a_start_without_room_for_another_journal_keeps_the_one_it_has(
    opened_in_shm, tmpfs, monkeypatch
):
    store = await with_a_moved_journal(opened_in_shm, tmpfs)
    moved = journal_directory(store)
    await store.close()

    def create(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as full:
        full.setattr(journal.Journal, "create", create)
        again = opened_in_shm()
        assert sorted(again.map_outputs(KEY)) == list(range(31))
        assert journal_directory(again) == moved
        await again.close()
    last = opened_in_shm()
    assert sorted(last.map_outputs(KEY)) == list(range(31))


async def test_a_moved_journal_whose_file_is_removed_is_written_anew(opened_in_shm, tmpfs):
    store = await with_a_moved_journal(opened_in_shm, tmpfs)
    moved = journal_directory(store)
    for path in list(moved.iterdir()):
        path.unlink()
    await eventually(lambda: list(moved.glob("journal-*")))
    await settle(store)
    await store.close()
    again = opened_in_shm()
    assert sorted(again.map_outputs(KEY)) == list(range(31))


@pytest.mark.interpreted
async def test_without_any_room_the_store_says_so_until_there_is_some(
    opened_in_shm, tmpfs, monkeypatch, caplog
):
    """No disk takes the journal; its last room is for releases, which free space."""
    store = opened_in_shm(disk_quota_bytes=0, min_free_bytes=0)
    await warm(store)
    monkeypatch.setattr(store._tiers, "journal_places", lambda arena: [journal_directory(store)])
    tmpfs.fill()
    assert not_ready(store) is None
    with pytest.raises(JournalWriteFailed, match="No space left"):
        await put_many_wide(store)
    reason = not_ready(store)
    assert reason is not None
    assert "its journal has no room" in reason
    assert any(tier.journal_full for tier in store.tiers())
    assert not journal_of(store).reserve(), "the room for releases counts"
    with pytest.raises(StorageFull, match="its journal has no room"):
        await put(store, 99, OUTPUT_BYTES)
    store.release_shuffle(KEY)
    released = store.released()
    assert released is not None
    await released
    tmpfs.make_room()
    await eventually(lambda: not_ready(store) is None)
    assert not any(tier.journal_full for tier in store.tiers())
    await put_wide(store, 100)
    assert "takes map outputs again" in caplog.text


async def test_the_memory_tier_grows_when_others_leave_room(opened_in_shm, tmpfs, caplog):
    tmpfs.fill(left_bytes=4 * MIB)
    with caplog.at_level(logging.INFO):
        store = opened_in_shm()
        assert caplog.text.count("memory_tier_bytes is 8388608") == 1
        assert "Raise the tmpfs to at least" in caplog.text
        for attempt in range(6):
            await put(store, attempt, MIB)
        await settle(store)
        memory = store.tiers()[0]
        assert 2 * MIB <= memory.used_bytes <= 3 * MIB
        assert memory.free_bytes + memory.used_bytes <= 4 * MIB
        tmpfs.make_room()
        for attempt in range(6, 10):
            output = await put(store, attempt, MIB)
            assert extent_of(output).in_memory
    assert caplog.text.count("memory_tier_bytes is 8388608") == 1
    assert "has room again" in caplog.text


async def test_a_tier_larger_than_its_file_system_uses_what_there_is(opened_in_shm, tmpfs):
    store = opened_in_shm(memory_tier_bytes=2 * BACKING_AHEAD_BYTES, memory_tier_reserve_percent=0)
    for attempt in range(16):
        await put(store, attempt, MIB)
        await settle(store)
    memory = store.tiers()[0]
    assert memory.used_bytes >= 13 * MIB
    assert memory.free_bytes < MIB
    assert tmpfs.free_bytes > 0  # for its journal
    for attempt in range(16):
        assert await fetch(store, store.lookup(KEY, attempt)) == content(attempt, MIB)


async def test_a_start_on_a_full_file_system_makes_a_removed_lock_again(opened_in_shm, tmpfs):
    store = opened_in_shm()
    await warm(store)
    await store.close()
    lock = tmpfs.mounted_at / "memory" / "lock"
    lock.unlink()
    tmpfs.fill()
    again = opened_in_shm()
    assert lock.exists()
    assert await fetch(again, again.map_outputs(KEY)[0]) == content(0, OUTPUT_BYTES)
