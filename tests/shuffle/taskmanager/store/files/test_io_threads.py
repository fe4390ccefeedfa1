"""Threads for blocking calls: results, errors, cancellation, the end."""

import asyncio
import gc
import threading
import weakref

import pytest

from sluice.shuffle.taskmanager.store.files.io_threads import (
    CALL_COST,
    SLOWEST_CALL_BYTES,
    IoThreads,
)
from sluice.transport.fair_queue import Flow
from tests.shuffle.taskmanager.store.files.rig import HangingCall, Lent
from tests.support.mini_cluster import eventually


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


class Busy:
    """Keeps the only thread busy until the test lets it go on."""

    def __init__(self, threads):
        self._entered, self._proceed = threading.Event(), threading.Event()
        self._task = asyncio.ensure_future(threads.run(self._wait))

    def _wait(self):
        self._entered.set()
        assert self._proceed.wait(20)

    async def begun(self):
        assert await asyncio.to_thread(self._entered.wait, 20)
        return self

    async def end(self):
        self._proceed.set()
        await self._task


async def test_calls_that_wait_take_turns_by_application(threads):
    busy = await Busy(threads).begun()
    served = []
    calls = [
        threads.run_for(Flow(name, connection), 1, lambda name=name: served.append(name))
        for name, connection in [("greedy", number) for number in range(20)] + [("other", 0)] * 3
    ]
    waiting = asyncio.gather(*calls)
    await asyncio.sleep(0)
    assert threads.waiting == 23
    await busy.end()
    await waiting
    assert threads.waiting == 0
    assert [number for number, name in enumerate(served) if name == "other"] == [1, 3, 5]


async def test_large_calls_have_fewer_turns(threads):
    busy = await Busy(threads).begun()
    served = []
    sizes = {"large": 3 * CALL_COST, "small": 0}  # four times the cost
    calls = [
        threads.run_for(Flow(name, 0), size, lambda name=name: served.append(name))
        for name, size in sizes.items()
        for _ in range(8)
    ]
    waiting = asyncio.gather(*calls)
    await asyncio.sleep(0)
    await busy.end()
    await waiting
    assert served[:10] == ["large"] + ["small"] * 4 + ["large"] + ["small"] * 4


async def test_the_taskmanagers_own_calls_wait_for_one_turn_of_each_application(threads):
    busy = await Busy(threads).begun()
    served = []
    calls = [
        threads.run_for(Flow(name, 0), 0, lambda name=name: served.append(name))
        for name in ["a"] * 9 + ["b"] * 9
    ]
    waiting = asyncio.gather(*calls, threads.run(served.append, "own"))
    await asyncio.sleep(0)
    await busy.end()
    await waiting
    assert served.index("own") <= 2


async def test_a_call_that_has_not_begun_is_withdrawn_when_it_is_cancelled(threads):
    busy = await Busy(threads).begun()
    made: list[int] = []
    task = asyncio.ensure_future(threads.run(made.append, 1))
    after = asyncio.ensure_future(threads.run(made.append, 2))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task  # while the thread is still busy
    assert threads.waiting == 1
    await busy.end()
    await after
    assert made == [2]


async def test_calls_that_wait_are_made_before_the_end():
    threads = IoThreads(1, "test-io")
    busy = await Busy(threads).begun()
    made: list[int] = []
    waiting = asyncio.gather(*(threads.run(made.append, number) for number in range(3)))
    await asyncio.sleep(0)
    end = asyncio.ensure_future(asyncio.to_thread(threads.end))
    await busy.end()
    await end
    await waiting
    assert made == [0, 1, 2]


async def test_an_error_leaves_nothing_to_the_cyclic_collector(threads):
    errors = []

    class Broken(Exception):
        def __init__(self):
            super().__init__()
            errors.append(weakref.ref(self))

    def call():
        raise Broken

    async def fail():
        try:
            await threads.run(call)
        except Broken:
            return

    gc.disable()
    try:
        for _ in range(3):
            await fail()
        await threads.run(int)  # the thread has dropped the calls before
        assert [error() for error in errors] == [None] * 3
    finally:
        gc.enable()


class Hung(Exception):
    """The error of abandoned calls."""


async def test_abandoned_calls_fail_and_keep_what_they_use(threads):
    call = await HangingCall(threads).begun()
    waiting = HangingCall(threads)
    await asyncio.sleep(0)
    threads.abandon(Hung)
    for each in (call, waiting):
        with pytest.raises(Hung):
            await each.task
    assert call.lent.events == ["retained"]
    assert waiting.lent.events == []
    assert threads.waiting == 0
    await call.end(threads)
    assert call.lent.events == ["retained", "released"]


async def test_later_calls_are_refused_until_the_abandoned_ones_have_ended(threads):
    call = await HangingCall(threads).begun()
    threads.abandon(Hung)
    with pytest.raises(Hung):
        await call.task
    with pytest.raises(Hung):
        await threads.run(int)
    assert not threads.resume()
    with pytest.raises(Hung):
        await threads.run(int)
    await call.end(threads)
    assert threads.resume()
    assert await threads.run(int) == 0


async def test_a_cancelled_call_ends_when_it_is_abandoned(threads):
    call = await HangingCall(threads).begun()
    call.task.cancel()
    await asyncio.sleep(0)
    assert not call.task.done()
    threads.abandon(Hung)
    with pytest.raises(asyncio.CancelledError):
        await call.task
    assert call.lent.events == ["retained"]
    await call.end(threads)
    assert call.lent.events == ["retained", "released"]


async def test_a_call_that_ends_in_time_keeps_nothing(threads):
    lent = Lent()
    assert await threads.run_for(Flow("app", 0), 1, int, [lent]) == 0
    await eventually(lambda: not threads._running)  # the thread has noted the end of its call
    threads.abandon(Hung)
    assert lent.events == []
    assert threads.resume()


async def test_time_counts_for_running_calls_by_their_size(threads):
    assert not threads.count_time(100, 10)  # nothing runs
    call = await HangingCall(threads).begun()
    assert not threads.count_time(100, 10)  # it may have begun a moment ago
    assert not threads.count_time(9, 10)
    assert threads.count_time(1, 10)
    await call.end(threads)
    await call.task
    large = await HangingCall(threads, SLOWEST_CALL_BYTES).begun()
    assert not threads.count_time(100, 10)
    assert not threads.count_time(19, 10)
    assert threads.count_time(1, 10)
    await large.end(threads)
    await large.task


async def test_closing_waits_for_calls_but_not_for_abandoned_ones():
    threads = IoThreads(1, "test-io")
    call = await HangingCall(threads).begun()
    closing = asyncio.ensure_future(threads.close())
    await asyncio.sleep(0)
    assert not closing.done()
    threads.abandon(Hung)
    await closing
    with pytest.raises(Hung):
        await call.task
    await call.end(threads)
    assert call.lent.events == ["retained", "released"]


async def test_a_function_is_called_when_the_last_call_has_ended(threads):
    ended = threading.Event()
    threads.when_idle(ended.set)
    assert ended.is_set()
    call = await HangingCall(threads).begun()
    ended.clear()
    threads.when_idle(ended.set)
    threads.abandon(Hung)
    with pytest.raises(Hung):
        await call.task
    assert not ended.is_set()
    await call.end(threads)
    assert ended.is_set()


# ---- calls that run behind all others ------------------------------------------------------------

FLOW = Flow("app", 1)


async def test_a_call_behind_the_others_runs_when_none_waits(threads):
    order: list[str] = []
    entered, proceed = threading.Event(), threading.Event()

    def first():
        entered.set()
        assert proceed.wait(20)

    running = asyncio.ensure_future(threads.run(first))
    assert await asyncio.to_thread(entered.wait, 20)
    behind = asyncio.ensure_future(
        threads.run_for(FLOW, 0, lambda: order.append("behind"), behind=True)
    )
    await asyncio.sleep(0)
    others = [
        asyncio.ensure_future(threads.run_for(FLOW, 1 << 30, lambda: order.append("other")))
        for _ in range(3)
    ]
    await asyncio.sleep(0)
    proceed.set()
    await asyncio.gather(running, behind, *others)
    assert order == ["other", "other", "other", "behind"]


async def test_a_call_behind_the_others_can_be_withdrawn(threads):
    entered, proceed = threading.Event(), threading.Event()

    def first():
        entered.set()
        assert proceed.wait(20)

    running = asyncio.ensure_future(threads.run(first))
    assert await asyncio.to_thread(entered.wait, 20)
    made: list[int] = []
    behind = asyncio.ensure_future(threads.run_for(FLOW, 0, lambda: made.append(1), behind=True))
    await asyncio.sleep(0)
    behind.cancel()
    with pytest.raises(asyncio.CancelledError):
        await behind
    proceed.set()
    await running
    await threads.close()
    assert not made


async def test_abandoned_threads_fail_the_calls_behind_the_others(threads):
    entered, proceed = threading.Event(), threading.Event()

    def first():
        entered.set()
        assert proceed.wait(20)

    running = asyncio.ensure_future(threads.run(first))
    assert await asyncio.to_thread(entered.wait, 20)
    behind = asyncio.ensure_future(threads.run_for(FLOW, 0, int, behind=True))
    await asyncio.sleep(0)
    threads.abandon(lambda: OSError("abandoned"))
    for each in (running, behind):
        with pytest.raises(OSError, match="abandoned"):
            await each
    proceed.set()
