"""A few TaskManagers in one event loop, on loopback, each in a directory of its own.

At its end a cluster closes its clients and checks that connections, gates, pools, segments and,
once the applications are released, extents are back to zero on every TaskManager.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from sluice.protocol.schema import ROLE_COPIER
from sluice.shuffle.taskmanager.bounds.quotas import QuotaConfig
from sluice.shuffle.taskmanager.config.taskmanager_config import TaskManagerConfig
from sluice.shuffle.taskmanager.serve.consumer_handler import ConsumerHandler
from sluice.shuffle.taskmanager.wiring import NetworkEnvironment
from tests.support.wire_clients import Client, consumer, driver, producer, write_map_output

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from sluice.protocol.schema import HelloAck
    from sluice.shuffle.gate.input_gate import InputGate
    from sluice.transport.config import TransportConfig

DEADLINE_SECONDS = 60
LOOK_AGAIN_SECONDS = 0.002
SEGMENT_SIZE_BYTES = 4096

MEMORY_TIER = 8 * 1024 * 1024
DISK_ONLY = 0


class MiniCluster:
    """Running TaskManagers and their clients."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environments: list[NetworkEnvironment] = []
        self.clients: list[Client] = []
        self.client_config: TransportConfig | None = None
        """How clients connect; the TLS settings of the cluster are theirs too."""

    def __getitem__(self, index: int) -> NetworkEnvironment:
        return self.environments[index]

    async def start_one(self, index: int, settings: dict[str, Any]) -> NetworkEnvironment:
        """Start a TaskManager on the directories of that number."""
        given = dict(settings)
        if given.pop("hosts_apart", False):
            given["bind_host"] = f"127.0.0.{index + 1}"
        return await NetworkEnvironment.build(
            taskmanager_config(self.directory / f"tm{index}", **given)
        )

    async def producer(self, index: int, application_id: str = "app") -> Client:
        return self._keep(await producer(self[index].address, application_id, self.client_config))

    async def consumer(
        self,
        index: int,
        application_id: str = "app",
        segment_size_bytes: int = SEGMENT_SIZE_BYTES,
    ) -> Client:
        address = self[index].address
        return self._keep(
            await consumer(address, application_id, self.client_config, segment_size_bytes)
        )

    async def driver(self, index: int, application_id: str = "app") -> Client:
        address = self[index].address
        return self._keep(await driver(address, application_id, self.client_config))

    async def write(
        self,
        index: int,
        map_attempt_id: int,
        regions: Sequence[Sequence[bytes]],
        *,
        shuffle_id: int = 1,
    ) -> HelloAck:
        """Write and commit one map output over a connection of its own."""
        client = await producer(self[index].address, config=self.client_config)
        await write_map_output(client, shuffle_id, map_attempt_id, regions)
        ack = client.ack
        await client.close()
        return ack

    def _keep(self, client: Client) -> Client:
        self.clients.append(client)
        return client

    async def check_nothing_left(self) -> None:
        """Wait until everything is back to zero; fail with what is not."""
        for client in self.clients:
            if client.lost is None:
                await client.close()
        for environment in self.environments:
            await until_clean(environment, network_leftovers)
        for environment in self.environments:
            partitions = environment.partitions
            kept = {key.application_id for key, _, _ in partitions.pipelined}
            for application_id in kept.union(environment.store.applications()):
                partitions.release_application(application_id)
            await until_clean(environment, storage_leftovers)


@contextlib.asynccontextmanager
async def mini_cluster(
    directory: Path, count: int = 2, *, check: bool = True, **settings: Any
) -> AsyncIterator[MiniCluster]:
    """Start a cluster, and close it.

    Args:
        directory: For everything it stores.
        count: Number of TaskManagers.
        check: Whether to check at the end that nothing is left.
        settings: Keys of any table of the configuration, and ``hosts_apart``: each TaskManager has
            an address of its own.
    """
    cluster = MiniCluster(directory)
    if settings.get("tls_enabled"):
        cluster.client_config = taskmanager_config(directory, **settings).transport
    try:
        for index in range(count):
            cluster.environments.append(await cluster.start_one(index, settings))
        yield cluster
        if check:
            await cluster.check_nothing_left()
    finally:
        for client in cluster.clients:
            if client.lost is None:
                client.vanish()
                await client.until_lost()
        for environment in cluster.environments:
            await environment.close()
        if check:
            for environment in cluster.environments:
                await until_clean(environment, segments_out)


def taskmanager_config(directory: Path, **settings: Any) -> TaskManagerConfig:
    """Return the configuration of a small TaskManager in a directory, without quotas.

    Args:
        directory: For everything it stores.
        settings: Keys of any table.
    """
    given: dict[str, Any] = {
        **dict.fromkeys(QuotaConfig.model_fields.keys() - {"quota_overrides"}, "none"),
        "bind_host": "127.0.0.1",
        "data_port": 0,
        "connect_timeout_seconds": 5,
        "close_timeout_seconds": 2,
        "peer_idle_timeout_seconds": 0,
        "segment_size_bytes": SEGMENT_SIZE_BYTES,
        "network_segments": 64,
        "partition_request_timeout_seconds": 5,
        "data_directories": (directory / "data",),
        "memory_directory": directory / "memory",
        "memory_tier_bytes": MEMORY_TIER,
        "min_free_bytes": 0,
        "io_threads": 2,
        "http_host": "127.0.0.1",
        "http_port": 0,
        **settings,
    }
    tables: dict[str, dict[str, Any]] = {}
    for name, field in TaskManagerConfig.model_fields.items():
        keys = getattr(field.annotation, "model_fields", {})
        tables[name] = {key: given.pop(key) for key in list(given) if key in keys}
    assert not given, given
    return TaskManagerConfig.model_validate({name: each for name, each in tables.items() if each})


async def eventually(condition: Callable[[], object], what: str = "") -> None:
    """Wait for what happens in its own time, such as the end of a connection on its other side.

    For states that nobody announces; what a client is told is awaited by the client.
    """
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not condition():  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(LOOK_AGAIN_SECONDS)  # bounded by the deadline
    except TimeoutError:
        raise AssertionError(f"never came about: {what or condition}") from None


async def until_clean(
    environment: NetworkEnvironment, leftovers: Callable[[NetworkEnvironment], list[str]]
) -> None:
    """Wait until nothing is left; fail with what is."""
    try:
        await eventually(lambda: not leftovers(environment))
    except AssertionError:
        raise AssertionError(f"{environment.address} has {leftovers(environment)}") from None


def network_leftovers(environment: NetworkEnvironment) -> list[str]:
    """Return what is not back to zero but for the stored data."""
    pool = environment.network_pool
    # Members watch each other until they stop.
    members = sum(
        connection.role == ROLE_COPIER and not connection.application_id
        for connection in environment.handlers
    )
    left = [
        ("connections", len(environment.listener.connections) - members),
        ("handlers", len(environment.handlers) - members),
        ("embedded clients", len(environment.embedded)),
        ("gates", len(gates(environment))),
        ("peer connections", len(environment.peers)),
        ("local pools", len(pool.local_pools) + len(pool.draining_pools)),
        ("segments out", pool.total_segments - pool.available_segments),
        ("reserved segments", pool.reserved_segments),
        ("control memory", environment.listener.control_memory.used_bytes),
        ("region areas", environment.region_areas.status().areas),
        ("waiting requests", pool.waiting_requests + environment.partitions.waiting_requests),
    ]
    return [f"{name}: {number}" for name, number in left if number]


def segments_out(environment: NetworkEnvironment) -> list[str]:
    """Return the segments that are not back, also in a pool that is closed."""
    out = environment.network_pool.lent_segments
    return [f"segments out: {out}"] if out else []


def storage_leftovers(environment: NetworkEnvironment) -> list[str]:
    """Return what is stored."""
    return [
        f"{tier.tier}: {tier.extents} extents of {tier.used_bytes} bytes"
        for tier in environment.store.tiers()
        if tier.extents or tier.used_bytes
    ]


def gates(environment: NetworkEnvironment) -> list[InputGate]:
    """Return the open gates."""
    return [
        gate
        for handler in environment.handlers.values()
        if isinstance(handler, ConsumerHandler)
        for gate, _ in handler.gates.values()
    ]
