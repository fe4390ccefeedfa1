"""Power cuts: each part of what was not synced may be missing, in the journals and in the arena.

Map outputs have the same layout and blocks, so that the stale bytes of a released one look right
in the place of another one. After a power cut each output has its own bytes or is not there.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import threading
from typing import TYPE_CHECKING

import pytest

from sluice.shuffle.names import MapAttemptKey, ShuffleKey
from sluice.shuffle.taskmanager.store.errors import JournalWriteFailed, StorageFull
from sluice.shuffle.taskmanager.store.journal import power_cuts
from sluice.shuffle.taskmanager.store.journal.power_cuts import BOOT_NAME, may_lack_bytes
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput, release_regions
from tests.support.lost_writes import Files, LostWrites, journals_of, lay_out, random_loss
from tests.support.mini_cluster import eventually
from tests.support.store import (
    KEY,
    config,
    content,
    extent_of,
    fetch,
    on_disks,
    put,
    settle,
    write_region,
)

if TYPE_CHECKING:
    from pathlib import Path

MODES = ["never", "interval", "commit"]
LENGTH = 5000
OLD = ShuffleKey("app-1", 7)
PATIENCE_SECONDS = 60
SAMPLES = 10


@pytest.fixture
def host(monkeypatch):
    """Restarts the host: the first start after that has another boot id."""
    boots = iter(range(1_000_000))
    now = [""]

    def restart():
        now[0] = f"boot-{next(boots)}"

    restart()
    monkeypatch.setattr(power_cuts, "boot_id", lambda: now[0])
    return restart


class Loaded:
    """A store with commits and releases, and what must be there after a power cut at a moment.

    Attributes:
        moments: The files of each moment, with the attempts that must be there and the shuffles
            that must not.
        old: The files before the release.
    """

    def __init__(self, recorder: LostWrites, mode: str) -> None:
        self.recorder = recorder
        self.mode = mode
        self.acknowledged: set[MapAttemptKey] = set()
        self.released: set[ShuffleKey] = set()
        self.old: Files = {}
        self.moments: list[tuple[Files, set[MapAttemptKey], set[ShuffleKey]]] = []
        recorder.before_sync = self.moment

    def moment(self) -> None:
        """Record the files. Threads call it, too: what is answered meanwhile is left out."""
        acknowledged, released = set(self.acknowledged), set(self.released)
        files = self.recorder.files()
        must = acknowledged & self.acknowledged if self.mode == "commit" else set()
        gone = released if self.mode != "never" else set()
        self.moments.append((files, must, gone))

    async def put(self, store: ShuffleStore, key: ShuffleKey, attempt: int) -> None:
        await put(store, attempt, LENGTH, key=key)
        self.acknowledged.add(MapAttemptKey(key, attempt))
        self.moment()

    async def release(self, store: ShuffleStore, key: ShuffleKey) -> None:
        self.acknowledged = {each for each in self.acknowledged if each.shuffle != key}
        store.release_shuffle(key)
        self.moment()
        released = store.released()
        if released is not None:
            await released
        self.released.add(key)
        await settle(store)
        self.moment()


async def load(directory: Path, mode: str, disks: str = "a") -> Loaded:
    """Fill a store so that later map outputs have the places of released ones."""
    with LostWrites(directory) as recorder:
        loaded = Loaded(recorder, mode)
        settings = on_disks(directory, disks, journal_sync=mode, journal_sync_interval_seconds=3600)
        store = ShuffleStore.open(settings)
        await loaded.put(store, OLD, 0)
        loaded.old = recorder.files()
        await loaded.release(store, OLD)
        for attempt in (1, 2):
            await loaded.put(store, KEY, attempt)
        recorder.before_sync = lambda: None
        await store.close()
    return loaded


async def check(
    directory: Path, must: set[MapAttemptKey], gone: set[ShuffleKey], disks: str = "a"
) -> int:
    """Start on what is left, without syncs; return how many outputs are there."""
    store = ShuffleStore.open(on_disks(directory, disks))
    try:
        found = set()
        for key in (KEY, OLD):
            for attempt, output in store.map_outputs(key).items():
                assert await fetch(store, output) == content(attempt, LENGTH)
                found.add(MapAttemptKey(key, attempt))
        assert must <= found
        assert not {each.shuffle for each in found} & gone
    finally:
        await store.close()
    return len(found)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", MODES)
async def test_every_prefix_of_the_journal_and_every_lost_end_of_the_arena(tmp_path, host, mode):
    loaded = await load(tmp_path / "store", mode)
    files, must, gone = loaded.moments[-1]
    (arena,) = (path for path in files if path.name.startswith("arena-"))
    (journal,) = (path for path in files if path.name.startswith("journal-"))
    rows, unsynced = files[journal], files[arena].unsynced_pages
    counts = set()
    for size in range(len(rows.synced), len(rows.current) + 1):
        for lost in range(len(unsynced) + 1):
            left = {
                journal: rows.prefix(size),
                arena: files[arena].without(set(unsynced[len(unsynced) - lost :])),
            }
            lay_out(files, tmp_path / "cut", left)
            host()
            counts.add(await check(tmp_path / "cut", must, gone))
    assert counts == ({2} if mode == "commit" else {*range(min(counts), max(counts) + 1)})
    assert max(counts) == 2


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("disks", ["a", "ab"])
@pytest.mark.parametrize("mode", MODES)
async def test_any_lost_pages_at_any_moment(tmp_path, host, mode, disks):
    loaded = await load(tmp_path / "store", mode, disks)
    assert len(loaded.moments) > 5
    generator = random.Random(f"{mode} {disks}")
    for files, must, gone in loaded.moments:
        for _ in range(SAMPLES):
            lay_out(files, tmp_path / "cut", random_loss(files, generator))
            host()
            await check(tmp_path / "cut", must, gone, disks)
        everything = {path: files[path].synced for path in journals_of(files)}
        everything |= {
            path: file.synced for path, file in files.items() if path.name.startswith("arena-")
        }
        lay_out(files, tmp_path / "cut", everything)
        host()
        await check(tmp_path / "cut", must, gone, disks)


async def test_with_an_interval_everything_before_the_last_sync_survives(tmp_path, host):
    settings = on_disks(
        tmp_path / "store", "a", journal_sync="interval", journal_sync_interval_seconds=0.01
    )
    synced = []
    with LostWrites(tmp_path / "store") as recorder:
        store = ShuffleStore.open(settings)
        await put(store, 1, LENGTH)
        (disk,) = store._storage.disks
        await eventually(lambda: not disk.unsynced_bytes)
        await eventually(lambda: not store._journal.tasks)
        files = recorder.files()
        synced = [path for path in files if path.name.startswith(("journal-", "arena-"))]
        await store.close()
    lay_out(files, tmp_path / "cut", {path: files[path].synced for path in synced})
    host()
    assert await check(tmp_path / "cut", {MapAttemptKey(KEY, 1)}, set()) == 1


async def test_closing_syncs_what_waits_for_its_interval(tmp_path):
    settings = on_disks(
        tmp_path / "store", "a", journal_sync="interval", journal_sync_interval_seconds=3600
    )
    with LostWrites(tmp_path / "store") as recorder:
        store = ShuffleStore.open(settings)
        await put(store, 1, LENGTH)
        assert store._storage.disks[0].unsynced_bytes
        await store.close()
        files = recorder.files()
    rows = [file for path, file in files.items() if path.name.startswith(("journal-", "arena-"))]
    assert len(rows) == 2
    for file in rows:
        assert file.synced == file.current


async def test_bytes_are_synced_before_the_row_that_names_them_is_written(tmp_path, monkeypatch):
    calls = []
    pwrite, fdatasync = os.pwrite, os.fdatasync

    def name(fd):
        return os.readlink(f"/proc/self/fd/{fd}").rpartition("/")[2].split("-")[0]

    def write(fd, *given):
        calls.append(("write", name(fd)))
        return pwrite(fd, *given)

    def sync(fd):
        calls.append(("sync", name(fd)))
        fdatasync(fd)

    monkeypatch.setattr(os, "pwrite", write)
    monkeypatch.setattr(os, "fdatasync", sync)
    store = ShuffleStore.open(on_disks(tmp_path, "a", journal_sync="commit"))
    region = await write_region(store, content(1, LENGTH), [LENGTH])
    calls.clear()
    await store.secure(MapAttemptKey(KEY, 1), 1, [region])
    assert calls == [("sync", "arena"), ("write", "journal"), ("sync", "journal")]
    calls.clear()
    store.release_shuffle(KEY)
    released = store.released()
    assert released is not None
    await released
    assert calls == [("write", "releases"), ("sync", "releases"), ("write", "journal")]
    await store.close()


async def test_commits_that_come_together_share_a_sync(tmp_path, monkeypatch):
    store = ShuffleStore.open(on_disks(tmp_path, "a", journal_sync="commit"))
    calls = []
    fdatasync = os.fdatasync

    def sync(fd):
        calls.append(fd)
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", sync)
    await asyncio.gather(*(put(store, attempt, LENGTH) for attempt in range(40)))
    assert len(calls) < 40
    await store.close()


@pytest.mark.parametrize("what", ["arena", "journal"])
async def test_a_failed_sync_fails_the_commit_and_leaves_the_directory_out(
    tmp_path, monkeypatch, what
):
    store = ShuffleStore.open(on_disks(tmp_path, "a", journal_sync="commit"))
    await put(store, 1, LENGTH)
    fdatasync = os.fdatasync
    failures: list[int] = []

    def failing(fd):
        if not failures and what in os.readlink(f"/proc/self/fd/{fd}").rpartition("/")[2]:
            failures.append(fd)
            raise OSError(errno.ENOSPC, "No space left on device")
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", failing)
    region = await write_region(store, content(2, LENGTH), [LENGTH])
    with pytest.raises(JournalWriteFailed, match="fdatasync failed: No space left on device"):
        await store.secure(MapAttemptKey(KEY, 2), 1, [region])
    release_regions([region])
    (disk,) = store._storage.disks
    assert not disk.healthy
    with pytest.raises(StorageFull):
        store.begin_region(KEY, 0, [1])
    output = store.lookup(KEY, 1)
    assert output is not None
    assert await fetch(store, output) == content(1, LENGTH)
    # The journal is rewritten as a new file. The arena is the same file, whose next sync would
    # succeed without the bytes that the kernel dropped.
    assert await store._health.take_back(disk) == (what == "journal")
    if what == "journal":
        await put(store, 3, LENGTH)
    await store.close()
    store = ShuffleStore.open(on_disks(tmp_path, "a", journal_sync="commit"))
    assert sorted(store.map_outputs(KEY)) == ([1, 3] if what == "journal" else [1])
    assert store._storage.disks[0].healthy
    await store.close()


async def test_a_release_is_not_acknowledged_by_the_memory_tiers_journal(tmp_path):
    store = ShuffleStore.open(config(tmp_path, journal_sync="commit"))
    await put(store, 1, LENGTH)
    memory, disk = store._storage.memory, store._storage.disks[0]
    assert memory is not None
    store._journal.files.leave(disk.tier_id)
    store.release_shuffle(KEY)
    released = store.released()
    assert released is not None
    with pytest.raises(JournalWriteFailed):
        await asyncio.wait_for(asyncio.shield(released), PATIENCE_SECONDS)
    await store.close()


async def test_the_memory_tier_is_never_synced(tmp_path, monkeypatch):
    synced = []
    fdatasync = os.fdatasync

    def noted(fd):
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", noted)
    store = ShuffleStore.open(config(tmp_path, journal_sync="commit"))
    await put(store, 1, LENGTH)
    await store.close()
    assert synced
    assert not [path for path in synced if str(tmp_path / "memory") in path]


def test_a_directory_lacks_bytes_after_a_restart_of_the_host_unless_each_commit_was_synced(
    tmp_path, host
):
    for mode in MODES:
        for before in MODES:
            directory = tmp_path / mode / before
            ShuffleStore.open(on_disks(directory, "a", journal_sync=before))._storage.close()
            ShuffleStore.open(on_disks(directory, "a", journal_sync=mode))._storage.close()
            assert not may_lack_bytes(directory / "a")
            host()
            assert may_lack_bytes(directory / "a") == (mode != "commit")
    (tmp_path / "never" / "never" / "a" / BOOT_NAME).unlink()
    assert may_lack_bytes(tmp_path / "never" / "never" / "a")


async def test_stale_bytes_in_the_place_of_a_lost_region_are_found_at_the_start(tmp_path, host):
    """The blocks of both map outputs are alike, so only the region's checksum tells."""
    loaded = await load(tmp_path / "store", "never")
    files, _, _ = loaded.moments[-1]
    (arena,) = (path for path in files if path.name.startswith("arena-"))
    before = loaded.old[arena].current  # with the map output that was released
    assert before.rstrip(b"\0")
    lay_out(files, tmp_path / "cut", {arena: before + files[arena].current[len(before) :]})
    host()
    for _ in range(2):
        assert await check(tmp_path / "cut", {MapAttemptKey(KEY, 2)}, set()) == 1


async def test_a_sync_that_hangs_stops_its_directory_only(tmp_path, monkeypatch):
    store = ShuffleStore.open(on_disks(tmp_path, journal_sync="commit"))
    regions = [await write_region(store, content(each, LENGTH), [LENGTH]) for each in range(2)]
    first, second = (extent_of(MapOutput(KEY, 0, 1, (region,))).tier for region in regions)
    assert first is not second
    entered, go_on = threading.Event(), threading.Event()
    fdatasync = os.fdatasync

    def hanging(fd):
        if fd == first.fd:
            entered.set()
            assert go_on.wait(PATIENCE_SECONDS)
            raise OSError(errno.EIO, "Input/output error")
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", hanging)
    late = store.commit(MapOutput(KEY, 0, 1, (regions[0],)))
    assert await asyncio.to_thread(entered.wait, PATIENCE_SECONDS)
    await store.commit(MapOutput(KEY, 1, 1, (regions[1],)))
    threads = store._storage.threads.of(first.directory)
    threads.abandon("a test")
    with pytest.raises(JournalWriteFailed):
        await late
    release_regions(regions[:1])
    go_on.set()
    await eventually(threads.resume)
    # Its late error counts, although nothing waited for it.
    assert first.sync_failed
    assert not await store._health.take_back(first)
    await put(store, 2, LENGTH)
    await store.close()
