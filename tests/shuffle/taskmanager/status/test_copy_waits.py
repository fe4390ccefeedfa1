"""Waits of copies and moves: for a TaskManager, for the rate, and for the driver."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from sluice.protocol.schema import MoveNoted, OutputsMoved
from sluice.shuffle.taskmanager.bounds.rate_limit import RateLimit
from sluice.shuffle.taskmanager.replicas.target import PeerTarget
from tests.shuffle.taskmanager.status.rig import causes, pairs, wait_of, waits
from tests.support.copies import copying, drivers, end_application, write
from tests.support.mini_cluster import eventually, mini_cluster

if TYPE_CHECKING:
    import pytest

SMALL = [[b"abc"]]


class Gate:
    """Holds the calls of a method until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> None:
        self.opened = opened = asyncio.Event()
        real = getattr(owner, method)

        async def held(self: Any, *args: Any, **keys: Any) -> Any:
            await opened.wait()
            return await real(self, *args, **keys)

        monkeypatch.setattr(owner, method, held)


async def test_a_synchronous_commit_waits_for_the_copy_at_another_taskmanager(
    tmp_path, monkeypatch
):
    async with copying(tmp_path) as (cluster, _):
        gate = Gate(monkeypatch, PeerTarget, "copy")
        writing = asyncio.create_task(write(cluster[0], 7, SMALL))
        await eventually(lambda: ("copy", "taskmanager") in pairs(cluster))
        commit = wait_of(cluster, "map_output", "copy")
        assert commit.waiter.name == "map output 7 of shuffle 1"
        copy = wait_of(cluster, "copy", "taskmanager")
        assert copy.resource.name == str(cluster[1].address)
        assert copy.seconds is not None
        assert causes(waits(cluster), commit.waiter) == {copy.waiter, copy.resource}
        gate.opened.set()
        await writing
        await eventually(lambda: not waits(cluster))


async def test_copies_wait_for_another_taskmanager(tmp_path):
    async with mini_cluster(tmp_path, hosts_apart=True) as cluster:
        await write(cluster[0], 7, SMALL)
        await eventually(lambda: ("copies", "taskmanagers") in pairs(cluster))
        found = wait_of(cluster, "copies", "taskmanagers")
        assert "no other TaskManager is known" in found.text
        assert found.waiter.application_id == "app"
        links = await drivers(cluster)
        await eventually(lambda: not waits(cluster))
        end_application(links)


async def test_a_restored_copy_waits_for_its_rate(tmp_path, monkeypatch):
    async with copying(tmp_path, 3, lost_after_seconds=0.3, check=False) as (cluster, _):
        await write(cluster[0], 7, SMALL)
        holder = next(n for n in (1, 2) if cluster[n].store.statistics().map_outputs)
        gate = Gate(monkeypatch, RateLimit, "take")
        await cluster[holder].close()
        await eventually(lambda: ("copy", "rate") in pairs(cluster))
        assert wait_of(cluster, "copy", "rate").resource.name == "restore_bytes_per_second"
        gate.opened.set()
        await eventually(lambda: not waits(cluster))


async def test_a_move_waits_for_its_driver(tmp_path):
    async with copying(tmp_path) as (cluster, links):
        await cluster.write(0, 7, SMALL)
        cluster[0].drain()
        moving = asyncio.create_task(cluster[0].migrate())
        message = await links[0].expect(OutputsMoved)
        assert isinstance(message, OutputsMoved)
        found = wait_of(cluster, "drain", "driver")
        assert found.waiter.application_id == "app"
        assert "1 map outputs" in found.text
        assert found.seconds is not None
        links[0].send(MoveNoted(message.move))
        await moving
        await eventually(lambda: not waits(cluster))
