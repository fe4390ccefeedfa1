"""Upkeep of tiers in threads: allocating pages ahead of use, and returning free space."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from .....transport.fair_queue import OWN_FLOW
from .....transport.loop import start_task
from ..errors import DirectoryHangs

if TYPE_CHECKING:
    from .arena_tier import ArenaTier
    from .memory_tier import MemoryTier

logger = logging.getLogger(__name__)


class Upkeep:
    """Runs at most one upkeep task per tier at a time, in the threads of the tier.

    Attributes:
        tasks: Running upkeep tasks.
    """

    def __init__(self) -> None:
        self._busy: set[ArenaTier] = set()
        self._ending = False
        self.tasks: set[asyncio.Task[None]] = set()

    async def end(self) -> None:
        """Stop returning free space, and wait for running upkeep."""
        self._ending = True
        while self.tasks:
            await asyncio.wait(self.tasks)

    def back_ahead(self, memory: "MemoryTier") -> None:
        """Allocate and touch the pages that are used next, in a thread."""
        if memory in self._busy:
            return

        async def work() -> None:
            start, end = memory.backing_range()
            memory.prepared(end, await memory.threads.run(memory.prepare, start, end))

        self._in_background(memory, work())

    def trim_soon(self, tier: "ArenaTier") -> None:
        """Return free space at the end of an arena to the file system."""
        if tier in self._busy or self._ending or tier.threads.is_abandoned:
            return

        async def work() -> None:
            await asyncio.sleep(0)  # a release frees many extents in a row: trim once, after them
            while (trim := tier.begin_trim()) is not None:
                if not await _punch(tier, *trim):
                    break

        self._in_background(tier, work())

    def _in_background(self, tier: "ArenaTier", work: Coroutine[Any, Any, None]) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # during a start, or an extent was released after the loop had ended
            work.close()
            return

        def ended(task: "asyncio.Task[None]") -> None:
            self.tasks.discard(task)
            self._busy.discard(tier)
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.error("upkeep of %s failed", tier.place, exc_info=error)
            elif not task.cancelled() and tier.excess_bytes:
                self.trim_soon(tier)  # space was freed during this upkeep

        task = start_task(work)
        self._busy.add(tier)
        self.tasks.add(task)
        task.add_done_callback(ended)


class _Trim:
    """A range of an arena that a thread returns to the file system."""

    def __init__(self, tier: "ArenaTier", offset: int, length: int) -> None:
        self._tier = tier
        self._range = offset, length
        self._failure: str | None = None
        self.is_running = False

    def punch(self) -> str:
        """Return the range to the file system. Runs in a thread."""
        self._failure = self._tier.punch(*self._range)
        return self._failure

    def retain(self) -> None:
        """Keep the range out of use: its thread was abandoned."""
        self.is_running = True

    def release(self) -> None:
        """Put the range back, with its blocks unless the thread returned them."""
        if self._failure is None:
            self._tier.withdraw_trim(*self._range)
        else:
            self._tier.end_trim(*self._range, self._failure)


async def _punch(tier: "ArenaTier", offset: int, length: int) -> bool:
    """Return a range of an arena to the file system; return whether the disk answered.

    Cancellation: waits until the thread has ended, or is abandoned.
    """
    trim = _Trim(tier, offset, length)
    try:
        failure = await tier.threads.run_for(OWN_FLOW, length, trim.punch, (trim,))
    except DirectoryHangs:
        if not trim.is_running:
            trim.release()
        return False
    tier.end_trim(offset, length, failure)
    return True
