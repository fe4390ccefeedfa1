"""Decides when a storage directory is left out and used again, without I/O.

::

              bad                     gone
    IN_USE ─────────▶ OUT ──────────────────────────▶ LOST
      ▲  │             │                                ▲│
      │  └─────────────┼──────────── gone ──────────────┘│
      └─── good, ──────┴─────────── good, three times ───┘
           three times

``OUT``: nothing new is stored in it, but its content can be read. ``LOST``: its content is gone.

If only the lock file of a directory is removed, the TaskManager stops.
"""

import enum
from typing import Final, NamedTuple

GOOD_TO_RETURN: Final = 3
"""A directory is used again after this many good probes in a row."""

MAX_TO_RETURN: Final = 192
"""A directory that fails again soon after it was used again needs twice as many good probes, up to
this many."""

UNLOCKED_TO_STOP: Final = 2
"""The TaskManager stops after this many probes in a row that miss only the lock file. One is not
enough: when a directory is being removed, its files disappear one after another."""

GOOD_TO_FORGET: Final = 300
"""After this many good probes in a row, a failure does not count as a relapse."""


class Condition(enum.Enum):
    """The result of a probe."""

    GOOD = "good"
    BAD = "bad"
    GONE = "gone"
    UNLOCKED = "unlocked"
    UNKNOWN = "unknown"


class Finding(NamedTuple):
    """The result of a probe with a ``reason`` for messages."""

    condition: Condition
    reason: str = ""


class HealthState(enum.Enum):
    """The permitted use of a directory."""

    IN_USE = "in use"
    OUT = "left out"
    LOST = "lost"


class Change(enum.Enum):
    """The action to take for a directory."""

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
        state: ``LOST`` for a directory that could not be used at the start.
    """

    def __init__(self, state: HealthState = HealthState.IN_USE) -> None:
        self.state = state
        self._good = GOOD_TO_FORGET if state is HealthState.IN_USE else 0
        self._needed = GOOD_TO_RETURN
        self._unlocked = 0

    def take(self, finding: Finding) -> Change:
        """Record the result of a probe; return the action to take."""
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
        """Record a failed read or write of data, after which the directory was left out."""
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
