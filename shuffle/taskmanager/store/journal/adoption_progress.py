"""Progress of an adoption in the log, if a terminal shows the log.

A start reads the journals and adopts the map outputs that they name. After a restart of the host,
or if a journal was damaged, it also verifies all adopted bytes. This may take minutes, in which the
TaskManager serves nothing.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

logger = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 2.0
"""Least time between two lines."""

WIDTH: Final = 20
"""Characters of the bar."""

T = TypeVar("T")


def with_progress(
    steps: Iterable[T],
    label: str,
    total: int,
    size_of: Callable[[T], int] = lambda _: 1,
    done: int = 0,
) -> Iterable[T]:
    """Return the steps, and log in between how much is done.

    Without a terminal nothing is logged: service managers and pipes get the lines that they know.

    Args:
        steps: The steps, which the caller does one after the other.
        label: What is done, for the log.
        total: The size of all steps and of what was done before.
        size_of: Returns the size of a step; 1 by default.
        done: The size of what was done before the first step.
    """
    stream = sys.stderr
    if stream is None or not stream.isatty():
        return steps
    return _logged(steps, label, total, size_of, done)


def _logged(
    steps: Iterable[T], label: str, total: int, size_of: Callable[[T], int], done: int
) -> Iterator[T]:
    last = time.monotonic()
    for each in steps:
        yield each
        done += size_of(each)
        now = time.monotonic()
        if now - last >= INTERVAL_SECONDS:
            last = now
            bar = "#" * (WIDTH * done // total)
            logger.info("%s: [%s] %d of %d", label, bar.ljust(WIDTH, "."), done, total)
