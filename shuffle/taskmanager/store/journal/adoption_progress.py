"""Progress of an adoption in the log, if a terminal shows the log.

A start verifies all adopted bytes after the host was restarted or a journal was damaged. That may
take minutes, in which the TaskManager serves nothing.
"""

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

logger = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 2.0
"""Least time between two lines."""

WIDTH: Final = 20
"""Characters of the bar."""

T = TypeVar("T")


def with_progress(steps: Sequence[T], label: str) -> Iterator[T]:
    """Yield the steps, and log in between how many are done.

    Without a terminal nothing is logged: service managers and pipes get the lines that they know.

    Args:
        steps: The steps, which the caller does one after the other.
        label: What is done, for the log.
    """
    stream = sys.stderr
    if stream is None or not stream.isatty():
        yield from steps
        return
    last = time.monotonic()
    for done, each in enumerate(steps, 1):
        yield each
        now = time.monotonic()
        if now - last >= INTERVAL_SECONDS:
            last = now
            bar = "#" * (WIDTH * done // len(steps))
            logger.info("%s: [%s] %d of %d", label, bar.ljust(WIDTH, "."), done, len(steps))
