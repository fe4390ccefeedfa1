"""Free ports of the loopback for the data processes of a TaskManager."""

from __future__ import annotations

import socket

from sluice.protocol.schema import PROCESS_PORT_STEP

ATTEMPTS = 50
"""Attempts to find them: other tests take and leave some meanwhile."""


def free_ports(processes: int, host: str = "127.0.0.1") -> int:
    """Return a port that is free, as are those of the other data processes."""
    for _ in range(ATTEMPTS):
        taken = []
        try:
            first = socket.socket()
            taken.append(first)
            first.bind((host, 0))
            port: int = first.getsockname()[1]
            for process in range(1, processes):
                taken.append(socket.socket())
                taken[-1].bind((host, port + PROCESS_PORT_STEP * process))
        except (OSError, OverflowError):
            continue
        else:
            return port
        finally:
            for each in taken:
                each.close()
    raise OSError(f"no {processes} free ports in a row")
