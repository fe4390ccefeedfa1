"""Deadlines for progress: finds what is held for somebody who does not move.

One timer serves many things. It is set when there is something to watch, and looks at all of them
when it fires: what has the same mark as at the look before has not moved in between. So a deadline
costs nothing for each buffer, and a thing is late after once to twice the time. Time in which this
process did not run does not count: what has arrived meanwhile is not read yet.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeAlias, TypeVar

Thing = TypeVar("Thing")

Mark: TypeAlias = object
"""Differs from the one before if the thing has moved."""

OURS: Final[Mark] = object()
"""The mark of a thing that waits for this side: it is watched on, and never late."""

_ASLEEP: Final = 0.5
"""Part of the time by which the timer fires late when the process did not run."""


class ProgressWatch(Generic[Thing]):
    """Watches things of one kind.

    Args:
        timeout_seconds: Time without a move after which a thing is late; None: never.
        marks: Returns the things that there are to watch, each with its mark.
        late: Called with each thing that has not moved; it may end others. What it spares has its
            time from the next look on.
        ended: Called when nothing is left to watch; :meth:`watch` begins anew.
    """

    __slots__ = ("_due", "_ended", "_late", "_loop", "_marks", "_seen", "_timer", "timeout_seconds")

    def __init__(
        self,
        timeout_seconds: float | None,
        marks: Callable[[], Iterable[tuple[Thing, Mark]]],
        late: Callable[[Thing], None],
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self.timeout_seconds: Final = timeout_seconds
        self._marks = marks
        self._late = late
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._seen: dict[Thing, Mark] = {}

    @property
    def is_watching(self) -> bool:
        """Whether the timer is set."""
        return self._timer is not None

    def watch(self) -> None:
        """Begin to watch, unless it is watching already; call this when a thing comes."""
        if self._timer is None and self.timeout_seconds is not None:
            self._seen = dict(self._marks())
            self._set(self.timeout_seconds)

    def forget(self, thing: Thing) -> None:
        """Keep nothing of a thing that is gone. Idempotent."""
        self._seen.pop(thing, None)

    def look(self) -> None:
        """Look at all things; the timer calls this."""
        if self._timer is None or self.timeout_seconds is None:
            return
        self._timer.cancel()
        slept = self._loop.time() - self._due > self.timeout_seconds * _ASLEEP
        before, self._seen = self._seen, dict(self._marks())
        if not slept:
            late = [
                thing
                for thing, mark in self._seen.items()
                if mark is not OURS and thing in before and before[thing] == mark
            ]
        else:
            late = []
        for thing in late:
            self._seen.pop(thing, None)
            self._late(thing)
        if (late or self._seen) and self.is_watching:  # otherwise a late thing has closed the watch
            self._set(self.timeout_seconds)
        else:
            self._timer = None
            self._ended()

    def close(self) -> None:
        """Stop watching, and forget whose things these are. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._marks = _none
        self._late = _nobody
        self._ended = _nothing
        self._seen = {}

    def _set(self, seconds: float) -> None:
        self._due = self._loop.time() + seconds
        self._timer = self._loop.call_later(seconds, self.look)


def _none() -> Iterable[tuple[Thing, Mark]]:
    return ()


def _nobody(thing: Thing) -> None:
    """Tell nobody: the watch is closed."""


def _nothing() -> None:
    """Do nothing: the watch is closed."""
