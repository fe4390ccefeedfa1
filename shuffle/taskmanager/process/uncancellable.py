"""Runs a blocking call in a thread to its end, even if the caller is cancelled."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from ....transport.loop import start_task

T = TypeVar("T")


async def run_uncancellable(make: Callable[[], T], made: Callable[[T], object]) -> T:
    """Make something in a thread, and pass it to ``made`` even if this call is cancelled.

    Raises:
        asyncio.CancelledError: The call was cancelled; raised after the thread has ended.
    """
    making = start_task(asyncio.to_thread(make))
    cancelled: asyncio.CancelledError | None = None
    while not making.done():
        try:
            await asyncio.wait({making})
        except asyncio.CancelledError as error:  # it may come more than once
            cancelled = error
    if not making.cancelled() and making.exception() is None:
        made(making.result())
    if cancelled is not None:
        raise cancelled
    return making.result()
