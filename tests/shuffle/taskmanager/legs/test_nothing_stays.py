"""The handlers of connections that are gone are freed without the cyclic collector."""

from __future__ import annotations

import gc
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.framing import FrameDecoder
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
from sluice.shuffle.gate.partition_request_client import PartitionRequestClient
from sluice.shuffle.taskmanager.drivers.driver_handler import DriverHandler
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

KINDS = (
    Connection,
    ConsumerHandler,
    DriverHandler,
    FrameDecoder,
    PartitionRequestClient,
    PeerHandler,
    PipelinedOutput,
    ProducerHandler,
    StoredOutput,
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


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize(
    "use",
    [writes, stops_in_a_region, stops_in_a_pipelined_partition, reads, stops_in_a_gate, releases],
)
async def test_a_leg_is_freed_when_its_connection_is_gone(
    tmp_path, use: Callable[[MiniCluster], Awaitable[None]]
) -> None:
    async with mini_cluster(tmp_path, 2, map_output_resume_timeout_seconds=0.01) as cluster:
        before = living()
        await use(cluster)
        await eventually(lambda: not cluster[0].listener.connections)
        await eventually(lambda: not cluster[1].listener.connections)
        await eventually(lambda: not cluster[0].network_pool.local_pools)
        await eventually(lambda: living() == before or None, f"{living() - before} stay")
