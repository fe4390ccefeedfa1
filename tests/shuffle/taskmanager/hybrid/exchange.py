"""Writers and readers of hybrid partitions on real TaskManagers."""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol.schema import DATA, PARTITION_HYBRID_SELECTIVE, ErrorResponse
from tests.support.mini_cluster import DISK_ONLY, MEMORY_TIER, SEGMENT_SIZE_BYTES, MiniCluster
from tests.support.pipelined_clients import PipelinedReader, PipelinedWriter

TIERS = pytest.mark.parametrize("tier", [MEMORY_TIER, DISK_ONLY], ids=["memory", "disk"])
READ_AT = pytest.mark.parametrize("reader_at", [0, 1], ids=["local", "remote"])
MANY = 400
"""Buffers that no pool of these TaskManagers holds."""


async def a_writer(
    cluster: MiniCluster,
    subpartitions: int = 1,
    partition_type: int = PARTITION_HYBRID_SELECTIVE,
    attempt: int = 7,
) -> PipelinedWriter:
    client = await cluster.producer(0)
    return await PipelinedWriter.open(client, attempt, subpartitions, partition_type=partition_type)


async def a_reader(
    cluster: MiniCluster,
    writer: PipelinedWriter,
    reader_at: int = 0,
    subpartition: int = 0,
    credit: int = 4,
    attempt: int = 7,
) -> PipelinedReader:
    client = await cluster.consumer(reader_at)
    return PipelinedReader(client, [(writer.client.ack, attempt)], subpartition, credit=credit)


def buffers(count: int, size: int = SEGMENT_SIZE_BYTES) -> list[bytes]:
    return [number.to_bytes(4, "big") * (size // 4) for number in range(count)]


def stored_bytes(cluster: MiniCluster) -> int:
    return sum(tier.used_bytes for tier in cluster[0].store.tiers())


async def send_all(writer: PipelinedWriter) -> None:
    """Send more than any tier of the test has room for, until an error comes."""
    for data in buffers(MANY):
        await writer.send(0, data)
    await writer.hear(ErrorResponse)


async def read_bytes(gate) -> bytes:
    found = []
    async with asyncio.timeout(60):
        while (taken := await gate.next_buffer_or_event()) is not None:
            _, (payload, release, data_type) = taken
            if data_type == DATA:
                found.append(bytes(payload))
            if release is not None:
                release()
    return b"".join(found)


def joined(messages: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Join neighboring data: where a buffer ends says nothing."""
    found: list[tuple[int, bytes]] = []
    for kind, payload in messages:
        if kind == DATA and found and found[-1][0] == DATA:
            found[-1] = DATA, found[-1][1] + payload
        else:
            found.append((kind, payload))
    return found
