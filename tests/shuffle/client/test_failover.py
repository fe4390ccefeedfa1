"""Readers of stored partitions go on at a copy, behind what they have read."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.errors import ErrorCode, SluiceError
from sluice.protocol.schema import KnownTaskManager
from sluice.shuffle.client.partition_location import PartitionLocation
from sluice.shuffle.dataflow.sync import SyncShuffleClient
from sluice.shuffle.errors import InvalidRequest
from sluice.shuffle.names import ShuffleKey, TaskManagerPlace
from sluice.shuffle.partition.blocks import BlockCodec
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.shuffle.records.serializers import BytesSerializer
from tests.support.api_clients import api_clients, embedded_clients
from tests.support.mini_cluster import eventually, mini_cluster

if TYPE_CHECKING:
    from sluice.shuffle.client.client_gate import ClientGate
    from sluice.shuffle.client.shuffle_environment import ShuffleEnvironment
    from sluice.shuffle.taskmanager.wiring import NetworkEnvironment
    from tests.support.mini_cluster import MiniCluster

BLOCKING = ResultPartitionType.BLOCKING
KEY = ShuffleKey("app", 1)
DATA = random.Random(5).randbytes(900_000)


def place_of(environment: NetworkEnvironment) -> TaskManagerPlace:
    return TaskManagerPlace(environment.taskmanager_id, *environment.address)


def knows_others(environment: NetworkEnvironment, count: int) -> bool:
    return len(environment.copies.services.known.places_of("app")) == count


async def know_each_other(cluster: MiniCluster) -> None:
    for index, one in enumerate(cluster.environments):
        link = await cluster.driver(index)
        for other in cluster.environments:
            if other is not one:
                link.send(KnownTaskManager(*place_of(other)))
        await eventually(partial(knows_others, one, len(cluster.environments) - 1))


async def write(client: ShuffleEnvironment, replicas: int = 2) -> PartitionLocation:
    async with client.open_result_partition(
        1,
        7,
        2,
        partition_type=BLOCKING,
        codec=BlockCodec.NONE,
        replicas=replicas,
        replicas_synchronous=True,
    ) as partition:
        await partition.emit_buffer(DATA, 0)
        await partition.emit_buffer(b"other", 1)
    return partition.location


async def read_some(gate: ClientGate, content: bytearray, until: int) -> None:
    """Read a gate until so many bytes have come, or to its end."""
    while len(content) < until:
        taken = await gate.next_buffer_or_event()
        if taken is None:
            return
        if taken.buffer.data_type == 0:
            content += taken.buffer.payload
        if taken.buffer.release is not None:
            taken.buffer.release()


def holder(cluster: MiniCluster, but: int) -> int:
    """Return the number of the TaskManager that has the copy."""
    (found,) = (
        number
        for number, each in enumerate(cluster.environments)
        if number != but and each.store.lookup(KEY, 7) is not None
    )
    return found


async def test_a_reader_goes_on_in_mid_stream_after_the_loss_of_a_taskmanager(tmp_path):
    async with mini_cluster(tmp_path, 3, check=False, hosts_apart=True) as cluster:
        await know_each_other(cluster)
        async with api_clients(cluster, 0) as (writer,):
            location = await write(writer)
        copy = holder(cluster, 0)
        async with api_clients(cluster, 3 - copy) as (reader,):
            other = location.at(place_of(cluster[copy]))
            async with reader.open_gate([location], 0, alternatives=[[other]]) as gate:
                content = bytearray()
                await read_some(gate, content, 100_000)
                assert len(content) < len(DATA)
                await cluster[0].close()
                await read_some(gate, content, 2 * len(DATA))
        assert content == DATA


async def test_a_reader_follows_a_partition_that_moves(tmp_path):
    async with mini_cluster(tmp_path, 3, check=False, hosts_apart=True) as cluster:
        await know_each_other(cluster)
        async with api_clients(cluster, 0, 1) as (writer, reader):
            location = await write(writer, replicas=1)
            async with reader.open_gate([location], 0) as gate:
                content = bytearray()
                await read_some(gate, content, 100_000)
                cluster[0].drain()
                moving = asyncio.ensure_future(cluster[0].migrate())
                await eventually(lambda: cluster[0].counters.copies_made == 1)
                moving.cancel()  # the drivers of this test take no note
                await asyncio.gather(moving, return_exceptions=True)
                target = holder(cluster, 0)
                cluster[0].partitions.moved.move(KEY, {7: place_of(cluster[target])})
                await read_some(gate, content, 2 * len(DATA))
            assert content == DATA
            # A reader that comes later is sent there at once.
            async with reader.open_gate([location], 1) as gate:
                content = bytearray()
                await read_some(gate, content, 100)
            assert content == b"other"


def damage(environment: NetworkEnvironment) -> None:
    """Flip a bit of the map output in the memory tier."""
    stored = environment.store.lookup(KEY, 7)
    assert stored is not None
    extent = stored.regions[0].extent
    assert extent is not None
    view = extent.view
    assert view is not None
    view[len(view) // 2] ^= 1


async def test_damage_at_rest_is_read_elsewhere_and_repaired(tmp_path):
    async with mini_cluster(tmp_path, 3, check=False, hosts_apart=True) as cluster:
        await know_each_other(cluster)
        async with api_clients(cluster, 0, 1) as (writer, reader):
            location = await write(writer)
            damage(cluster[0])
            other = location.at(place_of(cluster[holder(cluster, 0)]))
            async with reader.open_gate([location], 0, alternatives=[[other]]) as gate:
                content = bytearray()
                await read_some(gate, content, 2 * len(DATA))
            assert content == DATA
            await eventually(lambda: cluster[0].store.statistics().repaired_map_outputs == 1)
            assert dict(cluster[0].partitions.damage.results) == {"damaged": 1}
            async with reader.open_gate([location], 0) as gate:
                content = bytearray()
                await read_some(gate, content, 2 * len(DATA))
            assert content == DATA


@pytest.mark.parametrize("clients_at", [api_clients, embedded_clients])
@pytest.mark.parametrize("reads_at", [0, 1], ids=["its TaskManager", "another one"])
async def test_damage_without_a_copy_is_read_once_and_then_named(tmp_path, clients_at, reads_at):
    async with (
        mini_cluster(tmp_path, 2, hosts_apart=True) as cluster,
        clients_at(cluster, 0, reads_at) as (writer, reader),
    ):
        location = await write(writer, replicas=1)
        damage(cluster[0])
        for code in (ErrorCode.CHECKSUM_MISMATCH, ErrorCode.STORAGE_UNAVAILABLE):
            async with reader.open_gate([location], 0) as gate:
                with pytest.raises(SluiceError) as damaged:
                    await read_some(gate, bytearray(), 2 * len(DATA))
            assert damaged.value.code is code
        assert "was damaged in storage" in str(damaged.value)
        assert cluster[0].partitions.damage.dropped == 1


async def test_old_taskmanagers_get_no_report(tmp_path):
    async with mini_cluster(tmp_path) as cluster, api_clients(cluster, 0) as (client,):
        location = await write(client, replicas=1)
        damage(cluster[0])
        client._legs.consumer.features = 0
        async with client.open_gate([location], 0) as gate:
            with pytest.raises(SluiceError):
                await read_some(gate, bytearray(), 2 * len(DATA))
        assert not cluster[0].partitions.damage.results
        assert cluster[0].partitions.damage.dropped == 0


async def test_all_alternatives_are_tried_and_then_the_error_is_raised(tmp_path):
    async with (
        mini_cluster(
            tmp_path, 2, hosts_apart=True, partition_request_timeout_seconds=0.05
        ) as cluster,
        api_clients(cluster, 0) as (client,),
    ):
        nowhere = PartitionLocation(1, 7, int(BLOCKING), *place_of(cluster[0]))
        other = nowhere.at(place_of(cluster[1]))
        async with client.open_gate([nowhere], 0, alternatives=[[other, other]]) as gate:
            with pytest.raises(SluiceError) as missing:
                await gate.next_buffer_or_event()
            assert missing.value.code is ErrorCode.PARTITION_NOT_FOUND
            with pytest.raises(SluiceError):
                await gate.next_buffer_or_event()


async def test_places_that_name_each_other_are_not_followed_for_ever(tmp_path):
    async with mini_cluster(tmp_path, 2, hosts_apart=True) as cluster:
        for number in range(2):
            cluster[number].partitions.moved.move(KEY, {7: place_of(cluster[1 - number])})
        async with api_clients(cluster, 0) as (client,):
            location = PartitionLocation(1, 7, int(BLOCKING), *place_of(cluster[0]))
            async with client.open_gate([location], 0) as gate:
                with pytest.raises(SluiceError) as moved:
                    await gate.next_buffer_or_event()
                assert moved.value.code is ErrorCode.PARTITION_MOVED
        for number in range(2):
            cluster[number].partitions.moved.forget(lambda key: True)


async def test_embedded_tasks_write_and_read_copies(tmp_path):
    async with mini_cluster(tmp_path, 3, check=False, hosts_apart=True) as cluster:
        await know_each_other(cluster)
        async with embedded_clients(cluster, 0, 1) as (writer, reader):
            location = await write(writer)
            copy = holder(cluster, 0)
            other = location.at(place_of(cluster[copy]))
            async with reader.open_gate([location], 0, alternatives=[[other]]) as gate:
                content = bytearray()
                await read_some(gate, content, 100_000)
                cluster[0].partitions.moved.move(KEY, {7: place_of(cluster[copy])})
                await read_some(gate, content, 2 * len(DATA))
            assert content == DATA


@pytest.mark.parametrize("replicas", [0, 9])
async def test_a_number_of_replicas_out_of_range_is_refused(tmp_path, replicas):
    async with mini_cluster(tmp_path, 1) as cluster, api_clients(cluster, 0) as (client,):
        with pytest.raises(InvalidRequest, match="Number of replicas"):
            await write(client, replicas)


async def test_a_pipelined_partition_has_no_copies(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster, api_clients(cluster, 0) as (client,):
        with pytest.raises(InvalidRequest, match="pipelined partition has no copies"):
            async with client.open_result_partition(1, 7, 2, replicas=2):
                pass


async def test_alternatives_must_be_copies_of_the_same_partition(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster, api_clients(cluster, 0) as (client,):
        location = PartitionLocation(1, 7, int(BLOCKING), *place_of(cluster[0]))
        wrongs: list[list[list[PartitionLocation]]] = [
            [[location._replace(map_attempt_id=8)]],
            [[location._replace(shuffle_id=2)]],
            [[], []],
        ]
        for wrong in wrongs:
            with pytest.raises(InvalidRequest):
                async with client.open_gate([location], 0, alternatives=wrong):
                    pass
        pipelined = location._replace(partition_type=int(ResultPartitionType.PIPELINED))
        with pytest.raises(InvalidRequest):
            async with client.open_gate([pipelined], 0, alternatives=[[pipelined]]):
                pass


async def test_copies_are_written_and_read_without_asyncio(tmp_path):
    async with mini_cluster(
        tmp_path,
        3,
        check=False,
        hosts_apart=True,
        connect_timeout_seconds=0.5,
        partition_request_timeout_seconds=0.5,
    ) as cluster:
        await know_each_other(cluster)
        addresses = [str(each.address) for each in cluster.environments]
        places = [place_of(each) for each in cluster.environments]

        def write_one() -> PartitionLocation:
            with (
                SyncShuffleClient(addresses[0], "app") as client,
                client.open_result_partition(
                    1,
                    7,
                    1,
                    BytesSerializer(),
                    partition_type=BLOCKING,
                    replicas=2,
                    replicas_synchronous=True,
                ) as out,
            ):
                out.emit(b"hello")
                return out.location

        def read_one(location: PartitionLocation) -> list[bytes]:
            others = [location.at(place) for place in places[1:]]
            with (
                SyncShuffleClient(addresses[1], "app") as client,
                client.open_gate([location], 0, alternatives=[others]) as gate,
            ):
                return list(gate.records(BytesSerializer()))

        location = await asyncio.to_thread(write_one)
        assert holder(cluster, 0)
        await cluster[0].close()
        assert await asyncio.to_thread(read_one, location) == [b"hello"]
