"""Which event loop a process gets, and when a task begins on it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pytest

from sluice.transport.loop import done_on_time, run, run_together, start_shared, start_task
from tests.support.peers import turns

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator


async def name_of_loop() -> str:
    return type(asyncio.get_running_loop()).__module__


@pytest.mark.parametrize(
    ("event_loop", "module"), [("uvloop", "uvloop"), ("asyncio", "asyncio.unix_events")]
)
def test_run_uses_the_given_loop(event_loop: Literal["uvloop", "asyncio"], module: str) -> None:
    assert run(name_of_loop(), event_loop) == module


async def test_a_turn_of_the_loop_counts_as_little_however_long_it_is() -> None:
    loop = asyncio.get_running_loop()
    seconds = 0.2
    answered: asyncio.Future[None] = loop.create_future()

    def busy() -> None:
        time.sleep(3 * seconds)
        # The answer is there, but takes some turns, in the first of which a timer would be over.
        answer: Callable[[], object] = partial(answered.set_result, None)
        for _ in range(3):
            answer = partial(loop.call_soon, answer)
        loop.call_soon(answer)

    loop.call_soon(busy)
    assert await done_on_time(answered, seconds)
    unanswered: asyncio.Future[None] = loop.create_future()
    assert not await done_on_time(unanswered, 0.01)
    assert not unanswered.cancelled()
    unanswered.cancel()


async def test_a_task_begins_after_the_step_that_starts_it() -> None:
    """Also on a loop whose task factory is eager: tests/conftest.py has one."""
    steps: list[str] = []

    async def work() -> str:
        steps.append("work")
        return "result"

    task = start_task(work())
    steps.append("the step that starts it")
    assert await task == "result"
    assert steps == ["the step that starts it", "work"]


async def test_a_task_is_cancelled_before_it_begins() -> None:
    task = start_task(asyncio.sleep(0, "result"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("shared", [True, False])
async def test_a_shared_failure_without_waiters_is_not_reported(*, shared: bool) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    fails = asyncio.Event()

    async def work() -> None:
        await fails.wait()
        raise ValueError

    async def wait(task: asyncio.Task[None]) -> None:
        await asyncio.shield(task)

    task = start_shared(work()) if shared else start_task(work())
    waiter = start_task(wait(task))
    await asyncio.sleep(0)
    waiter.cancel()
    fails.set()
    await asyncio.wait({task, waiter})
    del task, waiter
    await asyncio.sleep(0)
    gc.collect()
    assert len(reported) == (0 if shared else 1)


async def test_what_runs_together_returns_its_results_in_order() -> None:
    both_run = asyncio.Barrier(2)

    async def work(number: int) -> int:
        await both_run.wait()
        return number

    assert await run_together(work(number) for number in range(2)) == [0, 1]
    assert await run_together([]) == []


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_failure_cancels_what_runs_together_and_nothing_else(at_once: bool) -> None:
    ended: list[str] = []

    async def fail() -> None:
        if not at_once:
            await asyncio.sleep(0)
        raise ValueError("the first one")

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("the other one")
            raise ValueError("too late")

    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    for works in [wait(), fail()], [fail(), wait(), wait()]:
        with pytest.raises(ValueError, match="the first one"):
            await run_together(works)
    gc.collect()
    assert not reported
    assert ended == ["the other one"] * 3
    with pytest.raises(ValueError, match="the first one"):
        await run_together([fail(), fail()])
    this = asyncio.current_task()
    assert this is not None
    assert this.cancelling() == 0
    await asyncio.sleep(0)  # raises if a cancellation is left over


@pytest.mark.parametrize("turns_before_cancel", range(5))
async def test_what_runs_together_is_cancelled_together(turns_before_cancel: int) -> None:
    begun: set[int] = set()
    ended: set[int] = set()

    async def wait(number: int) -> None:
        begun.add(number)
        try:
            await asyncio.Event().wait()
        finally:
            ended.add(number)

    together = asyncio.ensure_future(run_together(map(wait, range(2))))
    await turns(turns_before_cancel)
    together.cancel()
    with pytest.raises(asyncio.CancelledError):
        await together
    assert ended == begun == ({0, 1} if turns_before_cancel == 4 else begun)


async def fail_when_cancelled() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        raise ValueError("it cannot be undone")


async def test_a_failure_of_what_is_cancelled_does_not_hide_the_cancellation() -> None:
    together = asyncio.ensure_future(run_together([fail_when_cancelled(), asyncio.sleep(60)]))
    await turns(5)
    together.cancel()
    with pytest.raises(asyncio.CancelledError):
        await together
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await run_together([fail_when_cancelled()])


async def test_a_cancellation_while_a_failure_ends_the_others_is_not_lost() -> None:
    stopping, may_end = asyncio.Event(), asyncio.Event()
    interrupted: list[bool] = []

    async def fail() -> None:
        raise ValueError("first")

    async def end_slowly() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopping.set()
            interrupted.append(True)
            await may_end.wait()
            interrupted.clear()

    together = asyncio.ensure_future(run_together([end_slowly(), fail()]))
    await stopping.wait()
    together.cancel()
    await turns(5)
    assert not together.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await together
    assert not interrupted


async def test_one_that_is_cancelled_by_itself_leaves_the_others_to_their_ends() -> None:
    ended: list[str] = []

    async def give_up() -> None:
        raise asyncio.CancelledError

    async def work() -> None:
        await turns(3)
        ended.append("work")

    with pytest.raises(asyncio.CancelledError):
        await run_together([give_up(), work()])
    assert ended == ["work"]


async def test_nothing_runs_if_the_coroutines_cannot_all_be_made() -> None:
    """A coroutine that was never awaited would be a warning, and so an error."""
    begun: list[int] = []

    async def work() -> None:
        begun.append(1)

    def works() -> Iterator[Coroutine[Any, Any, None]]:
        yield work()
        raise KeyError("no second one")

    with pytest.raises(KeyError):
        await run_together(works())
    await turns(2)
    assert not begun


async def test_a_failure_keeps_no_memory_after_it_is_handled() -> None:
    class Buffer:
        pass

    async def fail(buffer: Buffer) -> None:
        await asyncio.sleep(0)
        raise ValueError(buffer.__class__)

    def run() -> tuple[Coroutine[Any, Any, list[None]], weakref.ref[Buffer]]:
        buffer = Buffer()
        return run_together([fail(buffer), asyncio.sleep(60)]), weakref.ref(buffer)

    gc.collect()
    gc.disable()
    try:
        together, reference = run()
        with contextlib.suppress(ValueError):
            await together
        await turns(2)
        assert reference() is None
    finally:
        gc.enable()
