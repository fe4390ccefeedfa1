"""When a storage directory is left out, and when it is taken back: a table, without any I/O.

::

              bad                     gone
    IN_USE ─────────▶ OUT ──────────────────────────▶ LOST
      ▲  │             │                                ▲│
      │  └─────────────┼──────────── gone ──────────────┘│
      └─── good, ──────┴─────────── good, three times ───┘
           three times

``OUT``: it takes nothing new, and what it holds can be read. ``LOST``: what it held is not there.

If only the lock file of a directory is removed, the TaskManager stops.
"""

import enum
from typing import Final, NamedTuple

GOOD_TO_RETURN: Final = 3
"""So many good probes in a row take a directory back."""

MAX_TO_RETURN: Final = 192
"""A directory that fails again soon after it was taken back needs twice as many as the last time,
up to this."""

UNLOCKED_TO_STOP: Final = 2
"""Number of probes in a row that miss only the lock file before the TaskManager stops. After the
first, other files may follow: a directory that is removed loses its files one after the other."""

GOOD_TO_FORGET: Final = 300
"""After so many good probes in a row no failure counts as a relapse."""


class Condition(enum.Enum):
    """What a probe has found."""

    GOOD = "good"
    BAD = "bad"
    GONE = "gone"
    UNLOCKED = "unlocked"
    UNKNOWN = "unknown"


class Finding(NamedTuple):
    """The outcome of a probe; ``reason`` says in words what is wrong."""

    condition: Condition
    reason: str = ""


class HealthState(enum.Enum):
    """What a directory may be used for."""

    IN_USE = "in use"
    OUT = "left out"
    LOST = "lost"


class Change(enum.Enum):
    """What is to be done about a directory."""

    NONE = "nothing"
    LEAVE_OUT = "give it nothing new"
    LOSE = "forget what it held"
    TAKE_BACK = "use it again"
    MAKE_ANEW = "use it again, empty"
    STOP = "stop using it, and all others"


_NEXT: Final = {
    (HealthState.IN_USE, Condition.GOOD): (HealthState.IN_USE, Change.NONE),
    (HealthState.IN_USE, Condition.BAD): (HealthState.OUT, Change.LEAVE_OUT),
    (HealthState.IN_USE, Condition.GONE): (HealthState.LOST, Change.LOSE),
    (HealthState.OUT, Condition.GOOD): (HealthState.IN_USE, Change.TAKE_BACK),
    (HealthState.OUT, Condition.BAD): (HealthState.OUT, Change.NONE),
    (HealthState.OUT, Condition.GONE): (HealthState.LOST, Change.LOSE),
    (HealthState.LOST, Condition.GOOD): (HealthState.IN_USE, Change.MAKE_ANEW),
    (HealthState.LOST, Condition.BAD): (HealthState.LOST, Change.NONE),
    (HealthState.LOST, Condition.GONE): (HealthState.LOST, Change.NONE),
}


class DirectoryHealth:
    """The health of one directory.

    Args:
        state: Of a directory that could not be used at the start, ``LOST``.
    """

    def __init__(self, state: HealthState = HealthState.IN_USE) -> None:
        self.state = state
        self._good = GOOD_TO_FORGET if state is HealthState.IN_USE else 0
        self._needed = GOOD_TO_RETURN
        self._unlocked = 0

    def take(self, finding: Finding) -> Change:
        """Take the outcome of a probe; return what is to be done."""
        before = self.state
        if finding.condition is Condition.UNKNOWN:
            return Change.NONE
        if finding.condition is Condition.UNLOCKED:
            self._unlocked += 1
            return Change.STOP if self._unlocked == UNLOCKED_TO_STOP else Change.NONE
        self._unlocked = 0
        if finding.condition is Condition.GOOD:
            self._good += 1
            if before is not HealthState.IN_USE and self._good < self._needed:
                return Change.NONE
        elif before is HealthState.IN_USE:
            self._leave()
        else:
            self._good = 0
        self.state, change = _NEXT[before, finding.condition]
        if change in (Change.TAKE_BACK, Change.MAKE_ANEW):
            self._good = 0
        return change

    def failed(self) -> None:
        """Record that a read or a write of data has failed: it is left out already."""
        if self.state is HealthState.IN_USE:
            self._leave()
            self.state = HealthState.OUT

    def stays_out(self, *, empty: bool) -> None:
        """Record that a directory could not be used again, with its content or empty."""
        self.state = HealthState.LOST if empty else HealthState.OUT
        self._good = 0

    def _leave(self) -> None:
        relapse = self._good < GOOD_TO_FORGET
        self._needed = min(2 * self._needed, MAX_TO_RETURN) if relapse else GOOD_TO_RETURN
        self._good = 0
