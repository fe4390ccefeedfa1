"""The consumer leg of a client, and the opener of its gates."""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol.errors import SluiceError
from sluice.protocol.events import encode_end_of_partition
from sluice.protocol.messages import (
    DATA,
    EVENT,
    BufferResponse,
    CloseGate,
    GateChannel,
    GateClosed,
    GateOpened,
    OpenGate,
)
from sluice.protocol.remote_error import RemoteError, error_response
from sluice.shuffle.client.client_channel_opener import ClientChannelOpener
from sluice.shuffle.errors import InvalidRequest
from sluice.shuffle.gate.channel_opener import ChannelSource, GateMemory
from sluice.shuffle.gate.input_gate import InputGate
from sluice.shuffle.memory import InsufficientNetworkBuffers, NetworkBufferPool
from sluice.shuffle.names import ShuffleKey, SubpartitionRange
from sluice.transport.connector import Address
from sluice.transport.errors import ConnectionLost, DeadlineExceeded
from tests.shuffle.client.rig import SEGMENT_SIZE_BYTES, SEGMENTS, consumer_leg, fill, turns

BROKEN = SluiceError("broken on purpose")
SHUFFLE = ShuffleKey("app", 1)
SOURCES = [ChannelSource("tm", Address("host", 1), (attempt,)) for attempt in (7, 8)]


class Rig:
    """A gate of two channels over a leg."""

    def __init__(self, answer_timeout_seconds: float = 30, floating: int = 2) -> None:
        self.leg, self.connection = consumer_leg(answer_timeout_seconds)
        self.network = NetworkBufferPool(SEGMENTS, SEGMENT_SIZE_BYTES)
        self.gate = self.new_gate(floating)

    def new_gate(
        self, floating: int = 2, exclusive: int = 2, timeout_seconds: float = 30
    ) -> InputGate:
        memory = GateMemory(self.network, exclusive, floating, timeout_seconds)
        return InputGate(
            ClientChannelOpener("gate", SubpartitionRange(SHUFFLE, 0, 1), memory, self.leg)
        )

    async def opening(self) -> OpenGate:
        for source in SOURCES:
            self.gate.add_channel(source)
        await turns()
        (message,) = self.connection.take(OpenGate)
        return message

    async def read_one(self) -> tuple[int, bytes]:
        """Take the next buffer, give it back, and say of which channel it was and what it held."""
        taken = await self.gate.next_buffer_or_event()
        assert taken is not None
        content = bytes(taken.buffer.payload)
        assert taken.buffer.release is not None
        taken.buffer.release()
        return taken.channel_index, content

    def data(self, channel: int, number: int, content: bytes) -> None:
        message = BufferResponse(channel, number, 0, DATA)
        fill(self.leg.payload_buffer(message, len(content)), content)
        self.leg.message_received(message, len(content))

    def end(self, channel: int, number: int, *totals: int) -> None:
        payload = encode_end_of_partition(*totals)
        message = BufferResponse(channel, number, 0, EVENT)
        fill(self.leg.payload_buffer(message, len(payload)), payload)
        self.leg.message_received(message, len(payload))

    def all_memory_is_back(self) -> bool:
        return self.network.statistics().free_segments == SEGMENTS


async def test_channels_of_one_turn_are_one_gate_and_are_read_to_their_end():
    rig = Rig()
    message = await rig.opening()
    assert message == OpenGate(
        0, 1, 0, 1, 2, [GateChannel(1, "tm", "host", 1, [7]), GateChannel(2, "tm", "host", 1, [8])]
    )
    rig.leg.message_received(GateOpened(0), 0)
    rig.data(1, 0, b"abc")
    assert await rig.read_one() == (0, b"abc")
    rig.end(1, 1, 3, 1)
    rig.end(2, 0, 0, 0)
    assert [await rig.gate.next_buffer_or_event() is None for _ in range(3)] == [False, False, True]
    rig.gate.release()
    assert rig.connection.take(CloseGate) == [CloseGate(0)]
    assert rig.all_memory_is_back()


async def test_a_refused_gate_fails_its_channels_and_frees_its_number():
    rig = Rig()
    message = await rig.opening()
    rig.leg.message_received(error_response(message.gate, BROKEN), 0)
    with pytest.raises(RemoteError, match="broken on purpose"):
        await rig.gate.next_buffer_or_event()
    assert rig.leg.channels == 0
    rig.gate.release()
    assert rig.connection.sent == []  # the TaskManager knows nothing of it
    assert rig.all_memory_is_back()


async def test_a_gate_that_is_not_opened_in_time_is_given_up():
    rig = Rig(answer_timeout_seconds=0.02)
    message = await rig.opening()
    with pytest.raises(DeadlineExceeded, match="OpenGate"):
        await rig.gate.next_buffer_or_event()
    assert rig.connection.take(CloseGate) == [CloseGate(message.gate)]
    rig.leg.message_received(GateOpened(message.gate), 0)  # late
    rig.data(1, 0, b"late too")
    rig.gate.release()
    assert rig.connection.sent == []
    rig.leg.message_received(GateClosed(message.gate), 0)
    assert rig.all_memory_is_back()


async def test_a_number_is_taken_until_its_gate_is_closed_on_both_sides():
    rig = Rig()
    message = await rig.opening()
    rig.gate.release()
    rig.leg.close_gate(message.gate)
    assert len(rig.connection.take(CloseGate)) == 1
    rig.leg._last_number = message.gate - 1
    assert rig.leg._new_number() != message.gate
    rig.leg.message_received(GateClosed(message.gate), 0)
    rig.leg._last_number = message.gate - 1
    assert rig.leg._new_number() == message.gate


@pytest.mark.parametrize("opened", [False, True])
async def test_a_lost_connection_fails_every_channel(opened):
    rig = Rig()
    message = await rig.opening()
    if opened:
        rig.leg.message_received(GateOpened(message.gate), 0)
    rig.data(1, 0, b"abc")
    rig.connection.closing = True
    rig.leg.connection_lost(ConnectionLost("gone"))
    with pytest.raises(ConnectionLost):
        await rig.gate.next_buffer_or_event()
    rig.gate.release()
    later = rig.new_gate()
    later.add_channel(SOURCES[0])
    with pytest.raises(ConnectionLost):
        await later.next_buffer_or_event()
    later.release()
    assert rig.leg.closed.is_set()
    assert rig.all_memory_is_back()


@pytest.mark.parametrize("when", ["at once", "waiting for segments"])
async def test_a_gate_that_is_released_while_it_opens_leaves_nothing(when):
    rig = Rig()
    taken = rig.network.request_segments(SEGMENTS - 3) if when != "at once" else []
    for source in SOURCES:
        rig.gate.add_channel(source)
    if taken:
        await turns()
        assert rig.network.statistics().waiting_requests == 1
    rig.gate.release()
    await turns()
    assert rig.connection.sent == []
    rig.network.recycle_segments(taken)
    assert rig.all_memory_is_back()


async def test_too_little_memory_is_a_typed_error():
    rig = Rig(floating=0)
    gate = rig.new_gate(floating=0, exclusive=SEGMENTS, timeout_seconds=0.02)
    for source in SOURCES:
        gate.add_channel(source)
    with pytest.raises(SluiceError, match="16"):
        await gate.next_buffer_or_event()
    assert rig.connection.sent == []
    gate.release()
    pool = rig.network.create_local_pool("all", SEGMENTS, SEGMENTS)
    with pytest.raises(InsufficientNetworkBuffers):
        rig.new_gate().add_channel(SOURCES[0])
    pool.destroy()
    assert rig.all_memory_is_back()


async def test_an_empty_range_is_refused():
    leg, _ = consumer_leg()
    with pytest.raises(InvalidRequest, match="3 to 3"):
        ClientChannelOpener(
            "gate",
            SubpartitionRange(SHUFFLE, 3, 3),
            GateMemory(NetworkBufferPool(2, 64), 1, 0),
            leg,
        )


async def test_a_cancelled_read_takes_nothing():
    rig = Rig()
    await rig.opening()
    reading = asyncio.create_task(rig.gate.next_buffer_or_event())
    await turns()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    rig.data(1, 0, b"abc")
    assert await rig.read_one() == (0, b"abc")
    rig.gate.release()
    assert rig.all_memory_is_back()
