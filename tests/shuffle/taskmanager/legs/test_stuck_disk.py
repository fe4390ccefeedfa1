"""A producer and a consumer whose TaskManager has a disk that hangs, beside others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.protocol.errors import ErrorCode, SluiceError
from tests.support.mini_cluster import (
    DISK_ONLY,
    SEGMENT_SIZE_BYTES,
    MiniCluster,
    eventually,
    mini_cluster,
    network_leftovers,
)
from tests.support.stuck_directory import StuckDirectory
from tests.support.wire_clients import read_gate, write_map_output

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    import pytest

SHUFFLE = 1
APPLICATION = "app"
CONTENT = b"x" * (3 * SEGMENT_SIZE_BYTES)


def disk(cluster: MiniCluster, name: str):
    return next(each for each in cluster[0].store._storage.disks if each.directory.name == name)


async def write(cluster: MiniCluster, attempt: int) -> None:
    client = await cluster.producer(0, APPLICATION)
    await write_map_output(client, SHUFFLE, attempt, [[CONTENT]])


async def read(cluster: MiniCluster, attempt: int) -> bytes:
    client = await cluster.consumer(0, APPLICATION)
    (got,) = await read_gate(client, SHUFFLE, [(client.ack, [attempt])], 0, 1)
    return got


async def failure(work: Coroutine[object, object, object]) -> SluiceError | None:
    """The error of a task, None if it succeeds."""
    try:
        await work
    except SluiceError as error:
        return error
    return None


async def test_tasks_fail_by_name_or_go_on_and_no_segment_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    disks = (tmp_path / "a", tmp_path / "b")
    stuck = StuckDirectory(monkeypatch, disks[1])
    async with mini_cluster(
        tmp_path,
        1,
        data_directories=disks,
        memory_tier_bytes=DISK_ONLY,
        health_check_seconds=0.01,
        slow_disk_seconds=0.5,
    ) as cluster:
        for attempt in range(2):
            await write(cluster, attempt)
        stuck.hang()
        failed = [error for n in range(10, 14) if (error := await failure(write(cluster, n)))]
        assert len(failed) == 1  # the others wrote to the other disk
        for each in cluster[0].store._storage.disks:
            each.can_read_cached = False  # as if the page cache had nothing
        failed += [error for n in range(2) if (error := await failure(read(cluster, n)))]
        assert [error.code for error in failed] == 2 * [ErrorCode.STORAGE_UNAVAILABLE]
        assert all(str(disks[1]) in str(error) for error in failed)
        pool = cluster[0].network_pool
        assert pool.available_segments < pool.total_segments  # the thread still uses some
        stuck.answer()
        await eventually(lambda: disk(cluster, "b").healthy)
        await eventually(lambda: pool.available_segments == pool.total_segments)
        for attempt in range(2):
            assert await read(cluster, attempt) == CONTENT
        for attempt in range(20, 24):
            await write(cluster, attempt)
        await eventually(
            lambda: not any("segment" in each for each in network_leftovers(cluster[0]))
        )
    assert stuck.touched_in_loop == []
