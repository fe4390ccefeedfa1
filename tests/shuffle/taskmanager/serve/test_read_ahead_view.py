"""Unexpected errors on the way to a read cost one channel, and no segment."""

from __future__ import annotations

import asyncio
import os

import pytest

from sluice.protocol.errors import SluiceError
from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.names import SubpartitionRange
from sluice.shuffle.taskmanager.serve.read_ahead_view import ReadAheadView, stored_view
from sluice.shuffle.taskmanager.serve.stored_partition_view import ReadSizes, StoredPartitionView
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.tiers.disk_tier import DiskTier
from tests.support.store import KEY, config, content, put, slices_of

SIZE = 1024
SEGMENTS = 4
LENGTH = 3 * SIZE
MUCH = 1000


class Rig:
    """A store with one map output on disk, and a pool to read it with."""

    def __init__(self, store: ShuffleStore) -> None:
        self.store = store
        self.network_pool = NetworkBufferPool(SEGMENTS, SIZE)
        self.pool = self.network_pool.create_local_pool("reads", 1, SEGMENTS)
        self.available = asyncio.Event()

    def view(self) -> StoredPartitionView:
        return stored_view(
            self.store,
            slices_of(self.store.map_outputs(KEY).values(), SubpartitionRange(KEY, 0, 4)),
            SubpartitionRange(KEY, 0, 4),
            ReadSizes(SIZE, SIZE, SIZE),
            lambda: self.pool,
            self.available.set,
            lambda _: None,
        )

    async def read(self, view: StoredPartitionView, length: int = LENGTH) -> bytes:
        read = b""
        async with asyncio.timeout(20):
            while len(read) < length:
                buffer = view.next_buffer(MUCH)
                if buffer is None:
                    await self.available.wait()
                    self.available.clear()
                    continue
                read += bytes(buffer.payload)
                if buffer.release is not None:
                    buffer.release()
        return read


@pytest.fixture
async def rig(tmp_path):
    store = ShuffleStore.open(config(tmp_path, memory_tier_bytes=0))
    await put(store, 1, LENGTH)
    rig = Rig(store)
    yield rig
    await store.close()


def break_reads(monkeypatch) -> None:
    """Break the read from the page cache with an unexpected error, as a bug would."""

    def broken(reads):
        raise AttributeError("module 'os' has no attribute 'RWF_NOWAIT'")

    monkeypatch.setattr("sluice.shuffle.taskmanager.store.shuffle_store.read_cached", broken)


async def test_an_unexpected_error_of_a_cached_read_returns_its_segments(rig, monkeypatch):
    break_reads(monkeypatch)
    view = rig.view()
    with pytest.raises(SluiceError, match="AttributeError"):
        view.next_buffer(MUCH)
    assert view.failure is not None
    view.release()
    assert rig.pool.lent_segments == 0


async def test_a_failed_channel_does_not_disturb_the_next_one(rig, monkeypatch):
    with monkeypatch.context() as patch:
        break_reads(patch)
        failing = rig.view()
        with pytest.raises(SluiceError):
            failing.next_buffer(MUCH)
    failing.release()
    view = rig.view()
    assert await rig.read(view) == content(1, LENGTH)
    view.release()
    assert rig.pool.lent_segments == 0


@pytest.mark.interpreted
async def test_an_error_after_a_wait_for_a_segment_fails_the_channel(rig, monkeypatch):
    """Otherwise its reader would wait forever: it gets no other notification."""
    taken = [rig.pool.request_segment_nowait() for _ in range(SEGMENTS)]
    view = rig.view()
    assert view.next_buffer(MUCH) is None

    def broken(*_):
        raise AttributeError("a bug")

    monkeypatch.setattr(ReadAheadView, "_start_reading", broken)
    rig.pool.recycle_together(taken)
    assert rig.available.is_set()
    assert view.is_available(MUCH)
    with pytest.raises(SluiceError, match="AttributeError"):
        view.next_buffer(MUCH)
    view.release()
    assert rig.pool.lent_segments == 0


def told_ranges(monkeypatch) -> list[tuple[int, int]]:
    """Return a list that grows by the ranges that disks are told of, by offset and length."""
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(DiskTier, "will_need", lambda self, places: told.extend(places))
    return told


@pytest.mark.interpreted
async def test_disks_are_told_what_a_view_reads_next_unless_the_page_cache_has_it(rig, monkeypatch):
    told = told_ranges(monkeypatch)
    more = 8 * SIZE
    await put(rig.store, 2, more)
    # The first read takes all segments; the disks are told what comes behind it.
    for is_cold, expected in ((False, 0), (True, LENGTH + more - SEGMENTS * SIZE)):
        for disk in rig.store._storage.disks:
            disk.can_read_cached = not is_cold
        view = rig.view()
        assert await rig.read(view, LENGTH + more) == content(1, LENGTH) + content(2, more)
        view.release()
        assert sum(length for _, length in told) == expected


@pytest.mark.interpreted
async def test_a_released_view_tells_the_disks_nothing(rig, monkeypatch):
    told = told_ranges(monkeypatch)
    await put(rig.store, 2, 8 * SIZE)
    for disk in rig.store._storage.disks:
        disk.can_read_cached = False
    view = rig.view()
    assert view.next_buffer(MUCH) is None
    view.release()
    await rig.store.close()  # after all calls of its threads
    assert told == []


async def test_a_python_without_rwf_nowait_reads_the_disk_in_threads(rig, monkeypatch):
    monkeypatch.delattr(os, "RWF_NOWAIT")
    view = rig.view()
    assert await rig.read(view) == content(1, LENGTH)
    view.release()
    assert rig.pool.lent_segments == 0
    assert not any(disk.can_read_cached for disk in rig.store._storage.disks)
