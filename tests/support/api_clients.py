"""Clients of the Python API on the TaskManagers of a mini cluster."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from shuffle.client.client import ShuffleClient
from shuffle.client.config import ClientConfig
from tests.support.mini_cluster import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.mini_cluster import MiniCluster

DEADLINE_SECONDS = 30


@contextlib.asynccontextmanager
async def api_clients(
    cluster: MiniCluster, *indexes: int, **settings: object
) -> AsyncIterator[list[ShuffleClient]]:
    """Connect clients to TaskManagers by index; at the end all of their memory must be back."""
    config = ClientConfig(**settings)  # type: ignore[arg-type]
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(DEADLINE_SECONDS):
        clients = [
            await stack.enter_async_context(
                await ShuffleClient.connect(cluster[index].address, "app", config)
            )
            for index in indexes
        ]
        yield clients
        for client in clients:
            await eventually(lambda client=client: memory_is_back(client), "memory of a client")


def memory_is_back(client: ShuffleClient) -> bool:
    """Tell whether a client's partitions and gates have given everything back."""
    pool = client.network_pool.statistics()
    return (
        pool.free_segments == pool.total_segments
        and not pool.local_pools
        and not pool.draining_pools
    )


def vanish(client: ShuffleClient) -> None:
    """Drop both connections without a word, as a killed process does."""
    for leg in (client._producer, client._consumer):
        transport = leg.connection._transport
        if transport is not None:
            transport.abort()
