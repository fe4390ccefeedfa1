"""Handles signals while ``sluice taskmanager`` imports its modules.

Importing takes most of the start. Until the daemon handles signals, their default actions apply:
SIGHUP would end the process, although it only asks to load files that are about to be read. And a
process with the id 1, as in a container without an init, would ignore SIGTERM.

``cli`` imports this module before anything that takes time. In any other program the import does
nothing.
"""

import os
import signal
import sys
from types import FrameType

PROGRAM = "sluice"
DAEMON_COMMAND = "taskmanager"
INIT_PID = 1


def install(pid: int) -> None:
    """Ignore SIGHUP; make SIGTERM and SIGINT end the first process of a container, too."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if pid == INIT_PID:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    """End with the exit code of the signal: nothing is open yet that must be closed."""
    os._exit(128 + number)


def is_daemon() -> bool:
    """Return whether this process is ``sluice taskmanager``."""
    return os.path.basename(sys.argv[0]) == PROGRAM and sys.argv[1:2] == [DAEMON_COMMAND]


if is_daemon():
    install(os.getpid())
