"""Runs a process on the configured event loop, and starts tasks on the running loop."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Final, Literal, TypeVar

T = TypeVar("T")

ON_TIME_SLICES: Final = 10
"""Parts of a time that counts only while the loop is on time. The loop must go round between two
of them, so a turn of any length counts as one part."""


def run(main: Coroutine[Any, Any, T], event_loop: Literal["uvloop", "asyncio"]) -> T:
    """Run a coroutine to completion on a new loop of the given kind."""
    if event_loop == "uvloop":
        import uvloop  # only on demand: asyncio needs no native code

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main)
    with asyncio.Runner() as runner:
        return runner.run(main)


def start_task(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run a coroutine in a task that starts in a later turn of the running loop.

    The loop may have an eager task factory (Python 3.12 and later). Its ``create_task`` runs the
    first step before it returns. At that time the caller has not stored the task, and its own state
    may be inconsistent. So the loop's task factory is not used.

    The caller must keep the task: the loop does not.
    """
    return asyncio.Task(work, loop=asyncio.get_running_loop())


def start_shared(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run a coroutine that several tasks may wait for, like :func:`start_task`.

    Each waiter gets its failure. asyncio does not report a failure that has no waiter left.
    """
    task = start_task(work)
    task.add_done_callback(mark_retrieved)
    return task


def mark_retrieved(done: "asyncio.Future[Any]") -> None:
    """Keep asyncio from reporting the failure of a future that has ended."""
    if not done.cancelled():
        done.exception()


async def done_on_time(future: "asyncio.Future[Any]", seconds: float) -> bool:
    """Wait for a future for a time that counts only while the loop is on time.

    A late loop runs a timer before it learns what has happened meanwhile. So a plain time-out says
    that the other side is late when this process is.

    Returns:
        Whether the future is done.

    Cancellation: safe; the future is not cancelled.
    """
    for _ in range(ON_TIME_SLICES):
        if not future.done():
            await asyncio.wait({future}, timeout=seconds / ON_TIME_SLICES)
    return future.done()


async def run_together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently, and return their results in the same order.

    It is not a task group because on Python 3.11 and 3.12 a failure of one of the group's tasks can
    hide that the calling task was canceled, and leaves that task's ``cancelling()`` at 1.

    Raises:
        Exception: The first failure, which cancels the others; raised when all have ended.
        asyncio.CancelledError: One of them was canceled separately; the others ran to completion.

    Cancellation: cancels all; raised when all have ended, even if one of them fails.
    """
    given: list[Coroutine[Any, Any, T]] = []
    try:
        for work in works:
            given.append(work)  # noqa: PERF402 - those appended so far are closed below
    except BaseException:
        for work in given:
            work.close()
        raise
    tasks = [start_task(work) for work in given]
    failure: BaseException | None = None
    cancelled, awaited = False, asyncio.FIRST_EXCEPTION
    while pending := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(pending, return_when=awaited)
        except asyncio.CancelledError:
            cancelled = True
        found = _first_failure(tasks)
        failure = found if failure is None else failure
        if (cancelled or failure is not None) and awaited is asyncio.FIRST_EXCEPTION:
            awaited = asyncio.ALL_COMPLETED
            for task in pending:  # once: a second cancellation would interrupt their cleanup
                task.cancel()
    try:
        if cancelled:
            raise asyncio.CancelledError
        if failure is not None:
            raise failure
        return [task.result() for task in tasks]
    finally:
        # A failure's traceback refers to this frame. Without references from here it is freed at
        # once, and with it the memory that the coroutines held.
        given.clear()
        tasks.clear()
        failure = found = task = work = None  # type: ignore[assignment]


def _first_failure(tasks: Iterable[asyncio.Task[T]]) -> BaseException | None:
    """Return the first failure, and mark all as retrieved."""
    ended = [task.exception() for task in tasks if task.done() and not task.cancelled()]
    return next((error for error in ended if error is not None), None)
