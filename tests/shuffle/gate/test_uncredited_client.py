"""The requesting side of a peer leg in watermark mode, with a connection driven by hand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.errors import ErrorCode
from sluice.protocol.schema import (
    DATA,
    FLOW_WATERMARK,
    BufferResponse,
    CancelPartitionRequest,
    HelloAck,
    PartitionRequest,
)
from sluice.shuffle.counters import Counters
from sluice.shuffle.gate.buffer_manager import BufferManager
from sluice.shuffle.gate.partition_request_client import UncreditedPartitionRequestClient
from sluice.shuffle.gate.remote_input_channel import RemoteInputChannel
from sluice.shuffle.memory import NetworkBufferPool
from sluice.shuffle.names import ShuffleKey, SubpartitionRange
from sluice.transport.errors import ConnectionLost
from tests.support.fakes import FakeConnection
from tests.support.network_memory import take_exclusive

if TYPE_CHECKING:
    from collections.abc import Callable


KEY = ShuffleKey("app", 7)
SEGMENT = 16
SEGMENTS = 16
EXCLUSIVE = 2
FLOATING = 2


class StandingConnection(FakeConnection):
    """A connection that counts how often it resumes reading."""

    def __init__(self) -> None:
        super().__init__(flow_control=FLOW_WATERMARK)
        self.resumed = 0

    def resume_reading(self) -> None:
        self.resumed += 1


class Rig:
    """A client, its channels, and two gates' floating buffers."""

    def __init__(self) -> None:
        self.connection = StandingConnection()
        self.connection.max_payload_bytes = SEGMENT
        ack = HelloAck(1, "tm", SEGMENT, FLOW_WATERMARK, 0, "host", 1, "i", 0, 1)
        self.client = UncreditedPartitionRequestClient(self.connection, ack, Counters())
        self.pool = NetworkBufferPool(SEGMENTS, SEGMENT)
        self.gates = [self.pool.create_local_pool(f"gate {n}", 1, FLOATING) for n in range(2)]
        self.channels: list[RemoteInputChannel] = []
        self._sequence: dict[int, int] = {}

    def channel(self, gate: int = 0) -> RemoteInputChannel:
        channel = RemoteInputChannel(lambda: None)
        exclusive = take_exclusive(self.pool, EXCLUSIVE)
        channel.attach(BufferManager(self.pool, self.gates[gate], exclusive, channel), self.client)
        self.client.request(channel, SubpartitionRange(KEY, 0, 1), [4])
        self.channels.append(channel)
        return channel

    def receive(self, channel: RemoteInputChannel, payload: bytes, backlog: int = 1) -> bool:
        """Let data arrive; False if the connection has to stand still for it."""
        number = self._sequence.get(channel.number, 0)
        message = BufferResponse(channel.number, number, backlog, DATA)
        memory = self.client.payload_buffer(message, len(payload))
        if memory is None:
            return False
        for piece in memory if isinstance(memory, list) else [memory]:
            part, payload = payload[: len(piece)], payload[len(piece) :]
            piece[: len(part)] = part
        self._sequence[channel.number] = number + 1
        self.client.message_received(message, SEGMENT)
        return True

    def fill(self, channel: RemoteInputChannel) -> int:
        """Let data come for a channel until its memory is full; return the number of messages."""
        count = 0
        while self.receive(channel, b"x" * SEGMENT):
            count += 1
        return count


def take(channel: RemoteInputChannel) -> Callable[[], None]:
    buffer = channel.next_buffer(1)
    assert buffer is not None
    assert buffer.release is not None
    return buffer.release


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


@pytest.fixture
async def rig():
    rig = Rig()
    yield rig
    for channel in rig.channels:
        channel.release()
    for gate in rig.gates:
        gate.destroy()
    assert rig.pool.available_segments == SEGMENTS


async def test_the_connection_stands_still_when_all_buffers_are_used(rig):
    channel = rig.channel()
    assert rig.fill(channel) == EXCLUSIVE + FLOATING
    assert rig.client.waits_for is channel
    await turn()
    assert rig.connection.resumed == 0
    assert [type(message) for message in rig.connection.sent] == [PartitionRequest]


async def test_only_a_buffer_of_the_awaited_channel_resumes_reading(rig):
    other, stuck = rig.channel(gate=1), rig.channel()
    assert rig.receive(other, b"y" * SEGMENT, backlog=0)
    rig.fill(stuck)
    take(other)()
    await turn()
    assert rig.connection.resumed == 0
    take(stuck)()
    assert (
        rig.connection.resumed == 0
    )  # in a later turn: the code that recycles must not be re-entered
    take(stuck)()
    await turn()
    assert rig.connection.resumed == 1
    assert rig.receive(stuck, b"z" * SEGMENT)


async def test_a_floating_buffer_of_another_channel_of_the_gate_resumes_reading(rig):
    reading, stuck = rig.channel(), rig.channel()
    assert rig.fill(reading) == EXCLUSIVE + FLOATING  # also the floating buffers of the gate
    assert rig.fill(stuck) == EXCLUSIVE
    assert rig.client.waits_for is stuck
    reading.release()
    await turn()
    assert rig.connection.resumed == 1
    assert rig.receive(stuck, b"z" * SEGMENT)


async def test_data_of_a_released_channel_is_dropped(rig):
    stuck = rig.channel()
    rig.fill(stuck)
    stuck.release()
    assert rig.connection.take(CancelPartitionRequest) == [CancelPartitionRequest(stuck.number)]
    await turn()
    assert rig.connection.resumed == 1
    assert rig.receive(stuck, b"z" * SEGMENT)  # into scratch memory
    assert rig.pool.available_segments == SEGMENTS - sum(pool.held_segments for pool in rig.gates)


async def test_a_message_of_more_than_the_exclusive_buffers_fails_its_channel_only(rig):
    """A channel that is read goes on, whatever the other channels of its gate hold."""
    greedy, other = rig.channel(), rig.channel()
    message = BufferResponse(greedy.number, 0, 0, DATA)
    assert rig.client.payload_buffer(message, EXCLUSIVE * SEGMENT + 1) is not None
    assert greedy.failure is not None
    assert greedy.failure.code is ErrorCode.CREDIT_EXCEEDED
    assert rig.client.waits_for is None
    assert rig.receive(other, b"y" * SEGMENT)


async def test_a_lost_connection_is_not_resumed(rig):
    channel = rig.channel()
    rig.fill(channel)
    rig.client.connection_lost(ConnectionLost("gone"))
    assert channel.failure is not None
    channel.release()
    await turn()
    assert rig.connection.resumed == 0
