"""The resident memory of this process, and a budget for its growth."""

from __future__ import annotations

import gc
import os
from pathlib import Path

MIB = 1 << 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Return the memory of the process that is resident, without files and shared memory."""
    _, resident, shared, *_ = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return (int(resident) - int(shared)) * _PAGE_BYTES


class MemoryBudget:
    """Checks that the process does not grow by more than a budget.

    Args:
        most_bytes: Growth from now on that is allowed.
    """

    def __init__(self, most_bytes: int) -> None:
        gc.collect()
        self._most_bytes = most_bytes
        self._began_bytes = resident_bytes()
        self.grown_bytes = 0
        """Largest growth that was seen."""

    def check(self) -> None:
        """Look at the memory.

        Raises:
            AssertionError: It has grown by more than the budget.
        """
        grown = resident_bytes() - self._began_bytes
        self.grown_bytes = max(self.grown_bytes, grown)
        assert grown <= self._most_bytes, (
            f"{grown / MIB:.1f} MiB more resident memory, the budget is "
            f"{self._most_bytes / MIB:.1f} MiB"
        )
