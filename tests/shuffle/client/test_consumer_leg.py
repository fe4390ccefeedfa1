"""The consumer leg of a client: numbers, refusals, deadlines and a lost connection."""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol.errors import SluiceError
from sluice.protocol.remote_error import RemoteError, error_response
from sluice.protocol.schema import CloseGate, GateClosed, GateOpened
from sluice.transport.errors import ConnectionLost, DeadlineExceeded
from tests.shuffle.client.rig import SOURCES, ConsumerRig, turns

BROKEN = SluiceError("broken on purpose")


async def test_a_refused_gate_fails_its_channels_and_frees_its_number():
    rig = ConsumerRig()
    message = await rig.opening()
    rig.leg.message_received(error_response(message.gate, BROKEN), 0)
    with pytest.raises(RemoteError, match="broken on purpose"):
        await rig.gate.next_buffer_or_event()
    assert rig.leg.channels == 0
    rig.gate.release()
    assert rig.connection.sent == []  # the TaskManager knows nothing of it
    assert rig.all_memory_is_back()


async def test_a_gate_that_is_not_opened_in_time_is_given_up():
    rig = ConsumerRig(answer_timeout_seconds=0.02)
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
    rig = ConsumerRig()
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
    rig = ConsumerRig()
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


async def test_a_cancelled_read_takes_nothing():
    rig = ConsumerRig()
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
