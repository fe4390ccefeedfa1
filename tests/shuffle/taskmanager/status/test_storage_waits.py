"""Waits for storage directories: reads, writes and commits at a disk that hangs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.shuffle.taskmanager.status.rig import causes, pairs, wait_of, waits
from tests.support.mini_cluster import (
    DISK_ONLY,
    SEGMENT_SIZE_BYTES,
    eventually,
    mini_cluster,
)
from tests.support.stuck_directory import StuckDirectory
from tests.support.wire_clients import open_gate, write_map_output

if TYPE_CHECKING:
    from pathlib import Path

SHUFFLE = 1
CONTENT = bytes(40 * SEGMENT_SIZE_BYTES)


async def test_a_writer_waits_for_the_directory_of_its_region(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    stuck = StuckDirectory(monkeypatch, tmp_path / "d", calls=("pwrite", "pwritev"))
    async with mini_cluster(
        tmp_path, 1, data_directories=(tmp_path / "d",), memory_tier_bytes=DISK_ONLY
    ) as cluster:
        client = await cluster.producer(0)
        stuck.hang()
        writing = asyncio.create_task(write_map_output(client, SHUFFLE, 7, [[CONTENT]]))
        await eventually(lambda: ("map_output", "directory") in pairs(cluster))
        await eventually(lambda: ("application", "directory") in pairs(cluster))
        found = wait_of(cluster, "map_output", "directory")
        assert found.waiter.name == "map output 7 of shuffle 1"
        assert found.resource.name == str(tmp_path / "d")
        assert found.seconds is not None
        calls = wait_of(cluster, "application", "directory")
        assert calls.resource == found.resource
        assert "under way" in calls.text
        stuck.answer()
        await writing
        await eventually(lambda: not waits(cluster))


async def test_a_commit_waits_for_the_journal_of_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    stuck = StuckDirectory(monkeypatch, tmp_path / "d", ("journal",), ("pwrite",))
    async with mini_cluster(
        tmp_path, 1, data_directories=(tmp_path / "d",), memory_tier_bytes=DISK_ONLY
    ) as cluster:
        client = await cluster.producer(0)
        stuck.hang()
        writing = asyncio.create_task(write_map_output(client, SHUFFLE, 7, [[CONTENT]]))
        await stuck.holds()
        found = wait_of(cluster, "map_output", "directory")
        assert "commit" in found.text
        assert found.seconds is not None
        stuck.answer()
        await writing
        await eventually(lambda: not waits(cluster))


@pytest.mark.parametrize("reader_at", [0, 1], ids=["local", "remote"])
async def test_a_gate_waits_for_the_directory_that_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader_at: int
):
    stuck = StuckDirectory(monkeypatch, tmp_path / "tm0" / "data", calls=("preadv", "pread"))
    async with mini_cluster(tmp_path, memory_tier_bytes=DISK_ONLY) as cluster:
        ack = await cluster.write(0, 7, [[CONTENT]])
        for each in cluster[0].store._storage.disks:
            each.can_read_cached = False
        client = await cluster.consumer(reader_at)
        stuck.hang()
        gate = open_gate(client, SHUFFLE, [(ack, [7])], 0, 1)
        waiter = "channels" if reader_at else "gate"
        await eventually(lambda: (waiter, "directory") in pairs(cluster))
        directory = str(tmp_path / "tm0" / "data")
        assert wait_of(cluster, waiter, "directory").resource.name == directory
        if reader_at:
            there = wait_of(cluster, "gate", "taskmanager", 1)
            assert causes(waits(cluster, 1), there.waiter) == {there.resource}
        stuck.answer()
        await gate.read_all()
        await gate.close()
        await eventually(lambda: not waits(cluster, 0) + waits(cluster, 1))


async def test_calls_wait_for_the_turn_of_their_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    stuck = StuckDirectory(monkeypatch, tmp_path / "d", calls=("pwrite", "pwritev"))
    async with mini_cluster(
        tmp_path, 1, data_directories=(tmp_path / "d",), memory_tier_bytes=DISK_ONLY
    ) as cluster:
        names = ["a", "b", "c", "d"]
        clients = [await cluster.producer(0, name) for name in names]
        stuck.hang()
        content = [[bytes(SEGMENT_SIZE_BYTES)]]
        writing = [
            asyncio.create_task(write_map_output(each, SHUFFLE, 7, content)) for each in clients
        ]
        await eventually(lambda: _at_the_directory(cluster) == names)
        texts = {
            each.text.partition(" for")[0]
            for each in waits(cluster)
            if each.waiter.kind == "application"
        }
        assert texts == {
            "1 reads and writes are under way, 0 wait",
            "0 reads and writes are under way, 1 wait",
        }
        stuck.answer()
        await asyncio.gather(*writing)
        await eventually(lambda: not waits(cluster))


def _at_the_directory(cluster):
    found = waits(cluster)
    return sorted(each.waiter.name for each in found if each.waiter.kind == "application")
