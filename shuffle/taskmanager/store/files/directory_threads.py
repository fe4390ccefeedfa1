"""The threads of each storage directory: a disk that hangs stops its own calls and no others.

A directory has threads for the bytes of regions, one for its journal, which bulk data must not
delay, and one for probes. Nothing is shared between directories.
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from ..errors import DirectoryHangs
from .io_threads import IoThreads
from .late_calls import LateCalls

CLOSE_SECONDS: Final = 5.0
"""Time for writes under way, and for queued rows, to finish when the store is closed."""


class DirectoryThreads(NamedTuple):
    """The threads of one directory.

    Attributes:
        directory: The directory.
        data: Threads that read and write regions.
        journal: The thread of the journals in the directory.
        probe: The thread of its probes.
        late: Calls of the start that were given up.
    """

    directory: Path
    data: IoThreads
    journal: IoThreads
    probe: IoThreads
    late: LateCalls

    def abandon(self, reason: str) -> None:
        """Fail all calls but probes with an error that names the directory. Idempotent."""
        for each in (self.data, self.journal):
            if not each.is_abandoned:
                each.abandon(partial(DirectoryHangs, self.directory, reason))

    def resume(self) -> bool:
        """Accept calls again, unless abandoned ones still run; return whether they are accepted."""
        if self.late.are_running:
            return False
        resumed = [each.resume() for each in (self.data, self.journal)]
        return all(resumed)

    def count_time(self, seconds: float, limit_seconds: float) -> bool:
        """Count time for running calls; return whether one of them takes too long."""
        late = [each.count_time(seconds, limit_seconds) for each in (self.data, self.journal)]
        return any(late)

    def when_idle(self, function: Callable[[], None]) -> None:
        """Call a function when no thread touches the directory: now, or in the last thread."""
        steps = iter((self.data, self.journal, self.probe, self.late))

        def next_step() -> None:
            threads = next(steps, None)
            if threads is None:
                function()
            else:
                threads.when_idle(next_step)

        next_step()


class StorageThreads:
    """The threads of all directories of a store.

    Args:
        count: Number of threads for the disks; each has an equal part, rounded up.
        disks: Number of disks.
    """

    def __init__(self, count: int, disks: int) -> None:
        self._count = threads_of_a_disk(count, disks)
        self._directories: dict[Path, DirectoryThreads] = {}
        self.memory = IoThreads(self._count, "sluice-storage")
        """Threads that touch no disk: they copy from region areas to objects."""

    def of(self, directory: Path) -> DirectoryThreads:
        """Return the threads of a directory."""
        found = self._directories.get(directory)
        if found is None:
            found = self._directories[directory] = DirectoryThreads(
                directory,
                IoThreads(self._count, "sluice-storage"),
                IoThreads(1, "sluice-journal"),
                IoThreads(1, "sluice-health"),
                LateCalls(),
            )
        return found

    def abandon_all(self, reason: str) -> None:
        """Fail all calls, also those of probes: the store closes."""
        for each in self._directories.values():
            each.abandon(reason)
            if not each.probe.is_abandoned:
                each.probe.abandon(partial(DirectoryHangs, each.directory, reason))

    def abandon_later(self) -> asyncio.TimerHandle:
        """Abandon all calls in ``CLOSE_SECONDS``, unless the timer is canceled."""
        reason = f"it did not answer within {CLOSE_SECONDS:g} s"
        loop = asyncio.get_running_loop()
        return loop.call_later(CLOSE_SECONDS, self.abandon_all, reason)

    def directories(self) -> list[DirectoryThreads]:
        """Return the threads of all directories, for status."""
        return list(self._directories.values())

    async def close(self) -> None:
        """Wait for all calls that are not abandoned, and end the threads.

        Cancellation: safe; some threads do not end.
        """
        for threads in self._all():
            await threads.close()

    def end(self) -> None:
        """End the threads of a store that was not opened. Blocks."""
        for threads in self._all():
            threads.end()

    def _all(self) -> Iterator[IoThreads]:
        yield self.memory
        for each in self._directories.values():
            yield from (each.data, each.journal, each.probe)


def threads_of_a_disk(count: int, disks: int) -> int:
    """Return the number of threads that each of several disks has."""
    return -(-count // max(1, disks))
