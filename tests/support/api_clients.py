"""Clients of the Python API on the TaskManagers of a mini cluster."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from sluice.shuffle.client.client import ShuffleClient
from sluice.shuffle.client.config import ClientConfig
from sluice.shuffle.client.pipelined_writer import PipelinedWriter
from tests.support.mini_cluster import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from sluice.shuffle.client.client_gate import ClientGate
    from sluice.shuffle.client.result_partition import ResultPartition
    from sluice.shuffle.gate.readable_gate import BufferOrEvent
    from sluice.shuffle.partition.view import OutgoingBuffer
    from sluice.shuffle.taskmanager.embedded.client import EmbeddedClient
    from tests.support.mini_cluster import MiniCluster

DEADLINE_SECONDS = 60


@contextlib.asynccontextmanager
async def api_clients(
    cluster: MiniCluster, *indexes: int, **settings: Any
) -> AsyncIterator[list[ShuffleClient]]:
    """Connect clients to TaskManagers by index; at the end all of their memory must be back."""
    config = ClientConfig(**settings)
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(DEADLINE_SECONDS):
        clients = [
            await stack.enter_async_context(
                await ShuffleClient.connect(cluster[index].address, "app", config)
            )
            for index in indexes
        ]
        yield clients
        for client in clients:
            await eventually(partial(memory_is_back, client), "memory of a client")


@contextlib.asynccontextmanager
async def embedded_clients(
    cluster: MiniCluster, *indexes: int, buffer_timeout_seconds: float = 0.1, **settings: Any
) -> AsyncIterator[list[EmbeddedClient]]:
    """Make clients of tasks in TaskManagers by index.

    The settings of a client's own memory have no meaning here: the TaskManager's pool is used.
    """
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(DEADLINE_SECONDS):
        yield [
            await stack.enter_async_context(
                cluster[index].client("app", None, buffer_timeout_seconds)
            )
            for index in indexes
        ]


TASKS = pytest.mark.parametrize(
    "clients_at", [api_clients, embedded_clients], ids=["beside", "embedded"]
)
"""Tasks are in a process beside their TaskManager, or in the TaskManager itself."""


async def emitted(pending: Awaitable[None] | None) -> None:
    """Wait for what a record writer returned, if it has to be waited for."""
    if pending is not None:
        await pending


async def next_of(gate: ClientGate) -> BufferOrEvent:
    """Read the next buffer or event of a gate that has not ended, and give its memory back."""
    taken = await gate.next_buffer_or_event()
    assert taken is not None
    give_back(taken.buffer)
    return taken


def give_back(buffer: OutgoingBuffer) -> None:
    """Release a buffer or an event that was read."""
    if buffer.release is not None:
        buffer.release()


def pipelined(partition: ResultPartition) -> PipelinedWriter:
    """Return the writer of a partition that is pipelined."""
    assert isinstance(partition.writer, PipelinedWriter)
    return partition.writer


def memory_is_back(client: ShuffleClient) -> bool:
    """Tell whether a client's partitions and gates have given everything back."""
    pool = client.network_pool
    return (
        pool.available_segments == pool.total_segments
        and not pool.local_pools
        and not pool.draining_pools
    )


def vanish(client: ShuffleClient) -> None:
    """Drop both connections without a word, as a killed process does."""
    for leg in (client._legs.producer, client._legs.consumer):
        transport = leg.connection._transport
        if transport is not None:
            transport.abort()
