"""Readers that wait for data: woken together, cancelled alone, timed."""

from __future__ import annotations

import asyncio

import pytest

from sluice.shuffle.gate.readable_gate import Availability


async def waiters(availability, count):
    tasks = [asyncio.ensure_future(availability.wait()) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_all_waiters_are_woken_and_later_ones_wait_anew():
    availability = Availability()
    first = await waiters(availability, 3)
    assert availability.waiting == 3
    availability.wake()
    await asyncio.gather(*first)
    (later,) = await waiters(availability, 1)
    assert not later.done()
    availability.wake()
    await later
    assert availability.waiting == 0


async def test_waiters_are_woken_in_their_order():
    availability = Availability()
    order: list[int] = []

    async def look(number: int) -> None:
        await availability.wait()
        order.append(number)

    tasks = [asyncio.ensure_future(look(number)) for number in range(20)]
    await asyncio.sleep(0)
    availability.wake()
    await asyncio.gather(*tasks)
    assert order == list(range(20))


async def test_a_wake_without_waiters_is_not_remembered():
    """Availability keeps no state that could be out of date: a later reader polls first."""
    availability = Availability()
    availability.wake()
    (waiter,) = await waiters(availability, 1)
    assert not waiter.done()
    availability.wake()
    await waiter


async def test_one_cancelled_waiter_leaves_the_others():
    availability = Availability()
    gone, stays = await waiters(availability, 2)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert gone.cancelled()
    assert availability.waiting == 1
    availability.wake()
    await stays


async def test_a_waiter_cancelled_in_the_turn_of_its_wake_up_takes_nothing_from_the_others():
    availability = Availability()
    gone, stays = await waiters(availability, 2)
    availability.wake()
    gone.cancel()
    await stays
    await asyncio.gather(gone, return_exceptions=True)
    assert availability.waiting == 0


async def test_idle_time_is_counted_once_however_many_wait(monkeypatch):
    availability = Availability()
    now = [100.0]
    monkeypatch.setattr("sluice.shuffle.gate.readable_gate.time.monotonic", lambda: now[0])
    tasks = await waiters(availability, 2)
    now[0] += 2
    assert availability.idle_seconds == pytest.approx(2)
    tasks[0].cancel()
    await asyncio.gather(tasks[0], return_exceptions=True)
    now[0] += 1
    assert availability.idle_seconds == pytest.approx(3)
    availability.wake()
    await tasks[1]
    now[0] += 10
    assert availability.idle_seconds == pytest.approx(3)
    (last,) = await waiters(availability, 1)
    now[0] += 0.5
    last.cancel()
    await asyncio.gather(last, return_exceptions=True)
    now[0] += 10
    assert availability.idle_seconds == pytest.approx(3.5)
