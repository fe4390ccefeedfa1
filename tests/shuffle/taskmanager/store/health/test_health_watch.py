"""A store whose directories fail and come back while it runs."""

import asyncio
import errno
import os
import threading
import time

import pytest

from sluice.shuffle.taskmanager.store.errors import JournalWriteFailed
from sluice.shuffle.taskmanager.store.health import directory_probe, health_watch
from sluice.shuffle.taskmanager.store.health.directory_health import Condition, Finding
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput, arenas_of
from tests.support.mini_cluster import eventually
from tests.support.removal import remove_used
from tests.support.store import (
    KEY,
    config,
    content,
    fetch,
    on_disks,
    put,
    settle,
    tier,
    write_region,
)

SOON_SECONDS = 0.01
PATIENCE_SECONDS = 30


@pytest.fixture
def lost():
    """The map attempts that the store of a test has reported, by shuffle."""
    return {}


@pytest.fixture
async def watched(tmp_path, lost):
    """A store on two directories that are probed all the time."""
    store = ShuffleStore.open(on_disks(tmp_path, health_check_seconds=SOON_SECONDS))
    store.watch(lost.update)
    yield store
    await store.close()


async def filled(store, attempts=6):
    for attempt in range(attempts):
        await put(store, attempt, 10_000)


async def test_a_directory_that_is_removed_costs_its_outputs_at_once(watched, lost, tmp_path):
    await filled(watched)
    remove_used(tmp_path / "a")
    await eventually(lambda: not tier(watched, "a").healthy)
    assert "removed" in tier(watched, "a").reason or "gone" in tier(watched, "a").reason
    assert lost == {KEY: [0, 2, 4]}
    assert sorted(watched.map_outputs(KEY)) == [1, 3, 5]
    assert [n for n in range(6) if watched.why_lost(KEY, n)] == [0, 2, 4]
    assert tier(watched, "a").used_bytes == 0
    for attempt in range(10, 14):
        await put(watched, attempt, 10_000)  # all of them on the other one
    assert tier(watched, "a").used_bytes == 0
    again = await put(watched, 0, 10_000)  # its task has run again
    assert await fetch(watched, again) == content(0, 10_000)
    await watched.close()
    left = ShuffleStore.open(on_disks(tmp_path, "b"))
    assert sorted(left.map_outputs(KEY)) == [0, 1, 3, 5, 10, 11, 12, 13]
    await left.close()


@pytest.mark.parametrize("restarts", [1, 2])
async def test_what_was_lost_stays_lost_when_its_directory_is_back_at_a_start(
    watched, tmp_path, restarts
):
    await filled(watched)
    (tmp_path / "a").rename(tmp_path / "away")
    await eventually(lambda: not tier(watched, "a").healthy)
    watched.release_shuffle(KEY)
    await filled_from(watched, 10)
    await watched.close()
    for _ in range(restarts - 1):
        await ShuffleStore.open(on_disks(tmp_path, "b")).close()
    (tmp_path / "away").rename(tmp_path / "a")
    again = ShuffleStore.open(on_disks(tmp_path))
    assert sorted(again.map_outputs(KEY)) == [10, 11, 12, 13]
    await again.close()


async def test_a_directory_that_was_removed_comes_back_empty(watched, tmp_path):
    await filled(watched)
    remove_used(tmp_path / "a")
    await eventually(lambda: not tier(watched, "a").healthy)
    (tmp_path / "a").mkdir()
    await eventually(lambda: tier(watched, "a").healthy)
    for attempt in range(10, 14):
        await put(watched, attempt, 10_000)
    assert tier(watched, "a").used_bytes > 0
    identity = watched.taskmanager_id
    await watched.close()
    again = ShuffleStore.open(on_disks(tmp_path, "a"))
    assert again.taskmanager_id == identity
    kept = again.map_outputs(KEY)
    assert len(kept) == 2
    for attempt, output in kept.items():
        assert await fetch(again, output) == content(attempt, 10_000)
    await again.close()


async def test_a_lost_directory_gets_a_file_that_nobody_uses(watched, tmp_path):
    """Readers and writers of the lost one still have it open, and get no bytes of the new one."""
    before = next(each for each in watched._tiers.tiers() if each.directory.name == "a")
    kept = os.dup(before.fd)
    under_way = [await write_region(watched, b"x" * 10_000, [10_000]) for _ in range(2)]
    (region,) = [each for each in under_way if before.tier_id in arenas_of([each])]
    assert region.extent is not None
    next((tmp_path / "a").glob("journal-*")).unlink()
    await eventually(lambda: not before.healthy)
    await eventually(lambda: tier(watched, "a").healthy)
    for attempt in range(10, 14):
        await put(watched, attempt, 10_000)
    assert os.pread(kept, 10_000, region.extent.offset) == b"x" * 10_000
    with pytest.raises(JournalWriteFailed, match="left out"):
        await watched.commit(MapOutput(KEY, 1, 1, (region,)))
    assert len(list((tmp_path / "a").glob("arena-*"))) == 1
    os.close(kept)


@pytest.mark.parametrize("name", ["bad", "memory"])
async def test_a_directory_of_a_wrong_start_is_used_when_it_is_mended(tmp_path, name):
    bad = tmp_path / name
    bad.touch()
    store = ShuffleStore.open(
        config(
            tmp_path,
            data_directories=(tmp_path / "bad", tmp_path / "good"),
            health_check_seconds=SOON_SECONDS,
        )
    )
    store.watch(lambda lost: None)
    assert not tier(store, name).healthy
    bad.unlink()
    bad.mkdir()
    await eventually(lambda: tier(store, name).healthy)
    assert len(store.tiers()) == 3
    await store.close()


async def test_a_disk_that_fails_is_left_out_with_its_data_and_comes_back(
    watched, lost, monkeypatch
):
    await filled(watched)
    with monkeypatch.context() as broken:
        broken.setattr(directory_probe, "_write_and_read", failing_in("a", errno.EIO))
        await eventually(lambda: not tier(watched, "a").healthy)
        assert os.strerror(errno.EIO) in tier(watched, "a").reason
        assert tier(watched, "b").healthy
        for attempt, output in watched.map_outputs(KEY).items():
            assert await fetch(watched, output) == content(attempt, 10_000)
        before = tier(watched, "a").used_bytes
        await filled_from(watched, 10)
        assert tier(watched, "a").used_bytes == before
    await eventually(lambda: tier(watched, "a").healthy)
    await filled_from(watched, 20)
    assert tier(watched, "a").used_bytes > before
    assert not lost


async def filled_from(store, first):
    for attempt in range(first, first + 4):
        await put(store, attempt, 10_000)


def failing_in(name, number):
    real = directory_probe._write_and_read

    def fail(path):
        if path.parent.name == name:
            raise OSError(number, os.strerror(number))
        return real(path)

    return fail


async def test_a_journal_that_failed_is_written_anew_with_the_releases_it_missed(
    watched, monkeypatch, tmp_path
):
    await filled(watched)
    with monkeypatch.context() as broken:
        broken.setattr(directory_probe, "_write_and_read", failing_in("a", errno.EIO))
        broken.setattr(os, "pwrite", failing_journal_in("a"))
        await eventually(lambda: not tier(watched, "a").healthy)
        with pytest.raises(JournalWriteFailed):
            await watched._journal.commit(watched.map_outputs(KEY)[0])
        watched.release_shuffle(KEY)
        await settle(watched)
    await eventually(lambda: tier(watched, "a").healthy)
    await filled_from(watched, 10)
    await watched.close()
    again = ShuffleStore.open(on_disks(tmp_path))
    assert sorted(again.map_outputs(KEY)) == [10, 11, 12, 13]
    await again.close()


def failing_journal_in(name):
    real = os.pwrite

    def fail(fd, data, offset):
        if os.readlink(f"/proc/self/fd/{fd}").split("/")[-2] == name:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, data, offset)

    return fail


async def test_a_disk_that_does_not_answer_is_left_out_meanwhile(tmp_path, monkeypatch):
    held, proceed = threading.Event(), threading.Event()

    def hang(probed):
        if probed.directory.name == "a" and not proceed.is_set():
            held.set()
            assert proceed.wait(PATIENCE_SECONDS)
        return Finding(Condition.GOOD)

    monkeypatch.setattr(health_watch, "probe", hang)
    store = ShuffleStore.open(
        config(
            tmp_path,
            data_directories=(tmp_path / "a", tmp_path / "b"),
            health_check_seconds=SOON_SECONDS,
            slow_disk_seconds=1,
        )
    )
    store.watch(lambda lost: None)
    await eventually(held.is_set)
    await eventually(lambda: not tier(store, "a").healthy)
    assert "slow" in tier(store, "a").reason
    await eventually(lambda: tier(store, "b").healthy)
    proceed.set()
    await eventually(lambda: tier(store, "a").healthy)
    await store.close()


async def test_a_late_loop_says_nothing_about_a_disk(tmp_path, monkeypatch):
    """A probe ends in time, while a turn of the loop takes longer than a probe may take."""
    loop, entered, probes = asyncio.get_running_loop(), threading.Event(), []

    def take_a_turn() -> None:
        entered.set()
        time.sleep(1.5)

    def quick(probed):
        if not entered.is_set():
            loop.call_soon_threadsafe(take_a_turn)
            assert entered.wait(PATIENCE_SECONDS)
        probes.append(probed)
        return Finding(Condition.GOOD)

    monkeypatch.setattr(health_watch, "probe", quick)
    store = ShuffleStore.open(
        on_disks(tmp_path, names="a", health_check_seconds=SOON_SECONDS, slow_disk_seconds=1)
    )
    left_out = []
    monkeypatch.setattr(store._health, "leave_out", lambda *given: left_out.append(given))
    store.watch(lambda lost: None)
    await eventually(lambda: len(probes) >= 2)
    assert not left_out
    await store.close()
