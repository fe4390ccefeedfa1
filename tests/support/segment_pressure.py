"""Clients that wait for segments, and time that passes meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sluice.protocol.schema import (
    CONSUME_WHEN_REGISTERED,
    PARTITION_PIPELINED,
    ErrorResponse,
    Message,
    OpenPipelinedPartition,
    PartitionOpened,
)

if TYPE_CHECKING:
    from tests.support.mini_cluster import MiniCluster
    from tests.support.wire_clients import Client

SHUFFLE, ATTEMPT = 1, 7
HALF = 8
"""Subpartitions of a partition that needs more than half of 16 segments."""


async def look(cluster: MiniCluster, times: int = 1, index: int = 0) -> None:
    """Let the time pass that something may stand still."""
    for _ in range(times):
        await asyncio.sleep(0)  # the watch begins in a turn of its own
        cluster[index].segment_pressure.look()


async def ask(
    client: Client, subpartitions: int = HALF, kind: int = PARTITION_PIPELINED
) -> Message:
    """Open pipelined partition 0; return the answer."""
    client.send(
        OpenPipelinedPartition(0, SHUFFLE, ATTEMPT, subpartitions, kind, CONSUME_WHEN_REGISTERED)
    )
    return await answer(client, PartitionOpened)


async def answer(client: Client, kind: type[Message]) -> Message:
    """Return the next answer of a kind, or the next error."""
    while True:
        message, _ = await client.receive()
        if type(message) is kind or type(message) is ErrorResponse:
            return message
