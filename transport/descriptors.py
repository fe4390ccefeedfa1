"""Counts the free file descriptors of the process, and keeps a few in reserve.

A connection uses a descriptor, and so do the files of the disk tier and the connections to other
TaskManagers. Strangers must not use up all descriptors, so the ports divide the free ones when they
start.
"""

import contextlib
import logging
import os
import resource
from typing import Final

logger = logging.getLogger(__name__)

_OPEN_FILES: Final = "/proc/self/fd"
_LEAST: Final = 2


def raise_limit() -> None:
    """Raise the limit of open files of this process as far as the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    with contextlib.suppress(OSError, ValueError):  # a container may refuse it
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        logger.debug("the limit of open files is %d, it was %d", hard, soft)


def free_descriptors() -> int:
    """Return how many more files this process can open now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        return max(0, soft - len(os.listdir(_OPEN_FILES)))
    except OSError:  # not even one is free for listing them
        return 0


def data_connections() -> int:
    """Return how many data connections can be accepted: 3/4 of the free descriptors."""
    return max(_LEAST, free_descriptors() * 3 // 4)


def http_connections() -> int:
    """Return how many HTTP connections can be accepted: 1/8 of the free descriptors."""
    return max(_LEAST, free_descriptors() // 8)


class Reserve:
    """Descriptors that are kept open for use when no others are free.

    Args:
        count: How many to keep.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._kept: list[int] = []
        self.refill()

    def give(self) -> bool:
        """Close one, so that the next file can be opened; return whether there was one."""
        if not self._kept:
            return False
        os.close(self._kept.pop())
        return True

    def refill(self) -> bool:
        """Reopen the closed ones; return whether the reserve is complete."""
        with contextlib.suppress(OSError):
            while len(self._kept) < self._count:
                self._kept.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        return len(self._kept) == self._count

    def close(self) -> None:
        """Close all permanently. Idempotent."""
        self._count = 0
        while self.give():
            pass
