"""Channels without exclusive buffers: their TaskManager is told of data that it has no credit for.

The messages are counted where they are received.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.events import CheckpointBarrier, encode_event
from sluice.protocol.schema import (
    BLOCKING_EVENT,
    DATA,
    PARTITION_PIPELINED,
    BacklogAnnouncement,
    ChecksummedBuffer,
    ResumeConsumption,
)
from sluice.shuffle.gate.partition_request_client import PartitionRequestClient
from tests.support.mini_cluster import DISK_ONLY, MEMORY_TIER, SEGMENT_SIZE_BYTES, mini_cluster
from tests.support.pipelined_clients import PipelinedReader, PipelinedWriter
from tests.support.wire_clients import read_gate

if TYPE_CHECKING:
    from sluice.protocol.schema import Message

BARRIER = encode_event(CheckpointBarrier(1, 2, False))


@pytest.fixture
def heard(monkeypatch) -> list[Message]:
    """Messages that consuming TaskManagers received of others."""
    messages: list[Message] = []
    receive = PartitionRequestClient.message_received

    def message_received(self, message, payload_length):
        messages.append(message)
        receive(self, message, payload_length)

    monkeypatch.setattr(PartitionRequestClient, "message_received", message_received)
    return messages


def announcements(heard: list[Message]) -> list[int]:
    return [message.backlog for message in heard if type(message) is BacklogAnnouncement]


@pytest.mark.parametrize("tier", [MEMORY_TIER, DISK_ONLY], ids=["memory", "disk"])
@pytest.mark.parametrize("floating", [1, 8])
async def test_stored_data_arrives_and_each_channel_is_announced_once(
    tmp_path, tier, floating, heard
):
    """Each buffer carries the backlog behind it, from the first one to the end."""
    noise = random.Random(7)
    outputs = [noise.randbytes(length) for length in (1, SEGMENT_SIZE_BYTES, 100_000, 300_001)]
    async with mini_cluster(
        tmp_path,
        memory_tier_bytes=tier,
        exclusive_buffers_per_channel=0,
        floating_buffers_per_stored_gate=floating,
        floating_buffers_per_gate=floating,
    ) as cluster:
        acks = [await cluster.write(0, n, [[output]]) for n, output in enumerate(outputs)]
        sources = [(ack, [attempt]) for attempt, ack in enumerate(acks)]
        assert await read_gate(await cluster.consumer(1), 1, sources, 0, 1) == outputs
    sizes = [-(-len(output) // SEGMENT_SIZE_BYTES) for output in outputs]
    assert sorted(announcements(heard)) == sorted(sizes)


async def test_a_pipelined_reader_that_keeps_up_is_told_of_each_buffer(tmp_path, heard):
    """Nothing that was sent told of the next one. With exclusive buffers nothing is announced."""
    for exclusive, expected in ((0, [1] * 20), (2, [])):
        heard.clear()
        async with mini_cluster(
            tmp_path / str(exclusive), exclusive_buffers_per_channel=exclusive
        ) as cluster:
            writer = await PipelinedWriter.open(await cluster.producer(0), 7, 1)
            reader = PipelinedReader(await cluster.consumer(1), [(writer.client.ack, 7)])
            for number in range(20):
                await writer.send(0, b"%d" % number)
                await reader.read_until(number + 1)
            await writer.finish()
            await reader.read_all()
            assert reader.data() == b"".join(b"%d" % number for number in range(20))
            await reader.close()
        assert announcements(heard) == expected
        assert sum(type(message) is ChecksummedBuffer for message in heard) == 20 + 1


async def test_a_channel_that_waits_at_a_barrier_leaves_the_floating_buffers_to_others(
    tmp_path, heard
):
    """Else the other channel could not bring the barrier that the first one waits for."""
    async with mini_cluster(
        tmp_path, exclusive_buffers_per_channel=0, floating_buffers_per_gate=2
    ) as cluster:
        writers = [
            await PipelinedWriter.open(
                await cluster.producer(0), attempt, 1, partition_type=PARTITION_PIPELINED
            )
            for attempt in (0, 1)
        ]
        content = [bytes([n]) * SEGMENT_SIZE_BYTES for n in range(3)]
        for data in (content[0], BARRIER, content[1], content[2]):
            kind = BLOCKING_EVENT if data is BARRIER else DATA
            await writers[0].send(0, data, kind)
        reader = PipelinedReader(
            await cluster.consumer(1), [(w.client.ack, n) for n, w in enumerate(writers)]
        )
        await reader.read_until(2, index=0)
        for data in content * 2:
            await writers[1].send(0, data)
        await writers[1].send(0, BARRIER, BLOCKING_EVENT)
        await reader.read_until(7, index=1)
        for index, writer in enumerate(writers):
            reader.client.send(ResumeConsumption(reader.channel(index)))
            await writer.finish()
        await reader.read_all()
        assert not reader.errors
        assert reader.data(0) == b"".join(content)
        assert reader.data(1) == b"".join(content * 2)
        await reader.close()
    assert announcements(heard)[-1] == 2  # the data behind the barrier of the first channel
