"""A greedy application on many connections, and an innocent one that must get its turns."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.schema import BeginRegion, OpenPartition, PartitionOpened
from sluice.shuffle.names import ShuffleKey
from sluice.shuffle.taskmanager.store.tiers.disk_tier import DiskTier
from tests.support.mini_cluster import (
    DISK_ONLY,
    SEGMENT_SIZE_BYTES,
    MiniCluster,
    eventually,
    mini_cluster,
)
from tests.support.wire_clients import read_gate, write_map_output

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])

GREEDY, INNOCENT = "greedy", "innocent"
MANY, FEW = 12, 2
"""Connections of the greedy application and of the innocent one."""

SHUFFLE = 1


def content(application: str) -> bytes:
    """A map output that tells its owner; a thread reads or writes it in one call."""
    return application[:1].encode() * SEGMENT_SIZE_BYTES


class SlowDisk:
    """Holds the first call until all others wait; notes whose bytes are moved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
        self.served: list[str] = []
        self.entered, self._proceed = threading.Event(), threading.Event()
        real = getattr(DiskTier, method)

        def held(tier: DiskTier, offset: int, buffers: list[memoryview]) -> None:
            self.entered.set()
            assert self._proceed.wait(20)
            real(tier, offset, buffers)
            self.served.append(chr(buffers[0][0]))

        monkeypatch.setattr(DiskTier, method, held)

    async def serve(
        self,
        cluster: MiniCluster,
        greedy: list[Coroutine[object, object, object]],
        innocent: list[Coroutine[object, object, object]],
    ) -> None:
        """Let all wait, the innocent ones last; then serve them."""
        tasks = [asyncio.ensure_future(greedy[0])]
        assert await asyncio.to_thread(self.entered.wait, 20)
        threads = cluster[0].store._storage.disks[0].threads
        for each in (*greedy[1:], *innocent):
            tasks.append(asyncio.ensure_future(each))
            await eventually(lambda: threads.waiting == len(tasks) - 1)
        self._proceed.set()
        await asyncio.gather(*tasks)

    def check(self) -> None:
        """Check that before each call of the innocent there are as many of the greedy at most."""
        assert sorted(self.served) == ["g"] * MANY + ["i"] * FEW
        turns = [number for number, owner in enumerate(self.served) if owner == "i"]
        for mine, turn in enumerate(turns):
            assert turn - mine <= mine + 1, self.served  # and the one that had begun


@asynccontextmanager
async def one_thread(tmp_path, **settings) -> AsyncIterator[MiniCluster]:
    async with mini_cluster(tmp_path, 1, io_threads=1, **settings) as cluster:
        yield cluster


async def write(cluster: MiniCluster, application: str, attempt: int) -> None:
    client = await cluster.producer(0, application)
    await write_map_output(client, SHUFFLE, attempt, [[content(application)]])


async def read(cluster: MiniCluster, application: str, attempt: int) -> bytes:
    client = await cluster.consumer(0, application)
    (got,) = await read_gate(client, SHUFFLE, [(client.ack, [attempt])], 0, 1)
    return got


async def test_writes_take_turns(tmp_path, monkeypatch):
    disk = SlowDisk(monkeypatch, "write")
    async with one_thread(tmp_path, memory_tier_bytes=DISK_ONLY) as cluster:
        await disk.serve(
            cluster,
            [write(cluster, GREEDY, attempt) for attempt in range(MANY)],
            [write(cluster, INNOCENT, attempt) for attempt in range(FEW)],
        )
        disk.check()


@pytest.mark.interpreted
async def test_reads_take_turns(tmp_path, monkeypatch):
    async with one_thread(tmp_path, memory_tier_bytes=DISK_ONLY) as cluster:
        for application, number in ((GREEDY, MANY), (INNOCENT, FEW)):
            for attempt in range(number):
                await write(cluster, application, attempt)
        for each in cluster[0].store._storage.disks:
            each.can_read_cached = False  # as if the page cache had nothing
        disk = SlowDisk(monkeypatch, "read")
        await disk.serve(
            cluster,
            [read(cluster, GREEDY, attempt) for attempt in range(MANY)],
            [read(cluster, INNOCENT, attempt) for attempt in range(FEW)],
        )
        disk.check()
        assert await read(cluster, INNOCENT, 0) == content(INNOCENT)


async def test_the_memory_tier_has_room_for_one_that_comes_anew(tmp_path):
    """Regions that are announced and never sent do not take all of it."""
    regions = 16
    async with one_thread(tmp_path, memory_tier_bytes=regions * SEGMENT_SIZE_BYTES) as cluster:
        store = cluster[0].store
        for attempt in range(regions):
            client = await cluster.producer(0, GREEDY)
            client.send(OpenPartition(0, SHUFFLE, attempt, 1))
            client.send(BeginRegion(0, 0, 0, [SEGMENT_SIZE_BYTES], 0))
            await client.expect(PartitionOpened)
        await eventually(lambda: sum(tier.extents for tier in store.tiers()) == regions)
        assert [tier.extents for tier in store.tiers()] == [14, 2]
        assert store.memory_refusals == 2
        for attempt in range(FEW):
            await write(cluster, INNOCENT, attempt)
        outputs = store.map_outputs(ShuffleKey(INNOCENT, SHUFFLE)).values()
        extents = [output.regions[0].extent for output in outputs]
        assert [extent is not None and extent.in_memory for extent in extents] == [True] * FEW
