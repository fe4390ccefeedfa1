"""Connections that hold nothing and only ping: which of them are closed, and what they are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.remote_error import RemoteError
from sluice.protocol.schema import (
    AttachRegionArea,
    OpenPartition,
    PartitionOpened,
    Ping,
    RegionAreaAttached,
    ReleaseShuffle,
    ShuffleReleased,
)
from sluice.shuffle.errors import ProducerFailed
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.shuffle.records.serializers import StringSerializer
from tests.support.api_clients import api_clients, emitted
from tests.support.mini_cluster import (
    eventually,
    mini_cluster,
    storage_leftovers,
    until_clean,
)

if TYPE_CHECKING:
    from tests.support.mini_cluster import MiniCluster
    from tests.support.wire_clients import Client

APPLICATION = "app"


async def ping(client: Client, times: int = 1) -> None:
    """Ping, and wait for the Pongs, which a connection keeps to itself."""
    wanted = client.connection.traffic.messages_in + times
    for nonce in range(times):
        client.send(Ping(nonce))
    await eventually(lambda: client.connection.traffic.messages_in == wanted, "Pongs")
    assert client.lost is None


def look(cluster: MiniCluster) -> None:
    """Let the idle time pass."""
    cluster[0].idle_connections.look()


async def test_a_connection_that_only_pings_is_closed_with_the_reason(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        kept, idle = await cluster.producer(0), await cluster.consumer(0)
        kept.send(OpenPartition(0, 1, 1, 1))
        await kept.expect(PartitionOpened)
        await ping(idle)
        look(cluster)  # it came after the watch had begun
        assert idle.lost is None
        await ping(idle, 3)
        look(cluster)
        error = await idle.until_lost()
        assert isinstance(error, RemoteError)
        assert error.code is ErrorCode.DEADLINE_EXCEEDED
        assert error.retryable
        assert error.value == "4 pings"
        assert error.limit == "600.0 s"
        assert "idle_connection_timeout_seconds" in error.message
        assert cluster[0].counters.progress_deadlines == {"connection": 1}
        await ping(kept)  # the innocent connection is untouched
        await eventually(lambda: idle.connection not in cluster[0].handlers, "the end")
        assert len(cluster[0].handlers) == 1


async def test_a_connection_that_asks_for_anything_is_not_idle(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        drivers = [await cluster.driver(0) for _ in range(2)]
        for shuffle in range(4):
            for driver in drivers:
                driver.send(ReleaseShuffle(shuffle))
                await driver.expect(ShuffleReleased)
            look(cluster)
            for driver in drivers:
                await ping(driver)
        assert not cluster[0].counters.progress_deadlines


async def test_the_only_driver_stays_and_others_go(tmp_path):
    """Spark's driver only pings for hours, and keeps its application alive by that."""
    async with mini_cluster(tmp_path, 1) as cluster:
        drivers = [await cluster.driver(0) for _ in range(2)]
        executor = await cluster.producer(0)
        for _ in range(3):
            look(cluster)
        await executor.until_lost()
        await eventually(lambda: len(cluster[0].handlers) == 1, "one driver")
        (left,) = [each for each in drivers if each.lost is None]
        for _ in range(3):
            look(cluster)
        await ping(left)


@pytest.mark.parametrize("what", ["output", "area"])
async def test_a_connection_that_holds_something_is_not_idle(tmp_path, what):
    async with mini_cluster(tmp_path, 1, region_areas_bytes=1 << 20) as cluster:
        holder, other = await cluster.producer(0), await cluster.producer(0)
        if what == "output":
            holder.send(OpenPartition(0, 1, 1, 1))
            await holder.expect(PartitionOpened)
        else:
            holder.send(AttachRegionArea("", 1 << 16))
            attached = await holder.expect(RegionAreaAttached)
            assert isinstance(attached, RegionAreaAttached)
            assert attached.token
        for _ in range(4):
            look(cluster)
        await other.until_lost()
        await ping(holder)


async def test_the_last_connection_stays_while_its_application_has_data(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        await cluster.write(0, 1, [[b"data"]])
        both = [await cluster.producer(0), await cluster.consumer(0)]
        for _ in range(4):
            look(cluster)
        await eventually(lambda: len(cluster[0].handlers) == 1, "one connection")
        (left,) = [each for each in both if each.lost is None]
        await ping(left)
        cluster[0].store.release_application(APPLICATION)
        released = cluster[0].store.released()
        assert released is not None
        await released
        await until_clean(cluster[0], storage_leftovers)  # each journal has the release
        for _ in range(3):
            look(cluster)
        await left.until_lost()


async def test_without_a_limit_idle_connections_stay(tmp_path):
    async with mini_cluster(tmp_path, 1, idle_connection_timeout_seconds=None) as cluster:
        client = await cluster.producer(0)
        for _ in range(4):
            look(cluster)
        await ping(client)


# ---- the Python client ---------------------------------------------------------------------------


async def close_idle(cluster: MiniCluster) -> None:
    """Let the TaskManager close the connections of a client that does nothing."""
    before = len(cluster[0].handlers)
    for _ in range(3):
        look(cluster)
    await eventually(lambda: len(cluster[0].handlers) < before, "idle connections closed")


async def test_a_client_connects_again_without_an_error(tmp_path):
    words = ["a", "word", "of", "many"]
    async with mini_cluster(tmp_path, 1) as cluster, api_clients(cluster, 0) as (client,):
        for shuffle in range(3):
            await close_idle(cluster)
            async with client.open_result_partition(
                shuffle, 7, 1, partition_type=ResultPartitionType.BLOCKING
            ) as partition:
                writer = partition.record_writer(StringSerializer())
                for word in words:
                    await emitted(writer.emit(word))
            async with client.open_gate([partition.location], 0) as gate:
                assert [word async for word in gate.records(StringSerializer())] == words


async def test_a_request_that_crosses_the_close_is_made_again(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster, api_clients(cluster, 0) as (client,):
        look(cluster)
        # Closed here, and the client has not read it: its request finds nobody.
        for _ in range(2):
            look(cluster)
        assert not client._legs.producer.connection.closing
        async with client.open_result_partition(1, 7, 1) as partition:
            assert partition.location.map_attempt_id == 7
            assert cluster[0].counters.pipelined_partitions_opened == 1


async def test_a_connection_that_is_lost_otherwise_is_not_made_again(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster, api_clients(cluster, 0) as (client,):
        for connection in list(cluster[0].handlers):
            connection.abort(ProducerFailed("the network is gone"))
        await client._legs.producer.closed.wait()
        with pytest.raises(Exception, match="lost"):
            async with client.open_result_partition(1, 7, 1):
                pass
