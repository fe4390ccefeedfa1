"""Several gates read as one: in turn, with consecutive numbers, until all have ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from sluice.protocol.errors import SluiceError
from sluice.protocol.schema import BLOCKING_EVENT, PRIORITY_EVENT
from sluice.shuffle.dataflow.union_input_gate import UnionInputGate, sum_up
from sluice.shuffle.errors import InvalidRequest
from sluice.shuffle.gate.input_gate import GateStatistics
from tests.support.gates import KEY, HandFilledGate, here, shown

if TYPE_CHECKING:
    from sluice.shuffle.gate.local_input_channel import TaskEventHandler


async def a_union(*channels: int) -> tuple[UnionInputGate, list[HandFilledGate]]:
    gates = [HandFilledGate(count, f"gate {number}") for number, count in enumerate(channels)]
    union = UnionInputGate(gates)
    await asyncio.sleep(0)
    return union, gates


async def test_channels_are_numbered_consecutively():
    union, gates = await a_union(2, 1, 3)
    assert union.channels == 6
    for gate in gates:
        for view in gate.views.values():
            view.put(b"x")
    seen = sorted(shown(union.poll()) for _ in range(6))
    assert seen == [(channel, b"x") for channel in range(6)]
    assert union.poll() is None
    union.release()


async def test_gates_take_turns_however_many_channels_they_have():
    union, gates = await a_union(1, 20)
    for gate in gates:
        for view in gate.views.values():
            view.put(*(b"x" for _ in range(20)))
    order = [shown(union.poll())[0] for _ in range(40)]
    for count in range(41):
        of_first = order[:count].count(0)
        assert abs(of_first - (count - of_first)) <= 1
    union.release()


async def test_data_from_before_the_union_is_read():
    gate = HandFilledGate(1)
    await asyncio.sleep(0)
    gate.views[0].put(b"early")
    union = UnionInputGate([HandFilledGate(), gate])
    assert shown(union.poll()) == (0, b"early")
    union.release()


async def test_a_gate_with_a_priority_event_comes_first():
    union, gates = await a_union(1, 1)
    gates[0].views[0].put(b"1", b"2")
    gates[1].views[0].put(b"1")
    gates[1].views[0].put_event("barrier", PRIORITY_EVENT)
    gates[1].views[0].put_event("barrier", PRIORITY_EVENT)
    assert union.has_priority_event
    assert [shown(union.poll()) for _ in range(6)] == [
        (1, "priority event"),
        (1, "priority event"),
        (0, b"1"),
        (1, b"1"),
        (0, b"2"),
        None,
    ]
    union.release()


async def test_a_union_ends_when_all_its_gates_have_ended():
    union, gates = await a_union(1, 1)
    gates[0].views[0].end()
    assert shown(await union.next_buffer_or_event()) == (0, "event")
    assert not union.has_ended
    reading = asyncio.ensure_future(union.next_buffer_or_event())
    other = asyncio.ensure_future(union.next_buffer_or_event())
    await asyncio.sleep(0)
    gates[1].views[0].end()
    results = await asyncio.gather(reading, other)
    assert sorted(map(str, map(shown, results))) == ["(1, 'event')", "None"]
    assert union.has_ended
    assert await union.next_buffer_or_event() is None
    await union.wait_available()
    union.release()


async def test_a_released_gate_counts_as_ended():
    union, gates = await a_union(1, 1)
    gates[0].release()
    assert not union.has_ended
    waiting = asyncio.ensure_future(union.wait_available())
    await asyncio.sleep(0)
    gates[1].release()
    await waiting
    assert union.has_ended
    assert await union.next_buffer_or_event() is None


async def test_cancelling_a_reader_takes_nothing():
    union, gates = await a_union(1, 1)
    reading = asyncio.ensure_future(union.next_buffer_or_event())
    await asyncio.sleep(0)
    gates[1].views[0].put(b"x")
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert shown(await union.next_buffer_or_event()) == (1, b"x")
    union.release()


async def test_a_failure_is_raised_again_and_does_not_hide_the_other_gates():
    union, gates = await a_union(1, 1)
    gates[0].views[0].fail(SluiceError("broken"))
    gates[1].views[0].put(b"x")
    with pytest.raises(SluiceError, match="broken"):
        union.poll()
    assert shown(union.poll()) == (1, b"x")
    with pytest.raises(SluiceError, match="broken"):
        await union.next_buffer_or_event()
    union.release()


async def test_messages_of_the_consumer_reach_the_right_producers():
    union, gates = await a_union(2, 1)
    heard: list[tuple[int, int]] = []

    def hears_as(number: int) -> TaskEventHandler:
        return lambda kind, _: heard.append((number, kind))

    for number, gate in enumerate(gates):
        for channel in range(len(gate.channels)):
            gate.services.task_events.register(KEY, channel, hears_as(number))
    union.send_task_event(9, b"x")
    assert heard == [(0, 9), (0, 9), (1, 9)]
    gates[1].views[0].put_event("barrier", BLOCKING_EVENT)
    gates[1].views[0].put(b"behind")
    assert [shown(union.poll()) for _ in range(2)] == [(2, "blocking event"), None]
    union.resume_consumption(2)
    assert shown(union.poll()) == (2, b"behind")
    for index in (-1, 3):
        with pytest.raises(InvalidRequest, match="No such channel"):
            union.resume_consumption(index)
    union.release()


async def test_a_gate_has_one_union_and_takes_no_more_channels():
    union, gates = await a_union(1)
    with pytest.raises(InvalidRequest, match="part of a union"):
        UnionInputGate(gates)
    with pytest.raises(InvalidRequest, match="no more channels"):
        gates[0].add_channel(here(5))
    with pytest.raises(InvalidRequest, match="needs gates"):
        UnionInputGate([])
    union.release()


async def test_an_unknown_channel_of_a_union_becomes_known():
    gate = HandFilledGate()
    gate.add_unknown_channel()
    union = UnionInputGate([HandFilledGate(), gate])
    gate.update_channel(0, here(7))
    await asyncio.sleep(0)
    gate.views[7].put(b"x")
    assert shown(await union.next_buffer_or_event()) == (0, b"x")
    assert union.statistics().bytes_in_local == 1
    union.release()


def test_gates_are_added_up_with_the_idle_time_of_their_reader():
    parts = [
        GateStatistics(3, 2, 40, 4, 200, 2, 9.0),
        GateStatistics(1, 0, 1, 1, 0, 0, 8.0),
        GateStatistics(1, 1, 0, 0, 5, 1, 7.0),
    ]
    assert sum_up(parts, 2.5) == GateStatistics(5, 3, 41, 5, 205, 3, 2.5)
    assert sum_up([], 0.0) == GateStatistics(0, 0, 0, 0, 0, 0, 0.0)
