"""Runs a process on the configured event loop, and starts tasks on the loop that runs."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Literal, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T], event_loop: Literal["uvloop", "asyncio"]) -> T:
    """Run a coroutine to its end on a new loop of the given kind."""
    if event_loop == "uvloop":
        import uvloop  # only on demand: asyncio needs no native code

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main)
    with asyncio.Runner() as runner:
        return runner.run(main)


def start_task(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run a coroutine in a task, whose first step comes in a later turn of the running loop.

    The loop may be an application's, with an eager task factory (Python 3.12): then its own
    ``create_task`` runs the first step before it returns. That is before the caller has kept the
    task, and in the middle of what must not be re-entered, so the factory is passed over.
    """
    return asyncio.Task(work, loop=asyncio.get_running_loop())


async def run_together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines side by side, and return their results in the same order.

    Raises:
        Exception: The first failure, which cancels the others; raised when all have ended.

    Cancellation: cancels all; raised when they have ended.
    """
    given = list(works)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_later(work)) for work in given]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    finally:
        for work in given:
            work.close()  # it may have been cancelled before its first step
    return [task.result() for task in tasks]


async def _later(work: Coroutine[Any, Any, T]) -> T:
    """Begin in the next turn, as :func:`start_task` does.

    On Python 3.12 a group whose task fails before the group waits for it ends with the failure, and
    then cancels the step of its caller that comes next.
    """
    await asyncio.sleep(0)
    return await work
