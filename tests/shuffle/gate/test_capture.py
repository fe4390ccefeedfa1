"""Captures of what barriers overtook, on gates that a test fills by hand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.events import (
    CheckpointBarrier,
    CustomEvent,
    decode_event,
    encode_end_of_partition,
    encode_event,
)
from sluice.protocol.schema import DATA, EVENT, PRIORITY_EVENT
from sluice.shuffle.dataflow.union_input_gate import UnionInputGate
from sluice.shuffle.errors import GateReleased, InvalidRequest
from sluice.shuffle.gate.capture import (
    MARKER_NAME,
    CapturedBuffer,
    OvertakenCapture,
    marked_checkpoint,
    marker_of,
)
from sluice.shuffle.partition.view import OutgoingBuffer
from tests.support.gates import HandFilledGate, HandFilledView

if TYPE_CHECKING:
    from sluice.shuffle.gate.readable_gate import ReadableGate


async def gate_of(channels: int) -> HandFilledGate:
    gate = HandFilledGate(channels)
    await asyncio.sleep(0)
    return gate


def barrier(view: HandFilledView, checkpoint_id: int) -> None:
    """Put a barrier before everything, and its marker behind it."""
    payload = encode_event(CheckpointBarrier(checkpoint_id, 0, True))
    view._priority.append(OutgoingBuffer(payload, None, PRIORITY_EVENT))
    view.listener()
    view._add(OutgoingBuffer(encode_event(marker_of(checkpoint_id)), None, EVENT))


def read_all(gate: ReadableGate) -> list[tuple[int, bytes | object]]:
    """Read all that is there; events come decoded."""
    found: list[tuple[int, bytes | object]] = []
    while (taken := gate.poll()) is not None:
        index, buffer = taken
        content = bytes(buffer.payload)
        found.append((index, content if buffer.data_type == DATA else decode_event(content)))
    return found


def test_a_marker_is_told_from_other_events():
    assert marked_checkpoint(encode_event(marker_of(0))) == 0
    assert marked_checkpoint(memoryview(encode_event(marker_of(2**64 - 1)))) == 2**64 - 1
    for other in (
        CheckpointBarrier(1, 2, True),
        CustomEvent("sluice.overtakes", bytes(8)),
        CustomEvent(MARKER_NAME, bytes(7)),
        CustomEvent(MARKER_NAME, bytes(9)),
        CustomEvent("", b""),
    ):
        assert marked_checkpoint(encode_event(other)) is None
    assert marked_checkpoint(encode_end_of_partition(1, 2)) is None


async def test_the_buffers_between_barrier_and_marker_are_captured_once_and_read_too():
    gate = await gate_of(1)
    view = gate.views[0]
    view.put(b"a", b"b", b"c")
    assert gate.take() == (0, b"a")
    barrier(view, 7)
    view.put(b"d")
    assert gate.take() == (0, "priority event")
    capture = gate.capture(7)
    assert not capture.is_complete
    assert gate.take() == (0, b"b")
    assert capture.take() == [CapturedBuffer(0, b"b")]
    assert read_all(gate) == [(0, b"c"), (0, b"d")]  # and no marker
    assert capture.is_complete
    assert capture.take() == [CapturedBuffer(0, b"c")]
    assert capture.take() == []
    gate.release()


async def test_a_barrier_that_overtakes_nothing_has_an_empty_capture():
    gate = await gate_of(1)
    barrier(gate.views[0], 1)
    assert gate.take() == (0, "priority event")
    capture = gate.capture(1)
    assert gate.take() is None
    assert capture.is_complete
    assert [buffer async for buffer in capture] == []
    gate.release()


async def test_each_channel_is_captured_up_to_its_own_marker():
    gate = await gate_of(3)
    for number in range(3):
        gate.views[number].put(b"1%d" % number)
    barrier(gate.views[0], 1)
    assert gate.take() == (0, "priority event")
    capture = gate.capture(1)
    for number in (0, 1):
        gate.views[number].put(b"2%d" % number)
    barrier(gate.views[1], 1)  # comes later, and what is before it was not in the snapshot
    gate.views[1].put(b"31")
    gate.views[2].put(b"22")
    gate.views[2].end()  # its producer has finished before the checkpoint
    read_all(gate)
    assert capture.is_complete
    assert sorted(capture.take()) == [(0, b"10"), (1, b"11"), (1, b"21"), (2, b"12"), (2, b"22")]
    gate.release()


async def test_two_checkpoints_are_captured_side_by_side():
    gate = await gate_of(1)
    view = gate.views[0]
    view.put(b"a")
    barrier(view, 1)
    view.put(b"b")
    barrier(view, 2)
    view.put(b"c")
    assert gate.take() == (0, "priority event")
    first = gate.capture(1)
    assert gate.take() == (0, "priority event")
    second = gate.capture(2)
    read_all(gate)
    assert first.take() == [(0, b"a")]
    assert second.take() == [(0, b"a"), (0, b"b")]
    gate.release()


async def test_a_capture_that_begins_too_late_is_refused():
    gate = await gate_of(2)
    gate.views[0].put(b"a")
    barrier(gate.views[0], 5)
    read_all(gate)
    for checkpoint_id in (4, 5):
        with pytest.raises(InvalidRequest, match="too late"):
            gate.capture(checkpoint_id)
    gate.capture(6).close()
    gate.release()
    with pytest.raises(InvalidRequest, match="released"):
        gate.capture(6)


async def test_ended_channels_need_no_marker():
    gate = await gate_of(2)
    gate.views[0].end()
    read_all(gate)
    capture = gate.capture(1)
    barrier(gate.views[1], 1)
    read_all(gate)
    assert capture.is_complete
    gate.release()


async def test_buffers_are_awaited_by_another_task_than_the_one_that_reads():
    gate = await gate_of(1)
    capture = gate.capture(1)

    async def gather() -> list[bytes]:
        return [buffer.payload async for buffer in capture]

    gathering = asyncio.create_task(gather())
    await asyncio.sleep(0)
    gate.views[0].put(b"a")
    read_all(gate)
    await asyncio.sleep(0)
    assert not gathering.done()
    gate.views[0].put(b"b")
    barrier(gate.views[0], 1)
    read_all(gate)
    assert await gathering == [b"a", b"b"]
    gate.release()


async def test_the_release_of_the_gate_fails_a_capture_and_no_complete_one():
    gate = await gate_of(1)
    complete = gate.capture(1)
    gate.views[0].put(b"a")
    barrier(gate.views[0], 1)
    read_all(gate)
    broken = gate.capture(2)
    waiting = asyncio.create_task(broken.next())
    cancelled = asyncio.create_task(broken.next())
    await asyncio.sleep(0)
    cancelled.cancel()
    gate.release()
    with pytest.raises(GateReleased):
        await waiting
    with pytest.raises(GateReleased):
        broken.take()
    assert not broken.is_complete
    assert complete.take() == [(0, b"a")]


async def test_a_closed_capture_copies_nothing():
    gate = await gate_of(1)
    capture = gate.capture(1)
    gate.views[0].put(b"a", b"b")
    gate.poll()
    capture.close()
    read_all(gate)
    assert capture.take() == []
    assert await capture.next() is None
    gate.release()


async def test_a_union_captures_the_channels_of_its_gates_by_its_own_numbers():
    gates = [await gate_of(2), await gate_of(1)]
    union = UnionInputGate(gates)
    gates[1].views[0].put(b"c")
    gates[0].views[1].put(b"b")
    barrier(gates[1].views[0], 1)
    taken = union.poll()
    assert taken is not None
    assert taken.channel_index == 2
    capture = union.capture(1)
    for view in (gates[0].views[0], gates[0].views[1]):
        barrier(view, 1)
    gates[1].views[0].put(b"after")
    read_all(union)
    assert capture.is_complete
    assert sorted(capture.take()) == [(1, b"b"), (2, b"c")]
    with pytest.raises(InvalidRequest, match="too late"):
        union.capture(1)
    union.release()


def test_a_capture_without_channels_is_complete():
    async def run() -> None:
        capture = OvertakenCapture(1, [])
        assert capture.is_complete
        assert capture.is_over
        assert await capture.next() is None

    asyncio.run(run())
