from __future__ import annotations

import asyncio

import pytest

from sluice.shuffle.taskmanager.status import event_loop_lag
from sluice.shuffle.taskmanager.status.event_loop_lag import WINDOW, EventLoopLag


class Loop:
    """The timers of an event loop whose time a test moves."""

    def __init__(self) -> None:
        self.now = 50.0
        self.due = 0.0
        self.callback = None

    def time(self) -> float:
        return self.now

    def call_at(self, when, callback):
        self.due, self.callback = when, callback
        return asyncio.TimerHandle(when, callback, (), asyncio.get_running_loop())

    def fire(self, late: float) -> None:
        self.now = self.due + late
        assert self.callback is not None
        self.callback()


@pytest.fixture
def loop(monkeypatch):
    loop = Loop()

    class FakeAsyncio:
        TimerHandle = asyncio.TimerHandle
        get_running_loop = staticmethod(lambda: loop)

    monkeypatch.setattr(event_loop_lag, "asyncio", FakeAsyncio)
    return loop


one_loop = pytest.mark.asyncio(loop_factories=["asyncio-debug"])


@one_loop
async def test_the_lag_is_the_delay_of_a_timer(loop):
    lag = EventLoopLag()
    assert (lag.last_seconds, lag.max_seconds) == (0, 0)
    lag.start()
    for late in (0.0, 0.5, 0.25):
        loop.fire(late)
    assert lag.last_seconds == pytest.approx(0.25)
    assert lag.max_seconds == pytest.approx(0.5)
    assert lag.lags.sum_seconds == pytest.approx(0.75)
    assert sum(lag.lags.counts) == 3


@one_loop
async def test_the_longest_lag_is_forgotten_after_the_window(loop):
    lag = EventLoopLag()
    lag.start()
    loop.fire(3.0)
    for _ in range(WINDOW - 1):
        loop.fire(0.0)
    assert lag.max_seconds == pytest.approx(3.0)
    loop.fire(0.0)
    assert lag.max_seconds == pytest.approx(0.0)
    assert lag.lags.sum_seconds == pytest.approx(3.0)


async def test_stopping_leaves_no_timer():
    lag = EventLoopLag()
    lag.start()
    timer = lag._timer
    assert timer is not None
    lag.stop()
    lag.stop()
    assert timer.cancelled()
