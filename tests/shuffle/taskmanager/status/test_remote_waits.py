"""Waits for the remote tier: reads, lookups and uploads that wait for their turn."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from sluice.shuffle.taskmanager.store.remote import remote_outputs
from tests.shuffle.taskmanager.status.rig import causes, pairs, wait_of, waits
from tests.support.mini_cluster import eventually, mini_cluster
from tests.support.remote import REMOTE_ONLY, tier_of
from tests.support.wire_clients import open_gate, write_map_output

if TYPE_CHECKING:
    from pathlib import Path

    from sluice.shuffle.wait_status import WaitStatus
    from tests.support.mini_cluster import MiniCluster

pytestmark = pytest.mark.usefixtures("object_store")

SHUFFLE = 1
SMALL = [[b"abc"]]
UNDER_WAY = "1 reads and lookups are under way, 0 wait for the application's turn"
QUEUED = "0 reads and lookups are under way, 1 wait for the application's turn"


def remote(directory: Path, **settings: Any) -> dict[str, Any]:
    return REMOTE_ONLY | {"remote": str(directory / "remote")} | settings


class Held:
    """Holds the requests of one kind to the remote store until ``released`` is set."""

    def __init__(self, objects: Any, method: str) -> None:
        self._objects, self._method = objects, method
        self._original = getattr(objects, method)
        self.released = asyncio.Event()
        setattr(objects, method, self._held)

    async def _held(self, *args: Any, **keys: Any) -> Any:
        await self.released.wait()
        return await self._original(*args, **keys)


def turns(cluster: MiniCluster) -> dict[str, WaitStatus]:
    """Return the waits of applications for the remote tier."""
    return {
        each.waiter.name: each
        for each in waits(cluster)
        if (each.waiter.kind, each.resource.kind) == ("application", "remote_tier")
    }


async def test_applications_wait_for_their_turn_to_read(tmp_path):
    settings = remote(tmp_path, remote_requests=1)
    async with mini_cluster(tmp_path, 1, **settings) as cluster:
        tier = tier_of(cluster[0].store)
        names = ["a", "b"]
        for name in names:
            await write_map_output(await cluster.producer(0, name), SHUFFLE, 7, SMALL)
        reads = Held(tier.objects, "get_range")
        gates = []
        for name in names:
            client = await cluster.consumer(0, name)
            gates.append(open_gate(client, SHUFFLE, [(client.ack, [7])], 0, 1))
        await eventually(lambda: sorted(turns(cluster)) == names)
        found = turns(cluster)
        assert {each.text for each in found.values()} == {UNDER_WAY, QUEUED}
        for each in found.values():
            assert each.resource.name == tier.place
            assert each.seconds is not None
            assert "remote_requests" in each.remedy
        sources = [each.resource for each in waits(cluster) if each.waiter.kind == "gate"]
        assert sources == [found["a"].resource] * 2
        reads.released.set()
        for gate in gates:
            await gate.read_all()
            await gate.close()
        await eventually(lambda: not waits(cluster))


async def test_applications_wait_for_their_turn_to_look_up(tmp_path, monkeypatch):
    monkeypatch.setattr(remote_outputs, "LOOKUPS_AT_A_TIME", 1)
    async with mini_cluster(tmp_path, 1, check=False, **remote(tmp_path)) as cluster:
        lookups = Held(tier_of(cluster[0].store).objects, "get")
        for name in ("a", "b"):
            client = await cluster.consumer(0, name)
            open_gate(client, SHUFFLE, [(client.ack, [7])], 0, 1)
        await eventually(lambda: sorted(turns(cluster)) == ["a", "b"])
        assert {each.text for each in turns(cluster).values()} == {UNDER_WAY, QUEUED}
        lookups.released.set()
        await eventually(lambda: not turns(cluster))


async def test_uploads_wait_for_memory_that_others_hold(tmp_path):
    settings = remote(tmp_path, remote_upload_bytes=1)
    async with mini_cluster(tmp_path, 1, **settings) as cluster:
        tier = tier_of(cluster[0].store)
        uploads = Held(tier.objects, "put")
        writing = []
        for name in ("a", "b"):
            client = await cluster.producer(0, name)
            written = write_map_output(client, SHUFFLE, 7, SMALL)
            writing.append(asyncio.create_task(written))
            await eventually(lambda: tier.budget.used_bytes)
        await eventually(lambda: ("application", "rate") in pairs(cluster))
        found = wait_of(cluster, "application", "rate")
        assert found.waiter.name == "b"
        assert found.resource.name == "remote_upload_bytes"
        assert found.text == "1 uploads wait for memory"
        assert found.seconds is not None
        holder = wait_of(cluster, "rate", "remote_tier")
        assert holder.text == "Uploads under way hold 1 bytes of memory"
        assert causes(waits(cluster), found.waiter) == {found.resource, holder.resource}
        uploads.released.set()
        await asyncio.gather(*writing)
        await eventually(lambda: not waits(cluster))
