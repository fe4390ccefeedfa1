"""Copies between TaskManagers that share a cluster secret."""

from __future__ import annotations

import asyncio
import os
import random
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.identity import secret_to_text
from sluice.shuffle.client.client import ShuffleClient
from sluice.shuffle.client.config import ClientConfig
from sluice.shuffle.names import TaskManagerPlace
from sluice.shuffle.partition.partition_type import ResultPartitionType
from sluice.shuffle.records.serializers import BytesSerializer

if TYPE_CHECKING:
    from sluice.shuffle.client.partition_location import PartitionLocation

pytestmark = pytest.mark.slow  # all of it together

one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])

RECORDS = [random.Random(n).randbytes(50_000) for n in range(10)]


async def write(client: ShuffleClient) -> PartitionLocation:
    async with client.open_result_partition(
        1,
        7,
        1,
        partition_type=ResultPartitionType.BLOCKING,
        replicas=2,
        replicas_synchronous=True,
    ) as partition:
        writer = partition.record_writer(BytesSerializer())
        for record in RECORDS:
            waiting = writer.emit(record)
            if waiting is not None:
                await waiting
    return partition.location


@one_loop
async def test_copies_carry_credential_and_application(pair, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text(secret_to_text(os.urandom(32)))
    secret.chmod(0o600)
    for number in range(2):
        pair.start(number, cluster_secret_files=str(secret))
    credential = secret.read_text()
    endpoints = [str(address) for address in pair.addresses]
    async with await ShuffleClient.connect(endpoints[0], "app", credential=credential) as client:
        location = await write(client)
        # The copy is read through the other TaskManager while the first one is gone.
        await asyncio.to_thread(pair.kill, 0)
    place = TaskManagerPlace(pair.daemons[1].identity, *pair.addresses[1])
    async with (
        await ShuffleClient.connect(
            endpoints[1], "app", ClientConfig(), credential=credential
        ) as client,
        client.open_gate([location.at(place)], 0) as gate,
    ):
        assert [record async for record in gate.records(BytesSerializer())] == RECORDS
