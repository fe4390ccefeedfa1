"""Run a TaskManager on a slow disk: ``python -m benchmarks.slow_disk BYTES_PER_SECOND PROGRAM``.

The disk of a machine for benchmarks is mostly its page cache, which takes a buffer in microseconds:
what two applications compete for there is the processor. This one moves so many bytes a second, one
call after another, and caches nothing.
"""

from __future__ import annotations

import runpy
import sys
import threading
import time
from typing import TYPE_CHECKING

from sluice.shuffle.taskmanager.store.tiers.disk_tier import DiskTier

if TYPE_CHECKING:
    from collections.abc import Callable


class SlowDisk:
    """A device that moves so many bytes a second.

    Args:
        bytes_per_second: Its speed.
    """

    def __init__(self, bytes_per_second: int) -> None:
        self._bytes_per_second = bytes_per_second
        self._lock = threading.Lock()
        self._free_at = 0.0

    def slowed(
        self, call: Callable[[DiskTier, int, list[memoryview]], None]
    ) -> Callable[[DiskTier, int, list[memoryview]], None]:
        """Return a call that takes the time of the device."""

        def slow(tier: DiskTier, offset: int, buffers: list[memoryview]) -> None:
            call(tier, offset, list(buffers))
            seconds = sum(map(len, buffers)) / self._bytes_per_second
            with self._lock:
                self._free_at = max(self._free_at, time.monotonic()) + seconds
                until = self._free_at
            time.sleep(max(0.0, until - time.monotonic()))

        return slow


def main() -> None:
    """Run the program."""
    bytes_per_second, program, *arguments = sys.argv[1:]
    disk = SlowDisk(int(bytes_per_second))
    replacements = {
        "read": disk.slowed(DiskTier.read),
        "write": disk.slowed(DiskTier.write),
        "read_cached": lambda tier, offset, buffers: False,
    }
    for name, replacement in replacements.items():
        setattr(DiskTier, name, replacement)
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
