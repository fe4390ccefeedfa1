"""How spare segments are shared among local pools. Pure arithmetic."""

import bisect
from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, TypeVar


class Sharer(Protocol):
    """Whoever takes part in the sharing."""

    @property
    def room(self) -> int:
        """What it can take at most; fixed."""


SharerT = TypeVar("SharerT", bound=Sharer)


def fair_shares(spare: int, rooms: Sequence[int]) -> Iterator[int]:
    """Share ``spare`` evenly (±1); what a full pool cannot take flows on to the others.

    Args:
        spare: Segments to share, 0 or more.
        rooms: What each pool can take at most, **in ascending order**: whoever has least room is
            served first, so its remainder can still reach everybody else in one pass.

    Yields:
        The share of each pool, in the order of ``rooms``. Their sum is ``min(spare, sum(rooms))``;
        two shares differ by at most 1 unless the smaller one fills its room.
    """
    pools = len(rooms)
    for room in rooms:
        share = min(room, spare // pools)
        spare -= share
        pools -= 1
        yield share


class Sharing(Generic[SharerT]):
    """Those who share, in the order of their room; who has none takes no part.

    While there is enough for everybody, who comes and goes concerns nobody else: a thousand gates
    that open together then cost a look at one pool each, and not a million.
    """

    __slots__ = ("_all_full", "_new", "_rooms", "_sharers", "_total_room")

    def __init__(self) -> None:
        self._sharers: list[SharerT] = []
        self._rooms: list[int] = []
        self._total_room = 0
        self._all_full = False  # the last shares were all that everybody could take
        self._new: list[SharerT] = []  # who has come since then

    def add(self, sharer: SharerT) -> None:
        """Let one more take part."""
        if sharer.room:
            # Behind those with the same room: the order of arrival decides who gets the odd one.
            position = bisect.bisect_right(self._rooms, sharer.room)
            self._sharers.insert(position, sharer)
            self._rooms.insert(position, sharer.room)
            self._total_room += sharer.room
            self._new.append(sharer)

    def remove(self, sharer: SharerT) -> None:
        """Let one go that has been added."""
        if sharer.room:
            position = self._sharers.index(sharer)
            del self._sharers[position]
            del self._rooms[position]
            self._total_room -= sharer.room
            if sharer in self._new:
                self._new.remove(sharer)

    def shares(self, spare: int) -> Iterator[tuple[SharerT, int]]:
        """Return the shares of ``spare`` segments; those that cannot have changed may be left out.

        What is returned must be read to its end.
        """
        enough = spare >= self._total_room
        changed = self._new if enough and self._all_full else self._sharers
        self._all_full, self._new = enough, []
        if enough:
            return iter([(sharer, sharer.room) for sharer in changed])
        return zip(self._sharers, fair_shares(spare, self._rooms), strict=True)
