"""Copies made again after TaskManagers are away for a short time, or lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.copies import (
    KEY,
    copying,
    driver,
    holders,
    read,
    write,
)
from tests.support.mini_cluster import MiniCluster, eventually

if TYPE_CHECKING:
    from tests.support.wire_clients import Client

SOON = 0.3
LONG = 600
REGIONS = [[b"a" * 5000, b"b" * 20_000], [b"", b"c" * 10]]
WHOLE = b"a" * 5000 + b"b" * 20_000 + b"c" * 10
ATTEMPTS = range(6)


async def write_all(cluster: MiniCluster) -> None:
    for attempt in ATTEMPTS:
        await write(cluster[0], attempt, REGIONS)


def has(cluster: MiniCluster, attempt: int, gone: int) -> list[int]:
    """Return who has a map output, without a TaskManager that is gone."""
    return [number for number in holders(cluster, attempt) if number != gone]


async def stop(cluster: MiniCluster, index: int) -> dict[str, Any]:
    """Stop a TaskManager; return the settings with which it has the same address again."""
    port = cluster[index].address.port
    await cluster[index].close()
    return {"hosts_apart": True, "data_port": port}


async def start_again(cluster: MiniCluster, index: int, settings: dict[str, Any]) -> Client:
    """Start it again, with its data, and connect to it as the driver."""
    cluster.environments[index] = await cluster.start_one(index, settings)
    return await driver(cluster, index)


@pytest.mark.parametrize("gone", [0, 1, 2], ids=["the origin", "a holder", "another holder"])
async def test_the_copies_of_a_lost_taskmanager_are_made_again(tmp_path, gone):
    async with copying(tmp_path, 3, check=False, lost_after_seconds=SOON) as (cluster, _):
        await write_all(cluster)
        for attempt in ATTEMPTS:
            assert len(holders(cluster, attempt)) == 2
        await stop(cluster, gone)
        await eventually(lambda: all(len(has(cluster, each, gone)) == 2 for each in ATTEMPTS))
        for attempt in ATTEMPTS:
            for number in has(cluster, attempt, gone):
                assert await read(cluster[number], attempt, 2) == WHOLE


async def test_a_short_absence_causes_no_copies(tmp_path):
    async with copying(tmp_path, check=False, lost_after_seconds=LONG) as (cluster, links):
        await write_all(cluster)
        made = cluster[0].counters.copies_made
        settings = await stop(cluster, 1)
        links.append(await start_again(cluster, 1, settings))
        # It is asked for each map output whether it has it.
        await eventually(lambda: cluster[0].counters.copies_found == len(ATTEMPTS))
        assert cluster[0].counters.copies_made == made
        assert not cluster[0].copies.replication.holdings.short


async def test_a_restarted_origin_finds_its_copies(tmp_path):
    async with copying(tmp_path, check=False, lost_after_seconds=SOON) as (cluster, links):
        await write_all(cluster)
        settings = await stop(cluster, 0) | {"lost_after_seconds": SOON}
        links.append(await start_again(cluster, 0, settings))
        assert len(cluster[0].copies.replication.holdings.short) == len(ATTEMPTS)
        await eventually(lambda: not cluster[0].copies.replication.holdings.short)
        assert cluster[0].counters.copies_made == 0
        assert cluster[0].counters.copies_found == len(ATTEMPTS)


async def test_map_outputs_lost_with_a_directory_are_copied_again(tmp_path):
    async with copying(tmp_path, check=False, lost_after_seconds=LONG) as (cluster, _):
        await write_all(cluster)
        for holder in (1, 0):
            store = cluster[holder].store
            (tier,) = [each for each in store._tiers.tiers() if each.kind == "memory"]
            store._health.lose(tier, "it is gone")
            assert cluster[holder].store.lookup(KEY, 3) is None
            await eventually(lambda: all(len(holders(cluster, each)) == 2 for each in ATTEMPTS))
            assert await read(cluster[holder], 3, 2) == WHOLE


async def test_a_driver_is_notified_of_a_restored_copy(tmp_path):
    async with copying(tmp_path, 3, check=False, lost_after_seconds=SOON) as (cluster, _):
        await write(cluster[0], 7, REGIONS)
        (holder,) = set(holders(cluster, 7)) - {0}
        other = 3 - holder
        await stop(cluster, 0)
        await eventually(lambda: has(cluster, 7, 0) == [1, 2])
        # The one that stands in for the origin vouches for the new copy.
        copy = cluster[other].store.lookup(KEY, 7)
        assert copy is not None
        assert copy.origin == cluster[holder].taskmanager_id
        replication = cluster[other].copies.replication
        await eventually(lambda: replication.held_of("app") == {KEY: [7]})


async def test_a_rate_limits_restored_copies(tmp_path, monkeypatch):
    taken: list[int] = []

    async def take(self, length: int) -> None:
        taken.append(length)

    monkeypatch.setattr("sluice.shuffle.taskmanager.bounds.rate_limit.RateLimit.take", take)
    async with copying(tmp_path, 3, check=False, lost_after_seconds=1) as (cluster, _):
        await write_all(cluster)
        assert taken == []
        # Which of the two others has a copy is up to their ids; one of them may have all.
        gone = max({number for each in ATTEMPTS for number in holders(cluster, each)} - {0})
        lost = [each for each in ATTEMPTS if gone in holders(cluster, each)]
        await stop(cluster, gone)
        await eventually(lambda: all(len(has(cluster, each, gone)) == 2 for each in ATTEMPTS))
        regions = [sum(map(len, region)) for region in REGIONS]
        assert sorted(taken) == sorted(regions * len(lost))


async def test_a_commit_does_not_wait_for_an_absent_taskmanager(tmp_path):
    async with copying(tmp_path, 3, check=False, lost_after_seconds=LONG) as (cluster, _):
        await stop(cluster, 1)
        for attempt in ATTEMPTS:
            await write(cluster[0], attempt, REGIONS)
            assert has(cluster, attempt, 1) == [0, 2]
        # Only the first one that was to go there found out.
        assert cluster[0].counters.copies_failed <= 1
