"""Runs a Python program, and keeps what each file had at its last sync.

    python tests/support/synced_daemon.py KEEP DIRECTORY PROGRAM ARGUMENTS...

For each file that the program synced, ``KEEP/INODE`` has its bytes at its last sync. A
test that stops the process can tell what a power cut at that moment leaves of DIRECTORY.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from tests.support.lost_writes import LostWrites

if __name__ == "__main__":
    LostWrites(Path(sys.argv[2]), Path(sys.argv[1])).__enter__()
    sys.argv = sys.argv[3:]
    sys.path.pop(0)
    runpy.run_path(sys.argv[0], run_name="__main__")
