"""CPU time of processes: of one, and of all executors of a Spark application."""

from __future__ import annotations

import time
from pathlib import Path

_EXECUTOR = b"CoarseGrainedExecutorBackend"


def of_process(pid: int) -> float:
    """CPU seconds of all threads of a process so far, those that have ended too.

    Raises:
        OSError: There is no such process.
    """
    # What clock_getcpuclockid(3) gives on Linux, which Python has not.
    return time.clock_gettime((~pid << 3) | 2)


def of_executors(application_id: str) -> float:
    """CPU seconds so far of an application's executors that run on this machine.

    Tasks, their JVMs' own threads and those of any client of a shuffle service in them; executors
    that have ended are no longer in it.
    """
    wanted = application_id.encode()
    total = 0.0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if wanted in words and any(word.endswith(_EXECUTOR) for word in words):
                total += of_process(int(entry.name))
        except OSError:
            continue  # it has just ended, or belongs to somebody else
    return total
