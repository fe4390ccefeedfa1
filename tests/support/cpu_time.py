"""CPU time of processes: of one, and of all executors of a Spark application."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from tests.support.executors import executors_below


def of_process(pid: int) -> float:
    """Return the CPU seconds of all threads of a process so far, also of those that have ended.

    Raises:
        OSError: The process does not exist.
    """
    # What clock_getcpuclockid(3) gives on Linux, which Python has not.
    return time.clock_gettime((~pid << 3) | 2)


def of_first_thread(pid: int) -> float:
    """Return the CPU seconds of a process's first thread, which runs a TaskManager's data loop.

    Raises:
        OSError: The process does not exist.
    """
    ran, *_ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text(encoding="ascii").split()
    return int(ran) / 1e9


def wake_ups_of_first_thread(pid: int) -> int:
    """Return how often a process's first thread, a TaskManager's data loop, has waited so far.

    Raises:
        OSError: The process does not exist.
    """
    status = Path(f"/proc/{pid}/task/{pid}/status").read_text(encoding="ascii")
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])


def of_executors(directory: Path, application_id: str) -> float:
    """Return the CPU seconds of an application's executors on the cluster below ``directory``.

    They include tasks, the JVMs' own threads and those of a shuffle service's client. Executors
    that have ended are not included.
    """
    total = 0.0
    for executor in executors_below(directory, application_id):
        with contextlib.suppress(OSError):  # it has just ended
            total += of_process(executor.pid)
    return total
