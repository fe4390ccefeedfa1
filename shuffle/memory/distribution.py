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
    """Those who share, in the order of their room; who has none takes no part."""

    __slots__ = ("_rooms", "_sharers")

    def __init__(self) -> None:
        self._sharers: list[SharerT] = []
        self._rooms: list[int] = []

    def add(self, sharer: SharerT) -> None:
        """Let one more take part."""
        if sharer.room:
            # Behind those with the same room: the order of arrival decides who gets the odd one.
            position = bisect.bisect_right(self._rooms, sharer.room)
            self._sharers.insert(position, sharer)
            self._rooms.insert(position, sharer.room)

    def remove(self, sharer: SharerT) -> None:
        """Let one go that has been added."""
        if sharer.room:
            position = self._sharers.index(sharer)
            del self._sharers[position]
            del self._rooms[position]

    def shares(self, spare: int) -> Iterator[tuple[SharerT, int]]:
        """Yield everybody's share of ``spare`` segments."""
        return zip(self._sharers, fair_shares(spare, self._rooms), strict=True)
