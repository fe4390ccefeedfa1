"""The pace at which a partition flushes its open buffers.

A partition is flushed every interval, unless its buffers go anyway. A flush makes a message of each
open buffer, and there are two reasons to put it off.

**The connection is at its limit**, or a reader in the same process: each subpartition is then a
lane of its own, so that a reader that stops delays no flush to its neighbors. If flushed buffers
are still under way when the interval is over, the connection is at its limit; if buffers become
complete all the while as well, another flush would mostly cut in two a buffer that is about to go
whole. Then no flush comes before all that is under way has gone, and a *pause* follows,
:data:`PAUSE_TIMES` times as long as that took: at most a third of the time goes into flushing. If
flushed buffers go at once, or buffers hardly ever become complete, nothing is put off, for a writer
that is not at its limit wants its records sent early.

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


class ThreadPace:
    """Spaces the flushes of a thread that is at its limit.

    Args:
        clock: Returns the time in seconds.
        cpu_clock: Returns the CPU seconds of the thread.
    """

    __slots__ = ("_clock", "_cpu_clock", "_spaced_until", "_worked", "is_spacing", "now")

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock = clock
        self._cpu_clock = cpu_clock
        self.now = clock()
        """Time of the last call of :meth:`is_due`."""
        self._worked = cpu_clock()  # how long the thread had worked by then
        self._spaced_until = self.now  # before this time a busy thread does not flush
        self.is_spacing = False
        """Whether that call returned False."""

    def is_due(self) -> bool:
        """Return whether the thread has time for a flush; called once an interval."""
        now, worked = self._clock(), self._cpu_clock()
        is_busy = worked - self._worked > BUSY_SHARE * (now - self.now)
        self.now, self._worked = now, worked
        self.is_spacing = is_busy and now < self._spaced_until
        return not self.is_spacing

    def flushed(self, buffers: int) -> None:
        """Record the number of buffers that were flushed."""
        spacing_seconds = min(buffers * SECONDS_A_FLUSHED_BUFFER, MAX_PAUSE_SECONDS)
        self._spaced_until = self.now + spacing_seconds


class LanePace:
    """Delays flushes towards one connection, or one reader in this process, at its limit.

    Args:
        subpartitions: Number of subpartitions that share the lane, and of the latest buffers that
            count: written in turn, they all become complete together, and then none for a while.
    """

    __slots__ = ("_balance", "_complete", "_most", "_pause_ends", "_waits_since")

    def __init__(self, subpartitions: int = 1) -> None:
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
        return self._pause_ends is not None

    def is_due(self, under_way: int, complete: int, now: float) -> bool:
        """Return whether to flush now.

        Args:
            under_way: Number of flushed buffers that have not gone.
            complete: Number of buffers that have become complete so far.
            now: The time.
        """
        self._balance = min(self._balance + complete - self._complete, self._most)
        self._complete = complete
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

    def flushed(self, buffers: int) -> None:
        """Record the number of buffers that a flush has put on their way."""
        self._balance = max(self._balance - buffers / FLUSHED_FOR_A_COMPLETE_ONE, -self._most)


class FlushPace:
    """Decides at each interval whether to flush a partition whose buffers share one connection.

    Args:
        subpartitions: Number of the partition's subpartitions.
        clock: Returns the time in seconds.
        cpu_clock: Returns the CPU seconds of the thread.
    """

    __slots__ = ("_lane", "_pacing_thread")

    def __init__(
        self,
        subpartitions: int,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._pacing_thread = ThreadPace(clock, cpu_clock)
        self._lane = LanePace(subpartitions)

    @property
    def is_pausing(self) -> bool:
        """Whether a flush is put off though nothing is under way."""
        return self._pacing_thread.is_spacing or self._lane.is_pausing

    def is_due(self, under_way: int, complete: int) -> bool:
        """Return whether to flush now; arguments as of :meth:`LanePace.is_due`."""
        has_time = self._pacing_thread.is_due()
        return self._lane.is_due(under_way, complete, self._pacing_thread.now) and has_time

    def flushed(self, buffers: int) -> None:
        """Record the number of buffers that a flush has put on their way."""
        self._lane.flushed(buffers)
        self._pacing_thread.flushed(buffers)
