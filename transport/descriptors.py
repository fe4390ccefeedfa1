"""Open files of the process: how many more there may be, and a few in reserve.

A connection takes a descriptor, and so do the files of the disk tier and the connections to other
TaskManagers. What strangers can open must leave some for the others: the ports share out what is
free when they start.
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
    """Raise the limit of open files of this process as far as it may itself."""
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
    except OSError:  # not even one to look with
        return 0


def data_connections() -> int:
    """Return how many data connections this process can accept: three quarters of what is free."""
    return max(_LEAST, free_descriptors() * 3 // 4)


def http_connections() -> int:
    """Return how many HTTP connections it can accept: an eighth of what is free."""
    return max(_LEAST, free_descriptors() // 8)


class Reserve:
    """Descriptors that are kept to have some when there are none left.

    Args:
        count: How many to keep.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._kept: list[int] = []
        self.refill()

    def give(self) -> bool:
        """Give one up, so that the next file can be opened; tell whether there was one."""
        if not self._kept:
            return False
        os.close(self._kept.pop())
        return True

    def refill(self) -> bool:
        """Take back those that were given up; tell whether all are there."""
        with contextlib.suppress(OSError):
            while len(self._kept) < self._count:
                self._kept.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        return len(self._kept) == self._count

    def close(self) -> None:
        """Give all up for good. Idempotent."""
        self._count = 0
        while self.give():
            pass
