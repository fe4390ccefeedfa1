"""Blocking calls in a bounded pool of threads, safe against cancellation."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def run_in_thread(
    executor: ThreadPoolExecutor, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
) -> T:
    """Run a blocking call in a thread and wait for it.

    Cancellation: the call is not interrupted, because the thread may be using the caller's buffers;
    CancelledError is raised when it has ended. So buffers may be reused as soon as this returns or
    raises, in every case. The wait is as long as the operating system takes for one disk access.
    """
    loop = asyncio.get_running_loop()
    future = loop.run_in_executor(executor, lambda: call(*args, **kwargs))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            try:
                await asyncio.wait({future})
            except asyncio.CancelledError:
                continue  # cancelled again: the thread still has the buffers
        if not future.cancelled():
            future.exception()  # looked at, so that asyncio does not report it as forgotten
        raise
