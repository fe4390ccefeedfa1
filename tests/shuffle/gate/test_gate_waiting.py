"""Waiting at a gate: several waiters, each cancelled alone, all woken by the end or the release."""

from __future__ import annotations

import asyncio

import pytest

from sluice.protocol.errors import SluiceError
from tests.support.gates import HandFilledGate, shown


async def a_gate(channels: int = 1) -> HandFilledGate:
    gate = HandFilledGate(channels)
    await asyncio.sleep(0)
    return gate


async def waiting(*coroutines):
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    return tasks


async def test_a_channel_that_is_only_open_has_nothing_to_read():
    gate = await a_gate()
    assert not gate.is_available
    gate.release()


async def test_a_reader_waits_for_availability_and_takes_without_waiting():
    gate = await a_gate()
    (waiter,) = await waiting(gate.wait_available())
    gate.views[0].put(b"x")
    await waiter
    await gate.wait_available()
    assert gate.take() == (0, b"x")
    gate.release()


async def test_a_cancelled_wait_takes_nothing_and_does_not_touch_the_others():
    gate = await a_gate()
    first, second, reader = await waiting(
        gate.wait_available(), gate.wait_available(), gate.next_buffer_or_event()
    )
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    gate.views[0].put(b"x")
    await second
    assert shown(await reader) == (0, b"x")
    gate.release()


async def test_several_readers_share_the_buffers_of_a_gate():
    gate = await a_gate()
    readers = await waiting(*(gate.next_buffer_or_event() for _ in range(3)))
    gate.views[0].put(b"1", b"2")
    done, pending = await asyncio.wait(readers, return_when=asyncio.FIRST_COMPLETED)
    while len(done) < 2:
        more, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        done |= more
    assert sorted(shown(reader.result()) for reader in done) == [(0, b"1"), (0, b"2")]
    gate.views[0].put(b"3")
    (last,) = pending
    assert shown(await last) == (0, b"3")
    gate.release()


@pytest.mark.parametrize("turns", range(4))
async def test_a_reader_cancelled_around_its_wake_up_loses_nothing(turns):
    gate = await a_gate()
    (reader,) = await waiting(gate.next_buffer_or_event())
    gate.views[0].put(b"x")
    for _ in range(turns):
        await asyncio.sleep(0)
    reader.cancel()
    await asyncio.wait([reader])
    taken = await gate.next_buffer_or_event() if reader.cancelled() else reader.result()
    assert shown(taken) == (0, b"x")
    assert gate.take() is None
    gate.release()


@pytest.mark.parametrize("how", ["release", "end", "failure"])
async def test_all_waiters_are_woken_by(how):
    gate = await a_gate()
    readers = await waiting(*(gate.next_buffer_or_event() for _ in range(2)))
    (waiter,) = await waiting(gate.wait_available())
    if how == "release":
        gate.release()
    elif how == "end":
        gate.views[0].end()
    else:
        gate.views[0].fail(SluiceError("broken"))
    results = await asyncio.gather(*readers, return_exceptions=True)
    await waiter
    if how == "failure":
        assert [str(result) for result in results] == ["broken", "broken"]
    else:
        expected = [(0, "event"), None] if how == "end" else [None, None]
        assert sorted(map(shown, results), key=str) == expected
        assert gate.has_ended
    gate.release()


async def test_a_gate_without_channels_has_ended():
    gate = HandFilledGate()
    assert gate.has_ended
    await gate.wait_available()
    assert await gate.next_buffer_or_event() is None
    gate.release()


async def test_waiting_is_counted_and_reading_is_not():
    gate = await a_gate()
    gate.views[0].put(b"abc")
    await gate.next_buffer_or_event()
    assert gate.statistics().idle_seconds == 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await gate.next_buffer_or_event()
    done = gate.statistics()
    assert 0.01 < done.idle_seconds < 10
    assert (done.bytes_in_local, done.buffers_in_local, done.bytes_in_remote) == (3, 1, 0)
    gate.release()
