"""Full buffers of a pipelined partition that wait for the connection share messages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from crc32c import crc32c

from sluice.protocol.events import CustomEvent, encode_event
from sluice.protocol.schema import EVENT, BufferResponse, ChecksummedBuffer
from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.partition.pipelined_result_partition import PipelinedResultPartition
from sluice.shuffle.taskmanager.serve.credit_based_view_reader import CreditBasedViewReader
from sluice.shuffle.taskmanager.serve.partition_request_queue import PartitionRequestQueue
from tests.support.fakes import Ended, FakeConnection

SEGMENTS = 9
SIZE = 64


class Rig:
    """A partition with one subpartition."""

    def __init__(self) -> None:
        self.network = NetworkBufferPool(SEGMENTS, SIZE)
        pool = self.network.create_local_pool("partition", 2, SEGMENTS)
        self.partition = PipelinedResultPartition("test", 1, pool)
        self.partition.shares_messages = True

    async def write(self, content: bytes) -> None:
        builder = await self.partition.wait_for_builder(0)
        self.partition.add_consumer(builder.create_consumer(), 0)
        builder.append_and_commit(content)
        builder.finish()


@pytest.fixture
def rig():
    rig = Rig()
    yield rig
    rig.partition.release()
    seen = rig.network.statistics()
    assert seen.free_segments == seen.total_segments


class Channel:
    """A reader of the rig's partition, and what it sends.

    Args:
        rig: Has the partition.
        credit: Credit of the request, the most that the channel ever has.
        credit_bytes: Bytes of a full buffer.
    """

    def __init__(self, rig: Rig, credit: int, credit_bytes: int = SIZE) -> None:
        self.connection: Any = FakeConnection()
        log = Ended()
        queue = PartitionRequestQueue(self.connection, log.on_sent, log.on_ended)
        self.reader = CreditBasedViewReader(1, credit, queue.notify, credit_bytes)
        self.reader.attach(rig.partition.create_view(0, self.reader.data_available))

    async def sent(self) -> list[bytes]:
        """Let the queue run; return the payloads of its messages, whose memory goes home."""
        for _ in range(3):  # turns of the loop: the queue sends in callbacks of its own
            await asyncio.sleep(0)
        self.connection.drain()
        payloads, self.connection.payloads = self.connection.payloads, []
        return payloads


FULL = [bytes([number]) * SIZE for number in range(9)]
"""Buffers without room."""


async def test_full_buffers_that_wait_share_messages(rig):
    """Each message has a third of the channel's buffers, and each buffer its credit."""
    for content in FULL[:7]:
        await rig.write(content)
    channel = Channel(rig, credit=6)
    assert await channel.sent() == [FULL[0] + FULL[1], FULL[2] + FULL[3], FULL[4] + FULL[5]]
    messages = channel.connection.take(BufferResponse)
    assert [(m.sequence_number, m.backlog) for m in messages] == [(0, 5), (1, 3), (2, 1)]
    assert channel.reader.credit.available == 0
    assert (channel.reader.buffers_out, channel.reader.bytes_out) == (6, 6 * SIZE)
    channel.reader.add_credit(1)
    assert await channel.sent() == [FULL[6]]
    channel.reader.release()


async def test_a_message_ends_with_a_buffer_that_is_not_full(rig):
    """The next buffer would not begin at a segment of the reader."""
    for content in (FULL[0], b"short", FULL[1], FULL[2]):
        await rig.write(content)
    channel = Channel(rig, credit=9)
    assert await channel.sent() == [FULL[0] + b"short", FULL[1] + FULL[2]]
    channel.reader.release()


async def test_a_message_ends_before_an_event_and_before_an_open_buffer(rig):
    event = encode_event(CustomEvent("event", b""))
    await rig.write(FULL[0])
    rig.partition.emit_event(event, EVENT, 0)
    await rig.write(FULL[1])
    builder = await rig.partition.wait_for_builder(0)
    rig.partition.add_consumer(builder.create_consumer_from_beginning(), 0)
    builder.append_and_commit(b"open")
    rig.partition.flush(0)
    channel = Channel(rig, credit=9)
    assert await channel.sent() == [FULL[0], event, FULL[1], b"open"]
    builder.finish()
    channel.reader.release()


async def test_a_channel_with_few_buffers_gets_them_one_by_one(rig):
    for content in FULL[:3]:
        await rig.write(content)
    channel = Channel(rig, credit=3)
    assert await channel.sent() == FULL[:3]
    channel.reader.release()


async def test_a_shared_message_has_the_checksum_of_all_its_bytes(rig):
    for content in FULL[:4]:
        await rig.write(content)
    channel = Channel(rig, credit=4)
    channel.reader.checksums = True
    assert await channel.sent() == [FULL[0] + FULL[1], FULL[2] + FULL[3]]
    found = [message.crc32c for message in channel.connection.take(ChecksummedBuffer)]
    assert found == [crc32c(FULL[0] + FULL[1], 1), crc32c(FULL[2] + FULL[3], 1)]
    channel.reader.release()
