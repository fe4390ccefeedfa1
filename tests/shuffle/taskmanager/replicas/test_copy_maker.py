"""One copy: what comes of it, and that it can be given up at any moment."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import CloseRequest
from sluice.shuffle.names import TaskManagerPlace
from sluice.shuffle.taskmanager.replicas.copy_maker import Outcome
from tests.support.copies import KEY, drivers, end_application, holders, read
from tests.support.mini_cluster import eventually, mini_cluster

if TYPE_CHECKING:
    from sluice.shuffle.taskmanager.store.stored_outputs import MapOutput
    from sluice.shuffle.taskmanager.wiring import NetworkEnvironment
    from tests.support.mini_cluster import MiniCluster

REGIONS = [
    [random.Random(1).randbytes(700_000), b"x" * 9],
    [b"", random.Random(2).randbytes(500_000)],
]
ON_DISK = {"memory_tier_bytes": 0}
TIERS = pytest.mark.parametrize("tier", [{}, ON_DISK], ids=["memory", "disk"])


def place_of(environment: NetworkEnvironment) -> TaskManagerPlace:
    return TaskManagerPlace(environment.taskmanager_id, *environment.address)


def stored(cluster: MiniCluster) -> MapOutput:
    output = cluster[0].store.lookup(KEY, 7)
    assert output is not None
    return output


async def at_once(length: int) -> None:
    """Wait for nothing."""


@TIERS
async def test_a_copy_is_made_once_and_found_afterwards(tmp_path, tier):
    async with mini_cluster(tmp_path, **tier) as cluster:
        links = await drivers(cluster)
        await cluster.write(0, 7, REGIONS)
        maker, place = cluster[0].copies.maker, place_of(cluster[1])
        assert await maker.make(stored(cluster), place) is Outcome.MADE
        assert await maker.make(stored(cluster), place) is Outcome.FOUND
        assert await maker.make(stored(cluster), place, at_once) is Outcome.FOUND
        counters = cluster[0].counters
        assert (counters.copies_made, counters.copies_found) == (1, 2)
        assert maker.connections == 1
        assert await read(cluster[1], 7, 2) == await read(cluster[0], 7, 2)
        maker.close()
        end_application(links)


@TIERS
async def test_a_copy_may_be_given_up_at_any_moment(tmp_path, tier):
    async with mini_cluster(tmp_path, **tier) as cluster:
        links = await drivers(cluster)
        await cluster.write(0, 7, REGIONS)
        maker, place = cluster[0].copies.maker, place_of(cluster[1])
        for turns in (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89):
            making = asyncio.ensure_future(maker.make(stored(cluster), place, at_once))
            for _ in range(turns):
                await asyncio.sleep(0)
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)
        extents = [region.extent for region in stored(cluster).regions]
        await eventually(lambda: all(each is None or each.references == 1 for each in extents))
        assert (await maker.make(stored(cluster), place)).is_there
        assert holders(cluster, 7) == [0, 1]
        maker.close()
        end_application(links)


async def test_one_that_is_not_there_is_absent(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        await cluster.write(0, 7, REGIONS)
        maker = cluster[0].copies.maker
        nowhere = TaskManagerPlace("gone", "127.0.0.1", 9)
        assert await maker.make(stored(cluster), nowhere) is Outcome.ABSENT
        assert maker.may_ask("gone", "app")  # a watch tells when it is back
        assert "CONNECT_FAILED" in maker.last_refusal
        maker.close()


async def test_another_one_at_its_place_is_absence(tmp_path):
    async with mini_cluster(tmp_path) as cluster:
        await cluster.write(0, 7, REGIONS)
        maker = cluster[0].copies.maker
        other = place_of(cluster[1])._replace(taskmanager_id="expected")
        assert await maker.make(stored(cluster), other) is Outcome.ABSENT
        assert "TASKMANAGER_MISMATCH" in maker.last_refusal
        maker.close()


async def test_one_that_refuses_is_passed_over_until_it_is_there_anew(tmp_path):
    async with mini_cluster(tmp_path) as cluster:
        await cluster.write(0, 7, REGIONS)
        maker, place = cluster[0].copies.maker, place_of(cluster[1])
        cluster[1].drain()
        assert await maker.make(stored(cluster), place) is Outcome.REFUSED
        assert not maker.may_ask(place.taskmanager_id, "app")
        assert maker.may_ask(place.taskmanager_id, "other")
        maker.ask_again(place.taskmanager_id)
        assert maker.may_ask(place.taskmanager_id, "app")
        maker.close()


async def test_one_that_is_full_refuses(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        full = {"memory_tier_bytes": 0, "disk_quota_bytes": 4096}
        cluster.environments.append(await cluster.start_one(1, full))
        await cluster.write(0, 7, REGIONS)
        maker, place = cluster[0].copies.maker, place_of(cluster[1])
        assert await maker.make(stored(cluster), place) is Outcome.REFUSED
        assert "STORAGE_FULL" in maker.last_refusal
        assert cluster[0].counters.copies_failed == 1
        maker.close()


async def test_damage_at_rest_is_not_copied(tmp_path):
    async with mini_cluster(tmp_path) as cluster:
        await cluster.write(0, 7, REGIONS)
        extent = stored(cluster).regions[0].extent
        assert extent is not None
        view = extent.view
        assert view is not None
        view[5] ^= 1
        del view
        maker = cluster[0].copies.maker
        assert await maker.make(stored(cluster), place_of(cluster[1])) is Outcome.FAILED
        assert holders(cluster, 7) == [0]
        maker.close()


@TIERS
async def test_what_is_released_while_it_waits_for_its_turn_is_no_internal_error(
    tmp_path, tier, caplog
):
    async with mini_cluster(tmp_path, **tier) as cluster:
        links = await drivers(cluster)
        await cluster.write(0, 7, REGIONS)
        maker, place = cluster[0].copies.maker, place_of(cluster[1])
        waits, goes_on = asyncio.Event(), asyncio.Event()

        async def pace(length: int) -> None:
            waits.set()
            await goes_on.wait()

        making = asyncio.ensure_future(maker.make(stored(cluster), place, pace))
        await waits.wait()
        cluster[0].store.release_shuffle(KEY)  # its application has others
        released = cluster[0].store.released()
        assert released is not None
        await asyncio.shield(released)
        assert sum(tier.extents for tier in cluster[0].store.tiers()) == 2
        goes_on.set()
        assert await making is Outcome.MADE
        assert "internal error" not in caplog.text
        maker.close()
        end_application(links)


async def test_a_connection_that_only_watches_writes_nothing(tmp_path):
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
