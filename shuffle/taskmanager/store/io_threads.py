"""Threads for blocking calls, bounded in number and safe against cancellation."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class IoThreads:
    """A few threads that make the blocking calls of an event loop.

    Args:
        count: Most threads.
        name: Prefix of their names.
    """

    __slots__ = ("_executor",)

    def __init__(self, count: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(count, thread_name_prefix=name)

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call in a thread and wait for it.

        Cancellation: the call is not interrupted, because the thread may be using the caller's
        buffers; CancelledError is raised when it has ended. So buffers may be reused as soon as
        this returns or raises, in every case. The wait is as long as the operating system takes
        for one disk access.
        """
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, lambda: call(*args, **kwargs))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                try:
                    await asyncio.wait({future})
                except asyncio.CancelledError:
                    continue  # cancelled again: the thread still has the buffers
            if not future.cancelled():
                future.exception()  # retrieved, so that asyncio does not report it as forgotten
            raise

    def end(self) -> None:
        """Wait for the calls under way and end the threads. Blocks."""
        self._executor.shutdown()
