"""Threads for blocking calls: results, errors, cancellation, the end."""

import asyncio
import threading

import pytest

from sluice.shuffle.taskmanager.store.io_threads import IoThreads


@pytest.fixture
def threads():
    made = IoThreads(1, "test-io")
    yield made
    made.end()


async def test_a_call_runs_in_a_thread_of_that_name_with_its_arguments(threads):
    def call(number, *, factor):
        return threading.current_thread().name, number * factor

    name, product = await threads.run(call, 3, factor=2)
    assert name.startswith("test-io")
    assert product == 6


async def test_an_error_of_the_call_is_raised(threads):
    def call():
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        await threads.run(call)


async def test_a_cancelled_caller_waits_until_the_thread_has_ended(threads):
    entered, proceed = threading.Event(), threading.Event()

    def call():
        entered.set()
        assert proceed.wait(20)

    task = asyncio.ensure_future(threads.run(call))
    assert await asyncio.to_thread(entered.wait, 20)
    for _ in range(2):  # the second cancellation must not end the wait either
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
    proceed.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_call_that_fails_after_a_cancellation_is_not_reported(threads, caplog):
    entered, proceed = threading.Event(), threading.Event()

    def call():
        entered.set()
        assert proceed.wait(20)
        raise OSError("broken")

    task = asyncio.ensure_future(threads.run(call))
    assert await asyncio.to_thread(entered.wait, 20)
    task.cancel()
    proceed.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not caplog.records


async def test_the_end_waits_for_the_calls_under_way():
    threads = IoThreads(1, "test-io")
    entered, proceed = threading.Event(), threading.Event()

    def call():
        entered.set()
        return proceed.wait(20)

    task = asyncio.ensure_future(threads.run(call))
    assert await asyncio.to_thread(entered.wait, 20)
    end = asyncio.ensure_future(asyncio.to_thread(threads.end))
    await asyncio.sleep(0)
    assert not end.done()
    proceed.set()
    await end
    assert await task
