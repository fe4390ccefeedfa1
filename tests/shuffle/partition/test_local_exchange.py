"""Exchange within a TaskManager: the consumer reads the writer's buffers without a copy."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

import pytest

from sluice.protocol.errors import SluiceError
from sluice.protocol.events import CustomEvent, encode_event
from sluice.protocol.schema import BLOCKING_EVENT, DATA, EVENT, PRIORITY_EVENT, BufferResponse
from sluice.shuffle.gate.local_input_channel import LocalInputChannel
from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.partition.pipelined_result_partition import PipelinedResultPartition
from sluice.shuffle.taskmanager.serve.credit_based_view_reader import CreditBasedViewReader
from sluice.shuffle.taskmanager.serve.partition_request_queue import PartitionRequestQueue
from tests.shuffle.partition.rig import Notifications
from tests.support.fakes import Ended, FakeConnection

SEGMENTS = 4
SIZE = 64


class Rig:
    def __init__(self) -> None:
        self.network = NetworkBufferPool(SEGMENTS, SIZE)
        self.pool = self.network.create_local_pool("partition", 2, SEGMENTS)
        self.partition = PipelinedResultPartition("test", 1, self.pool)
        self.told = Notifications()

    def channel(self) -> LocalInputChannel:
        channel = LocalInputChannel(self.told)
        channel.attach(self.partition.create_view(0, channel.data_available))
        self.told.take()
        return channel

    async def write(self, content: bytes) -> None:
        builder = await self.partition.wait_for_builder(0)
        self.partition.add_consumer(builder.create_consumer(), 0)
        builder.append_and_commit(content)
        builder.finish()

    def settled(self) -> None:
        self.partition.release()
        assert self.network.available_segments == self.network.total_segments


@pytest.fixture
def rig():
    return Rig()


async def test_the_consumer_holds_the_producers_own_buffer(rig):
    """So a consumer that keeps its buffers stops the producer, and no bytes are copied."""
    channel = rig.channel()
    for number in range(SEGMENTS):
        await rig.write(b"%d" % number)
    blocked = asyncio.create_task(rig.write(b"more"))
    await asyncio.sleep(0)
    held = [channel.next_buffer(1) for _ in range(SEGMENTS)]
    await asyncio.sleep(0)
    assert not blocked.done()
    assert rig.pool.lent_segments == SEGMENTS
    assert [bytes(buffer.payload) for buffer in held] == [b"0", b"1", b"2", b"3"]
    held[2].release()
    await blocked
    last = channel.next_buffer(1)
    assert bytes(last.payload) == b"more"
    for buffer in (held[0], held[1], held[3], last):
        buffer.release()
    with pytest.raises(SluiceError):
        last.release()  # exactly once
    channel.release()
    rig.settled()


@pytest.mark.parametrize("how", ["fail", "release", "leave"])
async def test_a_release_in_the_middle_leaks_no_buffer(rig, how):
    """Whichever side releases first, a buffer that was taken stays valid until its release."""
    channel = rig.channel()
    await rig.write(b"kept")
    await rig.write(b"queued")
    buffer = channel.next_buffer(1)
    if how == "fail":
        rig.partition.fail(SluiceError("died"))
        with pytest.raises(SluiceError, match="died"):
            channel.next_buffer(1)
    elif how == "release":
        rig.partition.release()
        with pytest.raises(SluiceError, match="released"):
            channel.next_buffer(1)
    else:
        channel.release()
        await rig.write(b"to nobody")
        assert channel.next_buffer(1) is None
    assert rig.pool.lent_segments == 1
    assert bytes(buffer.payload) == b"kept"
    buffer.release()
    channel.release()
    rig.settled()


def test_an_error_that_is_raised_again_and_again_keeps_no_frames(rig):
    channel = rig.channel()
    cause = SluiceError("died")
    rig.partition.fail(cause)
    depths = []
    for ask in (lambda: channel.next_buffer(1), lambda: rig.partition.request_builder(0)) * 3:
        with pytest.raises(SluiceError, match="died") as told:
            ask()
        depths.append(len(traceback.extract_tb(told.value.__traceback__)))
    assert depths[4:] == depths[:2]


async def test_over_a_connection_events_are_numbered_as_they_go(rig):
    """Sequence numbers follow the order of sending, so overtaking leaves no gap in them."""
    connection: Any = FakeConnection()
    log = Ended()
    queue = PartitionRequestQueue(connection, log.on_sent, log.on_ended)
    reader = CreditBasedViewReader(1, 2, queue.notify, SIZE)
    view = rig.partition.create_view(0, reader.data_available)
    reader.attach(view)
    event = encode_event(CustomEvent("event", b""))
    await rig.write(b"a")
    await rig.write(b"b")
    rig.partition.emit_event(event, BLOCKING_EVENT, 0)
    rig.partition.emit_event(event, PRIORITY_EVENT, 0)
    await rig.write(b"c")

    async def sent():
        for _ in range(3):
            await asyncio.sleep(0)
        connection.drain()
        messages = connection.take(BufferResponse)
        return [(m.sequence_number, m.backlog, m.data_type) for m in messages]

    assert await sent() == [(0, 4, PRIORITY_EVENT), (1, 3, DATA)]
    reader.add_credit(4)
    assert await sent() == [(2, 2, DATA), (3, 0, BLOCKING_EVENT)]
    await rig.write(b"d")
    assert await sent() == []
    view.resume_consumption()
    assert await sent() == [(4, 1, DATA), (5, 0, DATA)]
    await rig.partition.finish()
    assert await sent() == [(6, 0, EVENT)]
    assert log.ended == [(1, None)]
    rig.settled()
