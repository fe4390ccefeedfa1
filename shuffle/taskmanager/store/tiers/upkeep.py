"""Upkeep of tiers in threads: allocating pages ahead of use, and returning free space."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from .....transport.loop import start_task

if TYPE_CHECKING:
    from ..files.io_threads import IoThreads
    from .arena_tier import ArenaTier
    from .memory_tier import MemoryTier

logger = logging.getLogger(__name__)


class Upkeep:
    """Runs at most one upkeep task per tier at a time.

    Args:
        threads: Threads for the upkeep.

    Attributes:
        tasks: Running upkeep tasks.
    """

    def __init__(self, threads: "IoThreads") -> None:
        self._threads = threads
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
            memory.prepared(end, await self._threads.run(memory.prepare, start, end))

        self._in_background(memory, work())

    def trim_soon(self, tier: "ArenaTier") -> None:
        """Return free space at the end of an arena to the file system."""
        if tier in self._busy or self._ending:
            return

        async def work() -> None:
            await asyncio.sleep(0)  # a release frees many extents in a row: trim once, after them
            while (trim := tier.begin_trim()) is not None:
                tier.end_trim(*trim, await self._threads.run(tier.punch, *trim))

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
