"""When a pipelined partition of a client is flushed: every interval, unless its buffers go anyway.

A flush makes a message of each open buffer. What is still under way when the interval is over has
met a connection at its limit; if buffers become complete all the while as well, another flush would
mostly cut in two what is about to go whole. Then there is none before all that is under way has
gone, and a *pause* behind it, :data:`PAUSE_TIMES` times as long as that took: at most a third of
the time goes into flushing. What is flushed goes out at once, or buffers hardly ever become
complete: then nothing is put off, for a writer that is not at its limit wants its records early.
"""

import time
from collections.abc import Callable
from typing import Final

from shuffle.partition.output_flusher import DEFAULT_INTERVAL_SECONDS

PAUSE_TIMES: Final = 2
"""How long a pause is, in times of what the flushed buffers before it took to go."""

MOST_PAUSE_SECONDS: Final = DEFAULT_INTERVAL_SECONDS
"""Longest pause, for flushed buffers that took long because nobody read."""

FLUSHED_FOR_A_COMPLETE_ONE: Final = 4
"""Buffers flushed for each that becomes complete, from which on flushing serves a purpose."""


class FlushPace:
    """Says, interval by interval, whether to flush.

    Args:
        subpartitions: Of the partition; what so many buffers did is what counts. They may all
            become complete together and then none for a while, as when they are written in turn.
        clock: Tells the time in seconds.
    """

    __slots__ = ("_balance", "_clock", "_complete", "_most", "_pause_ends", "_waits_since")

    def __init__(self, subpartitions: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._most = subpartitions
        self._balance = 0.0
        """Buffers that became complete, less what the flushed ones stand for."""
        self._complete = 0
        self._waits_since: float | None = None
        """There is no flush since then, until all that is under way has gone."""
        self._pause_ends: float | None = None

    @property
    def is_pausing(self) -> bool:
        """Whether a flush is put off though nothing is under way."""
        return self._pause_ends is not None

    def is_due(self, under_way: int, complete: int) -> bool:
        """Tell whether to flush now; asked once an interval.

        Args:
            under_way: Flushed buffers that have not gone.
            complete: Buffers that have become complete so far.
        """
        self._balance = min(self._balance + complete - self._complete, self._most)
        self._complete = complete
        if under_way:
            if self._waits_since is None and self._balance > 0:
                self._waits_since = self._clock()
            return self._waits_since is None
        if self._waits_since is not None:
            now = self._clock()
            pause_seconds = min(PAUSE_TIMES * (now - self._waits_since), MOST_PAUSE_SECONDS)
            self._pause_ends = now + pause_seconds
            self._waits_since = None
            return False
        if self._pause_ends is not None and self._clock() < self._pause_ends:
            return False
        self._pause_ends = None
        return True

    def flushed(self, buffers: int) -> None:
        """Take note of how many buffers a flush has put on their way."""
        self._balance = max(self._balance - buffers / FLUSHED_FOR_A_COMPLETE_ONE, -self._most)
