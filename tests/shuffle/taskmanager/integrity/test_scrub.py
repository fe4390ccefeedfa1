"""The scrub finds damage at rest before a reader does, and never goes before other work."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.taskmanager.bounds.accounts import Accounts
from sluice.shuffle.taskmanager.integrity import scrub
from sluice.shuffle.taskmanager.integrity.damage_checks import DamageChecks
from sluice.shuffle.taskmanager.store.errors import DirectoryHangs
from sluice.shuffle.taskmanager.store.files import file_calls
from sluice.shuffle.taskmanager.store.output_index import DAMAGED
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
from sluice.shuffle.taskmanager.store.tiers import disk_tier
from tests.support.copies import KEY, copying, read, write
from tests.support.damage import damage
from tests.support.mini_cluster import eventually, mini_cluster
from tests.support.store import KEY as STORED
from tests.support.store import content, extent_of, fetch, put, tier
from tests.support.watched_disks import watched_disks, written

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sluice.shuffle.taskmanager.store.tiers.tier import Tier
    from tests.support.mini_cluster import MiniCluster

TIERS = pytest.mark.parametrize("tier", [{}, {"memory_tier_bytes": 0}], ids=["memory", "disk"])
ON_DISK: dict[str, Any] = {"memory_tier_bytes": 0}
FAST: dict[str, Any] = {"scrub_bytes_per_second": 1 << 40}
LARGE = bytes(700_000)


def attempts(cluster: MiniCluster) -> set[int]:
    return set(cluster[0].store.map_outputs(KEY))


@TIERS
async def test_a_pass_drops_what_is_damaged_and_nothing_else(tmp_path, tier):
    async with mini_cluster(tmp_path, 1, **tier, **FAST) as cluster:
        for attempt, content in enumerate([LARGE, b"more", LARGE]):
            await cluster.write(0, attempt, [[content]])
        await damage(cluster[0], 1, at=1)
        await damage(cluster[0], 2, at=600_000)
        assert await cluster[0].scrub.run_once()
        assert attempts(cluster) == {0}
        assert cluster[0].store.lost_of("app") == {KEY: [1, 2]}
        status = cluster[0].scrub.status()
        assert status.read_bytes == 2 * len(LARGE) + 4
        assert status.passes == 1
        assert status.pass_age_seconds is not None


async def test_outputs_that_a_pass_drops_come_back_from_a_copy(tmp_path):
    async with copying(tmp_path, 2, **ON_DISK, **FAST) as (cluster, _):
        await write(cluster[0], 7, [[LARGE]])
        before = cluster[0].store.lookup(KEY, 7)
        await damage(cluster[0], 7)
        await cluster[0].scrub.run_once()
        await eventually(lambda: cluster[0].store.lookup(KEY, 7) not in (None, before))
        assert await read(cluster[0], 7, 1) == LARGE
        assert cluster[0].store.statistics().repaired_map_outputs == 1


async def test_regions_are_read_in_the_order_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(scrub, "WINDOW", 2)
    monkeypatch.setattr(scrub, "CHUNK", 3)
    seen: list[int] = []

    def recorded(tier: Tier, offset: int, length: int, value: int) -> int:
        seen.append(offset)
        return tier.checksum(offset, length, value)

    monkeypatch.setattr(scrub, "checksum_of", recorded)
    async with mini_cluster(tmp_path, 1, **FAST) as cluster:
        for attempt in (5, 3, 4, 1, 2, 0):
            await cluster.write(0, attempt, [[bytes(10_000)]])
        await cluster[0].scrub.run_once()
    assert len(seen) == 6
    assert seen == sorted(seen)


async def test_a_released_output_is_skipped(tmp_path, monkeypatch):
    async with mini_cluster(tmp_path, 1, **FAST) as cluster:
        await cluster.write(0, 7, [[LARGE]])
        output = cluster[0].store.lookup(KEY, 7)
        window = cluster[0].scrub._window

        async def then_released(tier: Tier, position: int) -> Any:
            found = await window(tier, position)
            if found:
                cluster[0].store.release_shuffle(KEY)
            return found

        monkeypatch.setattr(cluster[0].scrub, "_window", then_released)
        assert await cluster[0].scrub.run_once()
        assert isinstance(output, MapOutput)
        assert cluster[0].scrub.status().read_bytes == 0
        assert not cluster[0].store.lost_of("app")


async def test_a_directory_that_hangs_leaves_the_pass_incomplete(tmp_path, monkeypatch):
    def hangs(tier: Tier, offset: int, length: int, value: int) -> int:
        raise DirectoryHangs(tmp_path, "it hangs")

    monkeypatch.setattr(scrub, "checksum_of", hangs)
    async with mini_cluster(tmp_path, 1, **FAST) as cluster:
        await cluster.write(0, 7, [[LARGE]])
        assert not await cluster[0].scrub.run_once()
        assert cluster[0].scrub.status().passes == 0
        assert attempts(cluster) == {7}


async def test_a_region_that_cannot_be_read_is_read_again_as_for_a_reader(tmp_path, monkeypatch):
    def fails(tier: Tier, offset: int, length: int, value: int) -> int:
        raise OSError("once")

    monkeypatch.setattr(scrub, "checksum_of", fails)
    async with mini_cluster(tmp_path, 1, **FAST) as cluster:
        await cluster.write(0, 7, [[LARGE]])
        assert await cluster[0].scrub.run_once()
        assert attempts(cluster) == {7}


def failing_reads(name: str, after: int = 0):
    """Return reads of the disk, and of the page cache, that fail in a directory from an offset."""
    real, without_waiting = file_calls.read_into, file_calls.read_without_waiting

    def is_bad(fd: int, offset: int) -> bool:
        return f"/{name}/" in os.readlink(f"/proc/self/fd/{fd}") and offset >= after

    def read(fd: int, buffers: list[memoryview], offset: int) -> int:
        if is_bad(fd, offset):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, buffers, offset)

    def read_cached(fd: int, buffers: list[memoryview], offset: int) -> int:
        if is_bad(fd, offset):
            raise BlockingIOError
        return without_waiting(fd, buffers, offset)

    return {"read_into": read, "read_without_waiting": read_cached}


async def commit_on(store: ShuffleStore, name: str, numbers: Iterable[int]) -> None:
    for attempt in numbers:
        region = await written(store, name, attempt)
        await store.commit(MapOutput(STORED, attempt, 1, (region,)))


async def test_a_disk_that_fails_for_a_while_loses_nothing(tmp_path, monkeypatch):
    store = ShuffleStore.open(watched_disks(tmp_path), Accounts())
    store.watch(lambda lost: None)
    await commit_on(store, "b", range(10))
    damage_checks = DamageChecks(store)
    scrub_of_store = scrub.Scrub(store, damage_checks, 1 << 40)
    with monkeypatch.context() as broken:
        for name, fails in failing_reads("b").items():
            broken.setattr(disk_tier, name, fails)
        assert not await scrub_of_store.run_once()
        assert await damage_checks.verify(store.map_outputs(STORED)[0]) is None
    await eventually(lambda: tier(store, "b").healthy)
    assert await scrub_of_store.run_once()
    assert damage_checks.dropped == 0
    assert sorted(store.map_outputs(STORED)) == [*range(10)]
    await store.close()


async def test_an_output_that_cannot_be_read_again_is_dropped(tmp_path, monkeypatch):
    store = ShuffleStore.open(watched_disks(tmp_path), Accounts())
    await commit_on(store, "b", range(3))
    damage_checks = DamageChecks(store)
    scrub_of_store = scrub.Scrub(store, damage_checks, 1 << 40)
    last = max(extent_of(each).offset for each in store.map_outputs(STORED).values())
    for name, fails in failing_reads("b", last).items():
        monkeypatch.setattr(disk_tier, name, fails)
    assert not await scrub_of_store.run_once()
    assert not tier(store, "b").healthy
    assert not await scrub_of_store.run_once()  # it has not come back
    assert len(store.map_outputs(STORED)) == 3
    store.watch(lambda lost: None)
    await eventually(lambda: tier(store, "b").healthy)
    assert await scrub_of_store.run_once()
    assert damage_checks.dropped == 1
    assert len(store.map_outputs(STORED)) == 2
    await store.close()


async def test_an_output_committed_again_during_a_failed_read_is_kept(tmp_path, monkeypatch):
    store = ShuffleStore.open(watched_disks(tmp_path, "a"), Accounts())
    output = await put(store, 7, 20_000)
    scrub_of_store = scrub.Scrub(store, DamageChecks(store), 1 << 40)
    scrub_of_store._unread[extent_of(output).tier] = output.regions[0]

    async def committed_again(*args):
        if store.lookup(STORED, 7) is output:
            store.drop(output, DAMAGED)
            await put(store, 7, 20_000)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(scrub_of_store, "_checksum", committed_again)
    await scrub_of_store.run_once()
    assert await fetch(store, store.map_outputs(STORED)[7]) == content(7, 20_000)
    with pytest.raises(ValueError, match="is not here"):
        store.drop(output, DAMAGED)
    await store.close()


async def test_a_region_that_is_read_again_may_fail_once_more(tmp_path, monkeypatch):
    store = ShuffleStore.open(watched_disks(tmp_path, "a"), Accounts())
    output = await put(store, 7, 20_000)
    scrub_of_store = scrub.Scrub(store, DamageChecks(store), 1 << 40)
    scrub_of_store._unread[extent_of(output).tier] = output.regions[0]
    assert await scrub_of_store.run_once()

    async def fails(*args):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(scrub_of_store, "_checksum", fails)
    await scrub_of_store.run_once()
    assert store.lookup(STORED, 7) is output
    await store.close()


async def test_the_scrub_runs_at_its_time_and_ends_with_the_taskmanager(tmp_path, monkeypatch):
    monkeypatch.setattr(scrub, "PASS_SECONDS", 0.01)
    async with mini_cluster(tmp_path, 1, **FAST) as cluster:
        await cluster.write(0, 7, [[LARGE]])
        await damage(cluster[0], 7)
        await eventually(lambda: not attempts(cluster))
        await eventually(lambda: cluster[0].scrub.status().passes > 1)


async def test_the_scrub_can_be_turned_off(tmp_path, monkeypatch):
    monkeypatch.setattr(scrub, "PASS_SECONDS", 0.0)
    async with mini_cluster(tmp_path, 1, scrub_bytes_per_second=0) as cluster:
        assert cluster[0].scrub._task is None


async def test_a_bug_does_not_end_the_scrub(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(scrub, "PASS_SECONDS", 0.01)
    passes = 0

    async def broken(self: scrub.Scrub) -> bool:
        nonlocal passes
        passes += 1
        raise RuntimeError("a bug")

    monkeypatch.setattr(scrub.Scrub, "run_once", broken)
    async with mini_cluster(tmp_path, 1):
        await eventually(lambda: passes > 1)
    assert "a bug" in caplog.text


@TIERS
async def test_a_pass_can_be_cancelled_while_it_reads(tmp_path, monkeypatch, tier):
    begun, go_on = threading.Event(), threading.Event()

    async with mini_cluster(tmp_path, 1, **tier, **FAST) as cluster:
        await cluster.write(0, 7, [[LARGE]])

        def slow(tier: Tier, offset: int, length: int, value: int) -> int:
            begun.set()
            go_on.wait(60)
            return value

        monkeypatch.setattr(scrub, "checksum_of", slow)
        running = asyncio.create_task(cluster[0].scrub.run_once())
        await asyncio.to_thread(begun.wait, 60)
        running.cancel()
        await asyncio.sleep(0)
        assert not running.done()  # a thread reads the extent
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert attempts(cluster) == {7}


async def test_the_rate_is_asked_before_each_piece(tmp_path, monkeypatch):
    taken: list[int] = []

    async def take(length: int) -> None:
        taken.append(length)

    async with mini_cluster(tmp_path, 1) as cluster:
        await cluster.write(0, 7, [[LARGE]])
        monkeypatch.setattr(cluster[0].scrub._rate, "take", take)
        await cluster[0].scrub.run_once()
    assert taken == [262_144, 262_144, 700_000 - 2 * 262_144]


async def test_another_application_is_scrubbed_too(tmp_path):
    async with mini_cluster(tmp_path, 1, **FAST) as cluster:
        client = await cluster.producer(0, "other")
        from tests.support.wire_clients import write_map_output

        await write_map_output(client, 1, 0, [[LARGE]])
        await cluster[0].scrub.run_once()
        assert cluster[0].scrub.status().read_bytes == len(LARGE)
        assert cluster[0].store.lookup(ShuffleKey("other", 1), 0) is not None
