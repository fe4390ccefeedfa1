"""Remembers released map attempts, to refuse later commits and copies.

A TaskManager that was away may offer a copy of a map output that was released meanwhile, at any
time before its application ends. So releases are kept as long as the application, also in the
journals. Neighboring shuffles with the same bound are one interval: Spark numbers the shuffles of
an application upwards, and releases those of a query together. Others take 16 bytes each.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from ....protocol.limits import MIN_I64
from ...names import MapAttemptKey, ShuffleKey
from ..bounds.accounts import Accounts, Resource

INTERVAL_BYTES: Final = 40
"""Bytes charged for an interval: in memory, and in the row of a journal."""

MAX_INTERVALS: Final = 65_536
"""Maximum number of intervals of an application."""

_UNBOUNDED: Final = MIN_I64
"""Stands for a release without a bound: no map attempt is below it."""


class ReleasedShuffles:
    """The released shuffles of one application: intervals of ids, each with a bound.

    Attributes:
        firsts: The first id of each interval, in ascending order.
        lasts: The last id of each.
        ends: The bound of map attempts of each.
    """

    __slots__ = ("ends", "firsts", "lasts")

    def __init__(self) -> None:
        self.firsts = array("I")
        self.lasts = array("I")
        self.ends = array("q")

    def __len__(self) -> int:
        return len(self.firsts)

    def find(self, shuffle_id: int) -> int | None:
        """Return the stored bound of a shuffle; None if it was not released."""
        at = bisect_right(self.firsts, shuffle_id) - 1
        return self.ends[at] if at >= 0 and shuffle_id <= self.lasts[at] else None

    def add(self, shuffle_id: int, end: int | None) -> bool:
        """Record a release of the map attempts below ``end``, None for all; return if it is new."""
        before = self.find(shuffle_id)
        bound = _UNBOUNDED if end is None else max(end, _UNBOUNDED + 1)
        if end is not None and before is not None:
            bound = max(before, bound)
        if bound == before:
            return False
        at = bisect_right(self.firsts, shuffle_id)
        pieces = [(shuffle_id, shuffle_id, bound)]
        if before is not None:  # cut its interval
            at -= 1
            first, last = self._pop(at)
            if first < shuffle_id:
                pieces.insert(0, (first, shuffle_id - 1, before))
            if last > shuffle_id:
                pieces.append((shuffle_id + 1, last, before))
        for number, piece in enumerate(pieces):
            for values, value in zip((self.firsts, self.lasts, self.ends), piece, strict=True):
                values.insert(at + number, value)
        for left in range(at + len(pieces) - 1, at - 2, -1):
            self._join(left)
        return True

    def forget_first(self) -> None:
        """Forget the interval with the lowest ids: Spark does not use them again."""
        self._pop(0)

    def _join(self, left: int) -> None:
        """Join an interval with the next one if they are neighbors with the same bound."""
        right = left + 1
        if (
            left >= 0
            and right < len(self.firsts)
            and self.lasts[left] + 1 == self.firsts[right]
            and self.ends[left] == self.ends[right]
        ):
            _, self.lasts[left] = self._pop(right)

    def _pop(self, at: int) -> tuple[int, int]:
        self.ends.pop(at)
        return self.firsts.pop(at), self.lasts.pop(at)


class Releases:
    """The releases of shuffles: of all map attempts, or of those below a number.

    After a release with a number, commits and copies below it are refused. A client that releases a
    shuffle without a number may reuse the shuffle's id, so later commits are accepted, even below
    the number of an earlier release. Later copies are refused, because they come from a TaskManager
    that does not know of the release.

    Args:
        accounts: The accounts of the applications, which are charged for their intervals.
    """

    def __init__(self, accounts: Accounts) -> None:
        self._accounts: Final = accounts
        self._applications: dict[str, ReleasedShuffles] = {}
        self._intervals = 0

    @property
    def journal_bytes(self) -> int:
        """Approximate bytes of :meth:`items` in a journal."""
        return self._intervals * INTERVAL_BYTES

    def applications(self) -> list[str]:
        """Return the applications with releases."""
        return list(self._applications)

    def items(self) -> Iterator[tuple[str, ReleasedShuffles]]:
        """Iterate over the applications and their releases."""
        return iter(self._applications.items())

    def adopt(self, application_id: str, released: ReleasedShuffles) -> None:
        """Take over the releases of an application that journals have."""
        self._applications[application_id] = released
        self._charge(application_id, len(released))

    def add(self, key: ShuffleKey, end: int | None) -> bool:
        """Record a release of the map attempts below ``end``, None for all; return if it is new."""
        released = self._applications.get(key.application_id)
        if released is None:
            released = self._applications[key.application_id] = ReleasedShuffles()
        before = len(released)
        is_new = released.add(key.shuffle_id, end)
        if len(released) > MAX_INTERVALS:
            released.forget_first()
        self._charge(key.application_id, len(released) - before)
        return is_new

    def forget(self, application_id: str) -> bool:
        """Forget the releases of an application that has ended; return if it had any."""
        released = self._applications.pop(application_id, None)
        if released is None:
            return False
        self._charge(application_id, -len(released))
        return True

    def has(self, attempt: MapAttemptKey) -> bool:
        """Return whether a map attempt can no longer be committed."""
        end = self._find(attempt.shuffle)
        return end is not None and attempt.map_attempt_id < end

    def has_copy(self, attempt: MapAttemptKey) -> bool:
        """Return whether a copy of a map output is refused."""
        return self._find(attempt.shuffle) == _UNBOUNDED or self.has(attempt)

    def bound(self, attempt: MapAttemptKey) -> int | None:
        """Return the bound of the release that includes a map attempt; None without one."""
        return self._find(attempt.shuffle) if self.has(attempt) else None

    def _find(self, key: ShuffleKey) -> int | None:
        released = self._applications.get(key.application_id)
        return None if released is None else released.find(key.shuffle_id)

    def _charge(self, application_id: str, intervals: int) -> None:
        self._intervals += intervals
        account = self._accounts.of(application_id)
        if intervals > 0:
            account.hold(Resource.METADATA_BYTES, intervals * INTERVAL_BYTES)
        elif intervals < 0:
            account.give_back(Resource.METADATA_BYTES, -intervals * INTERVAL_BYTES)
