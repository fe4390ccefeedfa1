"""A TaskManager that was away brings nothing back that was released meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sluice.protocol.schema import ReleaseApplication, ReleaseAttempts, ReleaseShuffle
from sluice.shuffle.names import TaskManagerPlace
from sluice.shuffle.taskmanager.cluster.taskmanager_watch import Presence
from tests.support.copies import copying, driver, end_application, holders, write
from tests.support.mini_cluster import eventually

if TYPE_CHECKING:
    from tests.support.mini_cluster import MiniCluster
    from tests.support.wire_clients import Client

REGIONS = [[b"a" * 5000, b"b" * 20_000]]
LONG: dict[str, Any] = {"lost_after_seconds": 600}


async def restart(cluster: MiniCluster, index: int, **settings: Any) -> None:
    port = cluster[index].address.port
    await cluster[index].close()
    settings = LONG | settings | {"hosts_apart": True, "data_port": port}
    cluster.environments[index] = await cluster.start_one(index, settings)


def return_of(cluster: MiniCluster, index: int) -> None:
    """Let the first TaskManager find that another one was away, and has returned."""
    place = TaskManagerPlace(cluster[index].taskmanager_id, *cluster[index].address)
    cluster[0].copies.replication.changed(place, Presence.PRESENT, Presence.AWAY)


async def settled(cluster: MiniCluster) -> None:
    await eventually(lambda: not cluster[0].copies.replication.waiting)


async def release(link: Client, *messages: ReleaseAttempts | ReleaseShuffle) -> None:
    for message in messages:
        link.send(message)
    for _ in messages:
        await link.receive()


@pytest.mark.parametrize("restarted", [False, True], ids=["runs", "restarted"])
async def test_an_origin_does_not_copy_a_released_shuffle_again(tmp_path, restarted):
    async with copying(tmp_path, 2, check=False, **LONG) as (cluster, links):
        await write(cluster[0], 7, REGIONS)
        await write(cluster[0], 20, REGIONS)
        # The origin does not get the release: it is away.
        await release(links[1], ReleaseAttempts(1, 10))
        for first in range(2, 4200, 100):
            some = range(first, first + 100)
            await release(links[1], *(ReleaseAttempts(each, each) for each in some))
        assert (holders(cluster, 7), holders(cluster, 20)) == ([0], [0, 1])
        if restarted:
            await restart(cluster, 1)
            links.append(await driver(cluster, 1))
        return_of(cluster, 1)
        await settled(cluster)
        # The origin learns of the release, too.
        await eventually(lambda: holders(cluster, 7) == [])
        assert holders(cluster, 20) == [0, 1]
        assert not cluster[0].copies.replication.holdings.short


async def test_a_restarted_origin_does_not_copy_a_released_shuffle_again(tmp_path):
    async with copying(tmp_path, 2, check=False, **LONG) as (cluster, links):
        await write(cluster[0], 7, REGIONS)
        await release(links[1], ReleaseAttempts(1, 10))
        await restart(cluster, 0, lost_after_seconds=0.1)
        links.append(await driver(cluster, 0))
        await eventually(lambda: holders(cluster, 7) != [0])
        assert holders(cluster, 7) == []


async def test_a_release_without_a_bound_keeps_the_output_of_the_origin(tmp_path):
    async with copying(tmp_path, 2, check=False, **LONG) as (cluster, links):
        await write(cluster[0], 7, REGIONS)
        await release(links[1], ReleaseShuffle(1))
        return_of(cluster, 1)
        await settled(cluster)
        assert holders(cluster, 7) == [0]


async def test_an_ended_application_is_not_copied_again(tmp_path):
    async with copying(tmp_path, 2, check=False, **LONG) as (cluster, links):
        await write(cluster[0], 7, REGIONS)
        # The origin is cut off from the driver, which ends the application at the other one.
        links[0].vanish()
        await eventually(lambda: cluster[0].applications.vouching("app"))
        cluster[0].copies.services.connections.end_application("app")
        links[1].send(ReleaseApplication())
        await eventually(lambda: holders(cluster, 7) == [0])
        await links[1].close()
        return_of(cluster, 1)
        await settled(cluster)
        assert holders(cluster, 7) == [0]
        assert "has ended" in cluster[0].copies.services.placement.last_refusal
        # A program may use the name of an application again.
        links.append(await driver(cluster, 0))
        return_of(cluster, 1)
        await eventually(lambda: holders(cluster, 7) == [0, 1])


async def test_a_restarted_origin_copies_no_application_that_only_it_knows(tmp_path):
    async with copying(tmp_path, 2, check=False, **LONG) as (cluster, links):
        await write(cluster[0], 7, REGIONS)
        links[1].send(ReleaseApplication())
        await eventually(lambda: holders(cluster, 7) == [0])
        await links[1].close()
        taskmanagers = (str(cluster[1].address),)
        await restart(cluster, 1)  # it has forgotten the end
        await restart(cluster, 0, taskmanagers=taskmanagers)
        replication = cluster[0].copies.replication
        replication.holdings.lost("app", cluster[1].taskmanager_id)
        replication._settled()
        await settled(cluster)
        assert holders(cluster, 7) == [0]
        assert "has ended" in cluster[0].copies.services.placement.last_refusal
        client = await cluster.consumer(0)
        await client.close()
        links.append(await driver(cluster, 0))
        await eventually(lambda: holders(cluster, 7) == [0, 1])
        end_application([links[-1]])
