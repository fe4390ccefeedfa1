"""The opener of a client's gates: channels of one turn, memory, and a release meanwhile."""

from __future__ import annotations

import pytest

from sluice.protocol.errors import SluiceError
from sluice.protocol.schema import CloseGate, GateChannel, GateOpened, OpenGate
from sluice.shuffle.client.client_channel_opener import ClientChannelOpener
from sluice.shuffle.gate.channel_opener import GateMemory
from sluice.shuffle.gate.local_input_channel import LocalInputChannel
from sluice.shuffle.gate.remote_input_channel import RemoteInputChannel
from sluice.shuffle.memory import InsufficientNetworkBuffers, NetworkBufferPool
from sluice.shuffle.names import SubpartitionRange
from tests.shuffle.client.rig import SEGMENTS, SHUFFLE, SOURCES, ConsumerRig, consumer_leg, turns
from tests.support.network_memory import take_exclusive


async def test_channels_of_one_turn_are_one_gate_and_are_read_to_their_end():
    rig = ConsumerRig()
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


@pytest.mark.parametrize("when", ["at once", "waiting for segments"])
async def test_a_gate_that_is_released_while_it_opens_leaves_nothing(when):
    rig = ConsumerRig()
    taken = take_exclusive(rig.network, SEGMENTS - 3) if when != "at once" else []
    for source in SOURCES:
        rig.gate.add_channel(source)
    if taken:
        await turns()
        assert rig.network.waiting_requests == 1
    rig.gate.release()
    await turns()
    assert rig.connection.sent == []
    rig.network.recycle_segments(taken)
    assert rig.all_memory_is_back()


async def test_too_little_memory_is_a_typed_error():
    rig = ConsumerRig(floating=0)
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


async def test_a_gate_with_more_channels_than_memory_fails_at_once():
    """It does not wait for its deadline: no time could help."""
    rig = ConsumerRig()
    gate = rig.new_gate(exclusive=SEGMENTS // 2 + 1, timeout_seconds=3600)
    for source in SOURCES:
        gate.add_channel(source)
    with pytest.raises(InsufficientNetworkBuffers):
        await gate.next_buffer_or_event()
    gate.release()
    assert rig.all_memory_is_back()


async def test_the_channels_of_a_turn_get_their_segments_together():
    """A gate that waits holds none, so that another one can open meanwhile."""
    rig = ConsumerRig(floating=0)
    taken = take_exclusive(rig.network, SEGMENTS - 3)
    waiting, open_one = (rig.new_gate(floating=0, exclusive=2) for _ in range(2))
    for source in SOURCES:
        waiting.add_channel(source)
    await turns()
    assert rig.network.available_segments == 3
    rig.network.recycle_segments(taken)
    open_one.add_channel(SOURCES[0])
    await turns()
    assert [len(message.channels) for message in rig.connection.take(OpenGate)] == [2, 1]
    for gate in (waiting, open_one):
        gate.release()
    assert rig.all_memory_is_back()


def an_opener(network, exclusive, floating):
    leg, _ = consumer_leg()
    memory = GateMemory(network, exclusive, floating)
    return ClientChannelOpener("gate", SubpartitionRange(SHUFFLE, 0, 1), memory, leg)


async def test_channels_that_cannot_be_given_their_segments_return_them():
    network = NetworkBufferPool(4, 64)
    opener = an_opener(network, 2, 0)
    local = LocalInputChannel(lambda: None)
    remote = RemoteInputChannel(lambda: None, None, None)
    with pytest.raises(TypeError):
        await opener.open_now([(local, SOURCES[0]), (remote, SOURCES[1])])
    assert network.available_segments == 4


async def test_a_channel_without_floating_buffers_returns_its_exclusive_ones():
    network = NetworkBufferPool(2, 64)
    opener = an_opener(network, 2, 1)
    remote = RemoteInputChannel(lambda: None, None, None)
    with pytest.raises(InsufficientNetworkBuffers):
        await opener.open_now([(remote, SOURCES[0])])
    assert network.available_segments == 2
