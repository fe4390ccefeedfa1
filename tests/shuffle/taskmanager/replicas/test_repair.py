"""A damaged map output is dropped where it is damaged, and comes back from a copy."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from sluice.shuffle.errors import ChecksumMismatch
from sluice.shuffle.names import TaskManagerPlace
from sluice.shuffle.taskmanager.replicas import target
from sluice.shuffle.taskmanager.replicas.target import Outcome, PeerTarget
from tests.support.copies import KEY, copying, holders, read, write
from tests.support.mini_cluster import eventually
from tests.support.remote import extent_of

if TYPE_CHECKING:
    from pathlib import Path

    from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
    from tests.support.mini_cluster import MiniCluster

WHOLE = b"good" * 100_000
ON_DISK: dict[str, Any] = {"memory_tier_bytes": 0}


def output_of(cluster: MiniCluster, number: int) -> MapOutput:
    output = cluster[number].store.lookup(KEY, 7)
    assert output is not None
    return output


async def damage(cluster: MiniCluster, number: int) -> None:
    extent = extent_of(output_of(cluster, number))
    await asyncio.to_thread(overwrite, extent.tier.path, extent.offset)


def overwrite(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"bad")


async def copy_to_third(cluster: MiniCluster, others: set[int]) -> Outcome:
    """Copy from the first TaskManager to the one without the map output."""
    (third,) = {1, 2} - others
    place = TaskManagerPlace(cluster[third].taskmanager_id, *cluster[third].address)
    return await PeerTarget(place, cluster[0].copies.services).copy(output_of(cluster, 0))


async def test_a_damaged_origin_gets_its_output_back_from_the_copy(tmp_path):
    async with copying(tmp_path, 3, **ON_DISK) as (cluster, _):
        await write(cluster[0], 7, [[WHOLE]])
        before = output_of(cluster, 0)
        await damage(cluster, 0)
        assert await copy_to_third(cluster, set(holders(cluster, 7))) is Outcome.FAILED
        assert cluster[0].partitions.damage.dropped == 1
        await eventually(lambda: cluster[0].store.lookup(KEY, 7) not in (None, before))
        assert await read(cluster[0], 7, 1) == WHOLE


async def test_a_damaged_output_without_a_copy_is_lost(tmp_path):
    async with copying(tmp_path, 3, **ON_DISK) as (cluster, _):
        await write(cluster[0], 7, [[WHOLE]], replicas=1)
        await damage(cluster, 0)
        assert await copy_to_third(cluster, {1}) is Outcome.FAILED
        assert holders(cluster, 7) == []
        assert cluster[0].store.lost_of("app") == {KEY: [7]}
        assert cluster[0].partitions.damage.dropped == 1


@pytest.mark.parametrize("memory", [{}, ON_DISK], ids=["memory", "disk"])
async def test_an_output_that_only_the_network_damaged_is_kept(tmp_path, monkeypatch, memory):
    async def failing(*args: Any) -> bool:
        raise ChecksumMismatch("damaged on its way")

    async with copying(tmp_path, 3, **memory) as (cluster, _):
        await write(cluster[0], 7, [[WHOLE], [b"", b"more"]])
        monkeypatch.setattr(target, "copy_output", failing)
        assert await copy_to_third(cluster, set(holders(cluster, 7))) is Outcome.FAILED
        assert cluster[0].partitions.damage.dropped == 0
        assert holders(cluster, 7)[0] == 0
