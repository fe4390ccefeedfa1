"""Turns in a gate: fairness, priority events, blocking events, ends and failures."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.protocol.errors import SluiceError
from sluice.protocol.schema import BLOCKING_EVENT, PRIORITY_EVENT
from sluice.shuffle.errors import InvalidRequest
from sluice.shuffle.gate.readable_gate import BUFFER_COST_BYTES, TURN_BYTES
from tests.support.gates import HandFilledGate

CHANNELS = 50
BUFFERS = 27


async def opened(gate: HandFilledGate) -> HandFilledGate:
    """Let the channels find their views."""
    await asyncio.sleep(0)
    return gate


async def a_gate(channels: int) -> HandFilledGate:
    return await opened(HandFilledGate(channels))


@pytest.mark.parametrize("order", ["one by one", "all at once", "random"])
async def test_reads_of_channels_with_data_differ_by_at_most_1(order):
    """Whatever the order in which the data came."""
    gate = await a_gate(CHANNELS)
    puts = [channel for channel in range(CHANNELS) for _ in range(BUFFERS)]
    if order == "random":
        random.Random(7).shuffle(puts)
    if order == "all at once":
        for channel in range(CHANNELS):
            gate.views[channel].put(*(b"x" for _ in range(BUFFERS)))
    else:
        for channel in puts:
            gate.views[channel].put(b"x")
    reads = [0] * CHANNELS
    while (taken := gate.take()) is not None:
        reads[taken[0]] += 1
        assert max(reads) - min(reads) <= 1
    assert reads == [BUFFERS] * CHANNELS
    gate.release()


async def test_after_the_end_a_late_notification_does_not_queue_a_channel_again():
    gate = await a_gate(2)
    gate.views[0].end()
    assert gate.take() == (0, "event")
    gate.views[0].listener()
    assert not gate.is_available
    assert gate.take() is None
    assert not gate.has_ended
    gate.views[1].end()
    gate.views[1].listener()  # a channel queued twice would end twice
    assert gate.take() == (1, "event")
    assert not gate.is_available
    assert gate.has_ended
    assert await gate.next_buffer_or_event() is None
    gate.release()


async def test_the_channel_with_a_priority_event_is_served_first():
    """The event is read first, the rest in order, and the others keep their turns."""
    gate = await a_gate(3)
    for channel in range(3):
        gate.views[channel].put(b"1", b"2")
    gate.views[2].put_event("barrier", PRIORITY_EVENT)
    assert gate.has_priority_event
    assert [gate.take() for _ in range(8)] == [
        (2, "priority event"),
        (0, b"1"),
        (1, b"1"),
        (2, b"1"),
        (0, b"2"),
        (1, b"2"),
        (2, b"2"),
        None,
    ]
    gate.release()


async def test_a_blocked_channel_waits_for_its_resumption_and_the_others_go_on():
    gate = await a_gate(2)
    gate.views[0].put_event("barrier", BLOCKING_EVENT)
    gate.views[0].put(b"behind")
    gate.views[1].put(b"1")
    assert [gate.take() for _ in range(3)] == [(0, "blocking event"), (1, b"1"), None]
    gate.views[1].put(b"2")
    assert gate.take() == (1, b"2")
    gate.resume_consumption(0)
    assert gate.take() == (0, b"behind")
    for index in (-1, 2):
        with pytest.raises(InvalidRequest, match="No such channel"):
            gate.resume_consumption(index)
    gate.release()


async def test_a_failed_channel_fails_each_reader_and_the_others_are_served_between():
    gate = await a_gate(2)
    gate.views[0].fail(SluiceError("broken"))
    gate.views[1].put(b"1", b"2")
    seen: list[Any] = []
    for _ in range(4):
        try:
            seen.append(gate.take())
        except SluiceError as error:
            seen.append(error.message)
    assert seen == ["broken", (1, b"1"), "broken", (1, b"2")]
    assert gate.is_available
    gate.release()


async def test_a_failed_channel_with_a_priority_event_does_not_hide_the_others():
    gate = await a_gate(2)
    gate.views[1].put(b"1")
    gate.views[0].put_event("barrier", PRIORITY_EVENT)
    gate.views[0].fail(SluiceError("broken"))
    with pytest.raises(SluiceError, match="broken"):
        gate.take()
    assert gate.take() == (1, b"1")
    gate.release()


@pytest.mark.parametrize("size", [1, 256 * 1024])
async def test_a_reader_that_never_waits_yields_to_the_loop(size):
    gate = await a_gate(1)
    a_turn = -(-TURN_BYTES // (size + BUFFER_COST_BYTES))
    gate.views[0].put(*(bytes(size) for _ in range(3 * a_turn)))
    rounds = 0
    handle: asyncio.Handle

    def count() -> None:
        nonlocal rounds, handle
        rounds += 1
        handle = asyncio.get_running_loop().call_soon(count)

    handle = asyncio.get_running_loop().call_soon(count)
    for _ in range(3 * a_turn):
        assert await gate.next_buffer_or_event() is not None
    handle.cancel()
    assert rounds == 2
    gate.release()


PUT, PRIORITY, END, TAKE = "put", "priority", "end", "take"


@given(
    st.integers(1, 4).flatmap(
        lambda channels: st.tuples(
            st.just(channels),
            st.lists(
                st.tuples(
                    st.sampled_from([PUT, PUT, PRIORITY, END, TAKE, TAKE]), st.integers(0, 9)
                ),
                max_size=60,
            ),
        )
    )
)
def test_every_channel_gives_its_buffers_in_order(case):
    """Model: data in order, priority events before the data that waits, nothing lost or doubled."""
    channels, steps = case

    async def run() -> None:
        gate = await a_gate(channels)
        data: list[list[bytes | str]] = [[] for _ in range(channels)]
        urgent = [0] * channels
        ended: set[int] = set()
        number = 0

        def take() -> bool:
            taken = gate.take()
            if taken is None:
                assert not any(data)
                assert not any(urgent)
                return False
            channel, what = taken
            if any(urgent):
                assert what == "priority event"
                urgent[channel] -= 1
                assert urgent[channel] >= 0
            else:
                assert what == data[channel].pop(0)
            return True

        for step, choice in steps:
            channel = choice % channels
            if step == TAKE:
                take()
            elif channel in ended:
                gate.views[channel].listener()
            elif step == PUT:
                number += 1
                content = b"%d" % number
                data[channel].append(content)
                gate.views[channel].put(content)
            elif step == PRIORITY:
                urgent[channel] += 1
                gate.views[channel].put_event("barrier", PRIORITY_EVENT)
            else:
                ended.add(channel)
                data[channel].append("event")
                gate.views[channel].end()
        while take():
            pass
        assert not gate.is_available
        assert gate.has_ended is (len(ended) == channels)
        gate.release()

    asyncio.run(run())
