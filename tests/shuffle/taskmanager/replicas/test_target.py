"""The outcomes of one copy, which can be canceled at any time."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import CloseRequest
from sluice.shuffle.names import MapAttemptKey, ShuffleKey, TaskManagerPlace
from sluice.shuffle.taskmanager.replicas.target import Outcome, PeerTarget
from tests.support.copies import KEY, copying, holders, read, write
from tests.support.mini_cluster import eventually, mini_cluster

if TYPE_CHECKING:
    from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
    from tests.support.mini_cluster import MiniCluster

REGIONS = [
    [random.Random(1).randbytes(700_000), b"x" * 9],
    [b"", random.Random(2).randbytes(500_000)],
]
ON_DISK = {"memory_tier_bytes": 0}
TIERS = pytest.mark.parametrize("tier", [{}, ON_DISK], ids=["memory", "disk"])


def target_of(cluster: MiniCluster) -> PeerTarget:
    """Return the second TaskManager as the target of copies of the first one."""
    place = TaskManagerPlace(cluster[1].taskmanager_id, *cluster[1].address)
    return PeerTarget(place, cluster[0].copies.services)


def stored(cluster: MiniCluster) -> MapOutput:
    output = cluster[0].store.lookup(KEY, 7)
    assert output is not None
    return output


async def at_once(length: int) -> None:
    """Return at once."""


@TIERS
async def test_a_copy_is_made_once_and_found_afterwards(tmp_path, tier):
    async with copying(tmp_path, **tier) as (cluster, _):
        await cluster.write(0, 7, REGIONS)
        target = target_of(cluster)
        for pace in (None, None, at_once):
            assert await target.copy(stored(cluster), pace) is Outcome.COPIED
        counters = cluster[0].counters
        assert (counters.copies_made, counters.copies_found) == (1, 2)
        assert len(cluster[0].copies.services.connections) == 1
        assert await read(cluster[1], 7, 2) == await read(cluster[0], 7, 2)


@TIERS
async def test_a_copy_can_be_cancelled_at_any_time(tmp_path, tier):
    async with copying(tmp_path, **tier) as (cluster, _):
        await cluster.write(0, 7, REGIONS)
        target = target_of(cluster)
        for turns in (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89):
            making = asyncio.ensure_future(target.copy(stored(cluster), at_once))
            for _ in range(turns):
                await asyncio.sleep(0)
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)
        extents = [region.extent for region in stored(cluster).regions]
        await eventually(lambda: all(each is None or each.references == 1 for each in extents))
        assert await target.copy(stored(cluster)) is Outcome.COPIED
        assert holders(cluster, 7) == [0, 1]


def is_another(cluster: MiniCluster) -> PeerTarget:
    place = target_of(cluster).place._replace(taskmanager_id="expected")
    return PeerTarget(place, cluster[0].copies.services)


def is_gone(cluster: MiniCluster) -> PeerTarget:
    return PeerTarget(TaskManagerPlace("gone", "127.0.0.1", 9), cluster[0].copies.services)


def drains(cluster: MiniCluster) -> PeerTarget:
    cluster[1].drain()
    return target_of(cluster)


def is_damaged(cluster: MiniCluster) -> PeerTarget:
    extent = stored(cluster).regions[0].extent
    assert extent is not None
    view = extent.view
    assert view is not None
    view[5] ^= 1
    return target_of(cluster)


@pytest.mark.parametrize(
    ("target_when", "outcome", "reason"),
    [
        # A watch reports when an absent TaskManager is back: absence is not a refusal.
        (is_gone, Outcome.ABSENT, "CONNECT_REFUSED"),
        (is_another, Outcome.ABSENT, "TASKMANAGER_MISMATCH"),
        (drains, Outcome.REFUSED, "SHUTTING_DOWN"),
        (target_of, Outcome.REFUSED, "STORAGE_FULL"),
        (is_damaged, Outcome.FAILED, "CHECKSUM_MISMATCH"),
    ],
)
async def test_a_copy_that_is_not_made_has_an_outcome(tmp_path, target_when, outcome, reason):
    async with copying(tmp_path, 1) as (cluster, _):
        full = {"memory_tier_bytes": 0, "disk_quota_bytes": 4096}
        settings = full if reason == "STORAGE_FULL" else {}
        cluster.environments.append(await cluster.start_one(1, settings))
        await cluster.write(0, 7, REGIONS)
        target = target_when(cluster)
        services = cluster[0].copies.services
        assert await target.copy(stored(cluster)) is outcome
        assert reason in services.placement.last_refusal
        assert services.counters.copies_failed == 1
        assert holders(cluster, 7) == ([] if target_when is is_damaged else [0])
        for application_id in ("app", "other"):
            services.known.tell(application_id, target_of(cluster).place)
            attempt = MapAttemptKey(ShuffleKey(application_id, 1), 7)
            (candidate,) = services.placement.candidates(attempt, (), lambda place: False)
            refused = outcome is Outcome.REFUSED and application_id == "app"
            assert candidate.has_refused is refused


async def test_a_name_conflict_does_not_stop_other_copies(tmp_path):
    async with copying(tmp_path) as (cluster, _):
        await cluster.write(0, 7, REGIONS)
        await cluster.write(1, 7, [[b"other bytes"]])
        assert await target_of(cluster).copy(stored(cluster)) is Outcome.REFUSED
        assert "REGION_MISMATCH" in cluster[0].copies.services.placement.last_refusal
        await write(cluster[0], 8, REGIONS)
        assert holders(cluster, 8) == [0, 1]


@TIERS
async def test_a_release_before_the_copy_is_not_an_internal_error(tmp_path, tier, caplog):
    async with copying(tmp_path, **tier) as (cluster, _):
        await cluster.write(0, 7, REGIONS)
        target = target_of(cluster)
        waits, goes_on = asyncio.Event(), asyncio.Event()

        async def pace(length: int) -> None:
            waits.set()
            await goes_on.wait()

        making = asyncio.ensure_future(target.copy(stored(cluster), pace))
        await waits.wait()
        cluster[0].store.release_shuffle(KEY)  # its application has others
        released = cluster[0].store.released()
        assert released is not None
        await asyncio.shield(released)
        assert sum(tier.extents for tier in cluster[0].store.tiers()) == 2
        goes_on.set()
        assert await making is Outcome.COPIED
        assert "internal error" not in caplog.text


async def test_a_watch_connection_cannot_write(tmp_path):
    from sluice.protocol.schema import ROLE_COPIER, OpenPartition
    from tests.support.wire_clients import Client

    async with mini_cluster(tmp_path, 1) as cluster:
        watching = await Client.connect(cluster[0].address, ROLE_COPIER, "")
        watching.send(OpenPartition(0, 1, 7, 1))
        lost = await watching.until_lost()
        assert isinstance(lost, RemoteError)
        assert lost.code is ErrorCode.UNEXPECTED_MESSAGE
        polite = await Client.connect(cluster[0].address, ROLE_COPIER, "")
        polite.send(CloseRequest())
        await polite.until_lost()
