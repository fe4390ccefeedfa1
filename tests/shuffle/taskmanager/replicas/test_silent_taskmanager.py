"""A TaskManager that is stopped (SIGSTOP) keeps its sockets, and its clients go elsewhere."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from sluice import (
    BytesSerializer,
    ClientConfig,
    PartitionLocation,
    ResultPartitionType,
    ShuffleClient,
)
from sluice.protocol.errors import ErrorCode, SluiceError
from tests.support.api_clients import emitted

if TYPE_CHECKING:
    from pathlib import Path

    from sluice.shuffle.client.result_partition import ResultPartition

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_factories=["uvloop"]),
]

SILENCE_SECONDS = 2.0
DEADLINE_SECONDS = 30.0
"""The TaskManager stays stopped for the whole test."""
CONFIG = ClientConfig(silence_timeout_seconds=SILENCE_SECONDS)
RECORDS = [b"%d" % number * 1000 for number in range(2000)]


async def write(client: ShuffleClient, attempt: int, **settings) -> ResultPartition:
    async with client.open_result_partition(
        1, attempt, 1, partition_type=ResultPartitionType.BLOCKING, **settings
    ) as partition:
        writer = partition.record_writer(BytesSerializer())
        for record in RECORDS:
            await emitted(writer.emit(record))
    return partition


async def read(client: ShuffleClient, *at: PartitionLocation) -> list[bytes]:
    async with client.open_gate([at[0]], 0, alternatives=[at[1:]]) as gate:
        return [record async for record in gate.records(BytesSerializer())]


def start(pair, tmp_path: Path) -> str:
    """Start both; return the socket of the first."""
    socket = tmp_path / "first.sock"
    pair.start(0, socket_path=socket)
    pair.start(1)
    return f"unix:{socket}"


async def test_a_client_of_a_stopped_taskmanager_reads_a_copy(pair, tmp_path):
    own, other = start(pair, tmp_path), pair.addresses[1]
    async with (
        await ShuffleClient.connect(other, "app", CONFIG) as beside,
        await ShuffleClient.connect([own, other], "app", CONFIG) as client,
    ):
        first = await write(client, 0, replicas=2, replicas_synchronous=True)
        place = (await write(beside, 1)).location.place
        pair.daemons[0].pause()
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                assert await read(client, first.location, first.location.at(place)) == RECORDS
            with pytest.raises(SluiceError):  # it was written to the stopped one
                await write(client, 2)
            second = await write(client, 3)
            assert second.location.taskmanager_id == place.taskmanager_id
        finally:
            pair.daemons[0].resume()


async def test_a_client_without_another_endpoint_learns_that_it_is_stopped(pair, tmp_path):
    own = start(pair, tmp_path)
    async with await ShuffleClient.connect(own, "app", CONFIG) as client:
        partition = await write(client, 0)
        pair.daemons[0].pause()
        try:
            with pytest.raises(SluiceError, match="silent") as caught:
                async with asyncio.timeout(DEADLINE_SECONDS):
                    await read(client, partition.location)
            assert caught.value.code is ErrorCode.CONNECTION_LOST
        finally:
            pair.daemons[0].resume()
