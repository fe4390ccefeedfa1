"""Runs a process on the configured event loop, and starts tasks on the loop that runs."""

import asyncio
from collections.abc import Coroutine
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
