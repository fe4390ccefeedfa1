"""When a pipelined partition of a client is flushed: every interval, unless its buffers go anyway.

A flush makes a message of each open buffer. One that is still under way when its interval is over
has met a connection at its limit; and if buffers became complete meanwhile at about the rate at
which flushed ones went, the next flush would mostly cut in two what is about to go whole. A *pause*
follows then, :data:`PAUSE_FLUSHES` times as long as the flush took, so that at most a third of the
time goes into flushing. A flush that goes out at once, or during which few buffers become complete,
has no pause behind it: a writer that is not at its limit is flushed every interval.
"""

import time
from collections.abc import Callable
from typing import Final

from shuffle.partition.output_flusher import DEFAULT_INTERVAL_SECONDS

PAUSE_FLUSHES: Final = 2
"""How long a pause is, in times of what the flush before it took."""

COMPLETE_A_FLUSHED_BUFFER: Final = 0.25
"""Buffers that became complete since the flush before it began, for each that both of them sent,
from which on a flush is followed by a pause. Two flushes, because subpartitions that are written to
in turn become full together, during one flush and not during the next."""

MOST_PAUSE_SECONDS: Final = DEFAULT_INTERVAL_SECONDS
"""Longest pause, for a flush that took long because nobody read."""


class FlushPace:
    """Says, interval by interval, whether to flush.

    Args:
        clock: Tells the time in seconds.
    """

    __slots__ = ("_before", "_began", "_clock", "_last", "_pause_ends", "_was_under_way")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = 0.0
        self._last = self._before = (0, 0)
        """Of the last two flushes: how many buffers they sent, how many were complete before."""
        self._was_under_way = False
        self._pause_ends: float | None = None

    @property
    def is_pausing(self) -> bool:
        """Whether a flush is put off because of the one before."""
        return self._pause_ends is not None

    def is_due(self, under_way: int, complete: int) -> bool:
        """Tell whether to flush now; asked once an interval.

        Args:
            under_way: Buffers of the last flush that have not gone.
            complete: Buffers that have become complete so far.
        """
        if under_way:
            self._was_under_way = True
            return False  # what is flushed now would go behind it
        if self._was_under_way:
            self._was_under_way = False
            sent = self._before[0] + self._last[0]
            if complete - self._before[1] >= COMPLETE_A_FLUSHED_BUFFER * sent:
                now = self._clock()
                pause_seconds = min(PAUSE_FLUSHES * (now - self._began), MOST_PAUSE_SECONDS)
                self._pause_ends = now + pause_seconds
                return False
        if self._pause_ends is not None and self._clock() < self._pause_ends:
            return False
        self._pause_ends = None
        return True

    def began(self, buffers: int, complete: int) -> None:
        """Take note of a flush.

        Args:
            buffers: How many it sends.
            complete: Buffers that had become complete before.
        """
        self._began = self._clock()
        self._before, self._last = self._last, (buffers, complete)
