"""Runs a Python program whose wall clock jumps, as after a wrong synchronization of clocks.

    python tests/support/jumping_clock.py FILE PROGRAM ARGUMENTS...

``time.time()`` is wrong by the seconds in the file, as set by :class:`ClockError`. Monotonic clocks
are right.
"""

from __future__ import annotations

import mmap
import runpy
import struct
import sys
import time
from pathlib import Path

_SECONDS = struct.Struct("=d")


class ClockError:
    """The error of the wall clocks of some processes, in a file that they share.

    Args:
        path: The file; created if it does not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            path.write_bytes(_SECONDS.pack(0.0))
        with path.open("r+b") as file:
            self._seconds = mmap.mmap(file.fileno(), _SECONDS.size)

    @property
    def seconds(self) -> float:
        """By how many seconds the clocks are ahead."""
        found: float = _SECONDS.unpack_from(self._seconds)[0]
        return found

    @seconds.setter
    def seconds(self, ahead: float) -> None:
        _SECONDS.pack_into(self._seconds, 0, ahead)


def main() -> None:
    """Run the program of the command line."""
    error = ClockError(Path(sys.argv[1]))
    right = time.time

    def wrong() -> float:
        return right() + error.seconds

    time.time = wrong
    sys.argv = sys.argv[2:]
    sys.path.pop(0)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
