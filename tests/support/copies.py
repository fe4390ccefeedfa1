"""Clusters whose TaskManagers copy map outputs to each other, and what their clients do."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any

from sluice.protocol.schema import (
    KnownTaskManager,
    OutputsHeld,
    OutputsRemote,
    ReleaseApplication,
    ReplicatePartition,
    ReplicateToRemote,
)
from sluice.shuffle.names import ShuffleKey
from tests.support.mini_cluster import mini_cluster
from tests.support.wire_clients import consumer, producer, read_gate, write_map_output
from tests.support.wire_clients import driver as connect_driver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from sluice.shuffle.taskmanager.wiring import NetworkEnvironment
    from sluice.transport.address import Address
    from tests.support.mini_cluster import MiniCluster
    from tests.support.wire_clients import Client

KEY = ShuffleKey("app", 1)
DATA = [random.Random(n).randbytes(n * 40_000 + 7) for n in range(8)]
"""Of the map outputs that :func:`write_outputs` writes."""


async def driver(cluster: MiniCluster, index: int, application_id: str = "app") -> Client:
    """Connect as a driver, and name all other TaskManagers."""
    client = await cluster.driver(index, application_id)
    for number, other in enumerate(cluster.environments):
        if number != index:
            client.send(KnownTaskManager(other.taskmanager_id, *other.address))
    return client


async def drivers(cluster: MiniCluster, application_id: str = "app") -> list[Client]:
    """Connect as such a driver to each TaskManager."""
    return [
        await driver(cluster, index, application_id) for index in range(len(cluster.environments))
    ]


@contextlib.asynccontextmanager
async def copying(
    directory: Path, count: int = 2, *, hosts_apart: bool = True, **settings: Any
) -> AsyncIterator[tuple[MiniCluster, list[Client]]]:
    """Run TaskManagers on different hosts, each with such a driver; end the application."""
    if hosts_apart:
        settings["hosts_apart"] = True
    async with mini_cluster(directory, count, **settings) as cluster:
        links = await drivers(cluster)
        yield cluster, links
        end_application(links)


async def write(
    environment: NetworkEnvironment,
    map_attempt_id: int,
    regions: Sequence[Sequence[bytes]],
    *,
    replicas: int = 2,
    synchronous: bool = True,
) -> None:
    """Write and commit a map output that several TaskManagers shall keep."""
    client = await producer(environment.address)
    replicate = ReplicatePartition(0, replicas, synchronous)
    await write_map_output(client, KEY.shuffle_id, map_attempt_id, regions, replicate=replicate)
    await client.close()


async def read(environment: NetworkEnvironment, map_attempt_id: int, subpartitions: int) -> bytes:
    """Read a whole map output through the TaskManager that has it."""
    client = await consumer(environment.address)
    try:
        sources = [(client.ack, [map_attempt_id])]
        (content,) = await read_gate(client, KEY.shuffle_id, sources, 0, subpartitions)
    finally:
        await client.close()
    return content


def holders(cluster: MiniCluster, map_attempt_id: int) -> list[int]:
    """Return the numbers of the TaskManagers that have a map output."""
    return [
        number
        for number, environment in enumerate(cluster.environments)
        if environment.store.lookup(KEY, map_attempt_id) is not None
    ]


def end_application(clients: Sequence[Client]) -> None:
    """End the application everywhere."""
    for client in clients:
        if client.lost is None:
            client.send(ReleaseApplication())


async def write_outputs(
    address: Address, replicate: ReplicatePartition | ReplicateToRemote
) -> None:
    """Write map outputs to a TaskManager, each of two regions, and ask for copies of them."""
    writer = await producer(address)
    for attempt, data in enumerate(DATA):
        regions = [[data, b""], [b"second", data]]
        await write_map_output(writer, 1, attempt, regions, replicate=replicate)
    await writer.close()


async def check_outputs(address: Address) -> None:
    """Read all of them from one TaskManager."""
    reader = await consumer(address)
    for attempt, data in enumerate(DATA):
        found = await read_gate(reader, 1, [(reader.ack, [attempt])], 0, 2)
        assert found == [data + b"second" + data]
    await reader.close()


async def until_told(address: Address, kind: type[OutputsHeld | OutputsRemote]) -> None:
    """Wait until a TaskManager has notified its driver of the copies of all of them."""
    found: set[int] = set()
    driver = await connect_driver(address)
    while found < set(range(len(DATA))):
        message = await driver.expect(kind)
        assert isinstance(message, kind)
        found.update(message.map_attempt_ids)
    await driver.close()
