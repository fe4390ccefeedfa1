"""Handlers, partitions, gates and pools that have ended are freed without the cyclic collector."""

from __future__ import annotations

import gc
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.framing import FrameDecoder
from sluice.protocol.schema import DATA as SCHEMA_DATA
from sluice.protocol.schema import (
    AddCredit,
    BeginRegion,
    OpenPartition,
    OpenPipelinedPartition,
    PartitionOpened,
    RegionData,
    ReleaseShuffle,
    ShuffleReleased,
)
from sluice.shuffle.client.client import ShuffleClient
from sluice.shuffle.client.client_gate import ClientGate
from sluice.shuffle.client.result_partition import ResultPartition
from sluice.shuffle.gate.input_gate import InputGate
from sluice.shuffle.gate.local_input_channel import LocalInputChannel
from sluice.shuffle.gate.partition_request_client import PartitionRequestClient
from sluice.shuffle.gate.remote_input_channel import RemoteInputChannel
from sluice.shuffle.memory import LocalBufferPool
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.shuffle.partition.pipelined_result_partition import PipelinedResultPartition
from sluice.shuffle.partition.pipelined_subpartition import PipelinedSubpartition
from sluice.shuffle.partition.stored_result_partition import StoredResultPartition
from sluice.shuffle.taskmanager.drivers.driver_handler import DriverHandler
from sluice.shuffle.taskmanager.embedded.pipelined_partition import EmbeddedPipelinedPartition
from sluice.shuffle.taskmanager.ingest.pipelined_output import PipelinedOutput
from sluice.shuffle.taskmanager.ingest.producer_handler import ProducerHandler
from sluice.shuffle.taskmanager.ingest.stored_output import StoredOutput
from sluice.shuffle.taskmanager.serve.consumer_handler import ConsumerHandler
from sluice.shuffle.taskmanager.serve.peer_handler import PeerHandler
from sluice.transport.connection import Connection
from sluice.transport.write_side import WriteSide
from tests.support.mini_cluster import MiniCluster, eventually, mini_cluster
from tests.support.wire_clients import consumer, driver, open_gate, producer, read_gate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from sluice.shuffle.client.shuffle_environment import ShuffleEnvironment

KINDS = (
    ClientGate,
    Connection,
    ConsumerHandler,
    DriverHandler,
    EmbeddedPipelinedPartition,
    FrameDecoder,
    InputGate,
    LocalBufferPool,
    LocalInputChannel,
    PartitionRequestClient,
    PeerHandler,
    PipelinedOutput,
    PipelinedResultPartition,
    PipelinedSubpartition,
    ProducerHandler,
    RemoteInputChannel,
    ResultPartition,
    StoredOutput,
    StoredResultPartition,
    WriteSide,
)
DATA = b"some bytes " * 1000


def living() -> Counter[str]:
    return Counter(type(each).__name__ for each in gc.get_objects() if type(each) in KINDS)


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def writes(cluster: MiniCluster) -> None:
    await cluster.write(0, 1, [[DATA]])


async def stops_in_a_region(cluster: MiniCluster) -> None:
    client = await producer(cluster[0].address)
    client.send(OpenPartition(0, 1, 7, 1))
    client.send(BeginRegion(0, 0, 0, [1000], 0))
    await client.expect(AddCredit)
    client.send(RegionData(0, 0), bytes(500))
    await eventually(lambda: cluster[0].counters.producer_bytes_in)
    client.vanish()
    await client.until_lost()


async def stops_in_a_pipelined_partition(cluster: MiniCluster) -> None:
    client = await producer(cluster[0].address)
    client.send(OpenPipelinedPartition(0, 2, 7, 2, 1, 0))
    await client.expect(PartitionOpened)
    client.vanish()
    await client.until_lost()


async def reads(cluster: MiniCluster) -> None:
    """Through another TaskManager, and from this one."""
    far = await cluster.write(1, 1, [[DATA]])
    near = await cluster.write(0, 2, [[DATA]])
    client = await consumer(cluster[0].address)
    assert await read_gate(client, 1, [(far, [1]), (near, [2])], 0, 1) == [DATA, DATA]
    await client.close()


async def stops_in_a_gate(cluster: MiniCluster) -> None:
    far = await cluster.write(1, 1, [[DATA]])
    client = await consumer(cluster[0].address)
    open_gate(client, 1, [(far, [1])], 0, 1)
    await eventually(lambda: cluster[0].counters.peer_bytes_in)
    client.vanish()
    await client.until_lost()


async def releases(cluster: MiniCluster) -> None:
    await cluster.write(0, 1, [[DATA]])
    client = await driver(cluster[0].address)
    client.send(ReleaseShuffle(1))
    await client.expect(ShuffleReleased)
    await client.close()


async def exchange(
    writer: ShuffleEnvironment, reader: ShuffleEnvironment, kind: ResultPartitionType
) -> None:
    """Write a partition and read it, at the same time if it is pipelined."""
    async with writer.open_result_partition(3, 1, 1, partition_type=kind) as partition:
        await partition.emit_buffer(DATA[:4000], 0)
    taken = 0
    async with reader.open_gate([partition.location], 0) as gate:
        while (item := await gate.next_buffer_or_event()) is not None:
            taken += len(item.buffer.payload) * (item.buffer.data_type == SCHEMA_DATA)
            if item.buffer.release is not None:
                item.buffer.release()
    assert taken == 4000


async def embedded_tasks(cluster: MiniCluster) -> None:
    """On one TaskManager, and between two."""
    near = cluster[0].client("app", None, 0.1)
    far = cluster[1].client("app", None, 0.1)
    for reader in (near, far):
        for kind in (ResultPartitionType.PIPELINED_BOUNDED, ResultPartitionType.BLOCKING):
            await exchange(near, reader, kind)
            cluster[0].applications.release("app")
    await near.close()
    await far.close()


async def tasks_with_a_client(cluster: MiniCluster) -> None:
    async with await ShuffleClient.connect(cluster[0].address, "app") as client:
        await exchange(client, client, ResultPartitionType.BLOCKING)
        cluster[0].applications.release("app")


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize(
    "use",
    [
        writes,
        stops_in_a_region,
        stops_in_a_pipelined_partition,
        reads,
        stops_in_a_gate,
        releases,
        embedded_tasks,
        tasks_with_a_client,
    ],
)
async def test_what_has_ended_is_freed(
    tmp_path, use: Callable[[MiniCluster], Awaitable[None]]
) -> None:
    async with mini_cluster(tmp_path, 2, map_output_resume_timeout_seconds=0.01) as cluster:
        before = living()
        await use(cluster)
        await eventually(lambda: not cluster[0].listener.connections)
        await eventually(lambda: not cluster[1].listener.connections)
        await eventually(lambda: not cluster[0].network_pool.local_pools)
        await eventually(lambda: living() == before or None, f"{living() - before} stay")
