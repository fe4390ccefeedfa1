"""The pace at which a partition flushes its open buffers.

A partition is flushed every interval, unless its buffers go anyway. A flush makes a message of each
open buffer, and there are two reasons to put it off.

**The connection is at its limit.** If flushed buffers are still under way when the interval is
over, the connection is at its limit; if buffers become complete all the while as well, another
flush would mostly cut in two a buffer that is about to go whole. Then no flush comes before all
that is under way has gone, and a *pause* follows, :data:`PAUSE_TIMES` times as long as that took:
at most a third of the time goes into flushing. If flushed buffers go at once, or buffers hardly
ever become complete, nothing is put off, for a writer that is not at its limit wants its records
sent early.

**The writer's thread is at its limit.** Flushed buffers then go at once, but each costs time that
the writer wants, here and at its reader. While the thread works for more than :data:`BUSY_SHARE` of
the time, a flush of so many buffers is followed by as many times
:data:`SECONDS_A_FLUSHED_BUFFER`: one of a hundred buffers has 20 ms behind it, and one of a single
buffer has nothing that counts. A thread that has time to spare flushes every interval.
"""

import time
from collections.abc import Callable
from typing import Final

from .output_flusher import DEFAULT_INTERVAL_SECONDS

PAUSE_TIMES: Final = 2
"""Length of a pause, as a multiple of the time that the flushed buffers before it took to go."""

MAX_PAUSE_SECONDS: Final = DEFAULT_INTERVAL_SECONDS
"""Longest pause, in case flushed buffers took long because no reader took them."""

FLUSHED_FOR_A_COMPLETE_ONE: Final = 4
"""Buffers flushed for each that becomes complete, above which a flush is never put off."""

BUSY_SHARE: Final = 0.5
"""Share of its time for which a thread works that has none to spare. It is not nearly 1, because a
thread with work also waits for its processor core."""

SECONDS_A_FLUSHED_BUFFER: Final = 200e-6
"""Time between two flushes of a busy thread, for each buffer of the first: about ten times as long
as both ends work for a message with a small buffer."""


class FlushPace:
    """Decides at each interval whether to flush.

    Args:
        subpartitions: Number of the partition's subpartitions, and of the latest buffers that
            count: written in turn, they all become complete together, and then none for a while.
        clock: Returns the time in seconds.
        cpu_clock: Returns the CPU seconds of the thread.
    """

    __slots__ = (
        "_asked",
        "_balance",
        "_clock",
        "_complete",
        "_cpu_clock",
        "_most",
        "_pause_ends",
        "_spaced_until",
        "_spacing",
        "_waits_since",
        "_worked",
    )

    def __init__(
        self,
        subpartitions: int,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._asked = clock()
        """Time of the last question, and how long the thread had worked by then."""
        self._worked = cpu_clock()
        self._spaced_until = self._asked
        """Time before which a busy thread does not flush."""
        self._spacing = False
        self._most = subpartitions
        self._balance = 0.0
        """Buffers that became complete, less one for every few flushed ones."""
        self._complete = 0
        self._waits_since: float | None = None
        """Time since which no flush is made, until all buffers under way have gone."""
        self._pause_ends: float | None = None

    @property
    def is_pausing(self) -> bool:
        """Whether a flush is put off though nothing is under way."""
        return self._spacing or self._pause_ends is not None

    def is_due(self, under_way: int, complete: int) -> bool:
        """Return whether to flush now; called once an interval.

        Args:
            under_way: Number of flushed buffers that have not gone.
            complete: Number of buffers that have become complete so far.
        """
        now, worked = self._clock(), self._cpu_clock()
        is_busy = worked - self._worked > BUSY_SHARE * (now - self._asked)
        self._asked, self._worked = now, worked
        self._balance = min(self._balance + complete - self._complete, self._most)
        self._complete = complete
        if not self._connection_is_free(under_way, now):
            return False
        self._spacing = is_busy and now < self._spaced_until
        return not self._spacing

    def flushed(self, buffers: int) -> None:
        """Record the number of buffers that a flush has put on their way."""
        self._balance = max(self._balance - buffers / FLUSHED_FOR_A_COMPLETE_ONE, -self._most)
        spacing_seconds = min(buffers * SECONDS_A_FLUSHED_BUFFER, MAX_PAUSE_SECONDS)
        self._spaced_until = self._asked + spacing_seconds

    def _connection_is_free(self, under_way: int, now: float) -> bool:
        if under_way:
            if self._waits_since is None and self._balance > 0:
                self._waits_since = now
            return self._waits_since is None
        if self._waits_since is not None:
            pause_seconds = min(PAUSE_TIMES * (now - self._waits_since), MAX_PAUSE_SECONDS)
            self._pause_ends = now + pause_seconds
            self._waits_since = None
            return False
        if self._pause_ends is not None and now < self._pause_ends:
            return False
        self._pause_ends = None
        return True
