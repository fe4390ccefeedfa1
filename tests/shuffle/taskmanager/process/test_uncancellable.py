"""The result of a blocking call in a thread is passed on even if its caller is cancelled."""

from __future__ import annotations

import asyncio
import threading

import pytest

from sluice.shuffle.taskmanager.process.uncancellable import run_uncancellable

PATIENCE_SECONDS = 20


async def test_the_result_is_passed_on_and_returned():
    made: list[int] = []
    assert await run_uncancellable(lambda: 7, made.append) == 7
    assert made == [7]


async def test_an_error_is_raised_and_nothing_is_passed_on():
    def fail():
        raise OSError("in the test")

    made: list[int] = []
    with pytest.raises(OSError, match="in the test"):
        await run_uncancellable(fail, made.append)
    assert made == []


async def test_a_call_cancelled_twice_still_passes_its_result_on():
    may_end = threading.Event()
    made: list[bool] = []
    call = asyncio.ensure_future(
        run_uncancellable(lambda: may_end.wait(PATIENCE_SECONDS), made.append)
    )
    for _ in range(2):
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.sleep(0)
    assert not call.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert made == [True]
