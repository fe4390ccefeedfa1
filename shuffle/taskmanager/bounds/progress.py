"""Deadlines for progress: finds things that are held without progress.

One timer serves many things. It is set when there is something to watch, and checks all of them
when it fires: a thing with the same mark as at the previous check made no progress. So a deadline
costs nothing per buffer, and a thing is late after one to two timeouts. Time in which this process
did not run does not count, because it has not read data that arrived meanwhile.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeAlias, TypeVar

Thing = TypeVar("Thing")

Mark: TypeAlias = object
"""Changes when the thing makes progress."""

OURS: Final[Mark] = object()
"""Mark of a thing that waits for this side; it is never late."""

_ASLEEP: Final = 0.5
"""If the timer fires late by more than this part of the timeout, the process did not run."""


class ProgressWatch(Generic[Thing]):
    """Watches things of one kind.

    Args:
        timeout_seconds: Time without progress after which a thing is late; None: never.
        marks: Returns the things to watch, each with its mark.
        late: Called with each late thing; it may end others. The time of a thing that it does not
            end starts again at the next check.
        ended: Called when nothing is left to watch, until :meth:`watch` is called again.
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
        """Start to watch, unless already watching; call this when a thing is added."""
        if self._timer is None and self.timeout_seconds is not None:
            self._seen = dict(self._marks())
            self._set(self.timeout_seconds)

    def forget(self, thing: Thing) -> None:
        """Forget a thing that has ended. Idempotent."""
        self._seen.pop(thing, None)

    def look(self) -> None:
        """Check all things; the timer calls this."""
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
        """Stop watching, and drop the callbacks. Idempotent."""
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
    """Ignore: the watch is closed."""


def _nothing() -> None:
    """Do nothing: the watch is closed."""
