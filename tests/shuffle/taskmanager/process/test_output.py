"""Standard streams of a daemon that was started without them."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, socket, sys
from sluice.shuffle.taskmanager.process import output
output.redirect()
output.start_logging("info")
least = socket.socket().fileno()
sys.exit(least if all(os.path.exists(f"/proc/self/fd/{fd}") for fd in range(3)) else 0)
"""


@pytest.mark.parametrize("closed", ["2>&-", "0<&- 1>&- 2>&-"])
def test_closed_streams_leave_their_descriptors_to_nothing_else(closed: str):
    """libuv ends the process if it has to close one of them."""
    command = ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, PROGRAM]
    assert subprocess.run(command, timeout=30, check=False).returncode > 2
