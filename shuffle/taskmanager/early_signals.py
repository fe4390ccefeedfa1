"""Signals from the first moment of ``sluice taskmanager``, while its modules are imported.

Importing takes most of the start, and until the event loop handles signals their defaults hold. A
SIGHUP, which would load the files again that are read a moment later anyway, would end the daemon.
And a process with the id 1, as in a container without an init, would ignore SIGTERM.

``cli`` imports this module before anything that takes time. In any other program that does nothing.
"""

import os
import signal
import sys
from types import FrameType

PROGRAM = "sluice"
DAEMON_COMMAND = "taskmanager"
INIT_PID = 1


def install(pid: int) -> None:
    """Ignore SIGHUP, and end at a SIGTERM also as the first process of a container."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if pid == INIT_PID:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    """End as the default of the signal does: nothing is opened yet that needs closing."""
    os._exit(128 + number)


def is_daemon() -> bool:
    """Return whether this process is ``sluice taskmanager``."""
    return os.path.basename(sys.argv[0]) == PROGRAM and sys.argv[1:2] == [DAEMON_COMMAND]


if is_daemon():
    install(os.getpid())
