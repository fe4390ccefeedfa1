"""Payloads above the segment size, for clients without segments."""

from __future__ import annotations

import random
from typing import Any

import pytest
from crc32c import crc32c

from sluice.protocol.errors import ErrorCode
from sluice.protocol.events import EndOfPartition, decode_event
from sluice.protocol.limits import MAX_LARGE_PAYLOAD_BYTES
from sluice.protocol.schema import (
    ROLE_CONSUMER,
    ROLE_PRODUCER,
    AddCredit,
    BeginRegion,
    BufferResponse,
    ErrorResponse,
    FinishPartition,
    GateChannel,
    HelloAck,
    OpenGate,
    OpenPartition,
    PartitionFinished,
    RegionData,
    RegionOpened,
)
from sluice.shuffle.taskmanager.store.tiers.disk_tier import DiskTier
from tests.support.mini_cluster import DISK_ONLY, MEMORY_TIER, SEGMENT_SIZE_BYTES, mini_cluster
from tests.support.raw_client import RawClient, acknowledged
from tests.support.wire_clients import read_gate

DATA = random.Random(9).randbytes(3 * MAX_LARGE_PAYLOAD_BYTES + 12_345)

both_tiers = pytest.mark.parametrize(
    ("memory_tier_bytes", "payload_bytes"),
    [
        (MEMORY_TIER, MAX_LARGE_PAYLOAD_BYTES),
        (DISK_ONLY, DiskTier.read_ahead_segments * SEGMENT_SIZE_BYTES),
    ],
    ids=["memory", "disk"],
)


async def greeted(environment, role: int, **changes: Any) -> tuple[RawClient, HelloAck]:
    client = await RawClient.connect(environment.address)
    ack = acknowledged(await client.greet(role, **changes))
    return client, ack


async def opened(client: RawClient) -> tuple[int, int]:
    """Open a region of DATA; return the payload size and the first credit."""
    client.send_message(OpenPartition(0, 1, 1, 1))
    client.send_message(BeginRegion(0, 0, 0, [len(DATA)], crc32c(DATA)))
    answer = await client.expect(RegionOpened)
    assert isinstance(answer, RegionOpened)
    grant = await client.expect(AddCredit)
    assert isinstance(grant, AddCredit)
    return answer.payload_bytes, grant.credit


async def read_buffers(
    client: RawClient, ack: HelloAck, credit: int, *, has_segments: bool = False
) -> list[bytes]:
    channel = GateChannel(1, ack.taskmanager_id, ack.advertised_host, ack.data_port, [1])
    client.send_message(OpenGate(0, 1, 0, 1, credit, [channel]))
    buffers: list[bytes] = []
    while True:
        message, payload = await client.receive()
        if not isinstance(message, BufferResponse):
            continue
        if message.data_type:
            size = SEGMENT_SIZE_BYTES if has_segments else MAX_LARGE_PAYLOAD_BYTES
            count = sum(-(-len(each) // size) for each in buffers)
            assert decode_event(payload) == EndOfPartition(len(b"".join(buffers)), count)
            return buffers
        buffers.append(payload)
        client.send_message(AddCredit(1, 1))


@both_tiers
async def test_large_payloads_are_written_and_read(tmp_path, memory_tier_bytes, payload_bytes):
    """A megabyte each in memory, several segments on disk; from another host a group.

    Of the disk tier's pools half is one payload: eight segments, as many as are read at once.
    """
    async with mini_cluster(tmp_path, memory_tier_bytes=memory_tier_bytes) as cluster:
        writer, ack = await greeted(cluster[0], ROLE_PRODUCER)
        size, credit = await opened(writer)
        assert size == payload_bytes
        for offset in range(0, len(DATA), size):
            while credit == 0:
                grant = await writer.expect(AddCredit)
                assert isinstance(grant, AddCredit)
                credit += grant.credit
            credit -= 1
            writer.send_message(RegionData(0, offset), DATA[offset : offset + size])
        writer.send_message(FinishPartition(0, len(DATA), 1))
        await writer.expect(PartitionFinished)

        for reader in (0, 1):
            client, _ = await greeted(cluster[reader], ROLE_CONSUMER)
            buffers = await read_buffers(client, ack, 4)
            assert b"".join(buffers) == DATA
            largest = max(map(len, buffers))
            if reader == 0:
                assert largest == payload_bytes
            else:  # as many segments as the channel had credit for, in one frame
                assert largest > SEGMENT_SIZE_BYTES
                assert largest % SEGMENT_SIZE_BYTES == 0
            await client.close()
        # A client with segments gets segments of the same data.
        assert await read_gate(await cluster.consumer(0), 1, [(ack, [1])], 0, 1) == [DATA]
        await writer.close()


async def test_a_client_announces_its_largest_payload(tmp_path):
    async with mini_cluster(tmp_path, 1) as cluster:
        ack = await cluster.write(0, 1, [[DATA]])
        client, _ = await greeted(cluster[0], ROLE_CONSUMER, segment_size_bytes=10_000)
        buffers = await read_buffers(client, ack, 4, has_segments=True)
        assert b"".join(buffers) == DATA
        assert max(map(len, buffers)) == 10_000 // SEGMENT_SIZE_BYTES * SEGMENT_SIZE_BYTES
        await client.close()


async def test_a_large_payload_for_a_region_on_disk_fails_its_partition(tmp_path):
    async with mini_cluster(tmp_path, 1, memory_tier_bytes=DISK_ONLY) as cluster:
        client, _ = await greeted(cluster[0], ROLE_PRODUCER)
        size, _ = await opened(client)
        client.send_message(RegionData(0, 0), DATA[: size + 1])
        error = await client.expect(ErrorResponse)
        assert isinstance(error, ErrorResponse)
        assert (error.channel, error.code) == (0, ErrorCode.REGION_MISMATCH)
        assert (error.value, error.limit) == (str(size + 1), str(size))
        await client.close()
