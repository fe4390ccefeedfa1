"""The part of an application in the network memory, all its pools together.

Network memory is shared in steps. Owners without a parent come first: each has what was promised to
its pools and requests, and of the spare segments so many that the least totals rise first, up to
the owner's limit. An owner may be a tenant; its applications share what it has in the same way.
Then the pools of an application share what that has.

Pools without an owner of their own belong to the TaskManager, which has no limit.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Generic

from .distribution import SharerT, Sharing


class SegmentOwner:
    """One owner of local pools and exclusive segments.

    Args:
        name: For logs.
        parent: The tenant whose applications share what it has, this one among them.
    """

    def __init__(self, name: str, parent: "SegmentOwner | None" = None) -> None:
        self.name = name
        self.parent = parent
        self._promised_segments = 0

    @property
    def promised_segments(self) -> int:
        """Segments that its pools require, and its exclusive ones."""
        return self._promised_segments

    def rank_with(self, segments: int = 0) -> tuple[int, int]:
        """Return the sort key of owners: promises of the tenant, then its own, and ``segments``."""
        own = self.promised_segments + segments
        return (own if self.parent is None else self.parent.promised_segments + segments), own

    @property
    def limit_segments(self) -> int | None:
        """The most that it may have in all; None: what there is, or its parent may have."""
        return None

    def may_promise(self, segments: int) -> bool:
        """Return whether ``segments`` more may be promised to it and to its parent."""
        limit, parent = self.limit_segments, self.parent
        within = limit is None or self.promised_segments + segments <= limit
        return within and (parent is None or parent.may_promise(segments))

    def check(self, segments: int) -> None:
        """Check that ``segments`` more may be promised to one of its pools.

        Raises:
            SluiceError: They would be beyond its limit.
        """

    def promise(self, segments: int) -> None:
        """Count segments that are promised to it, or no longer if negative."""
        self._promised_segments += segments
        if self.parent is not None:
            self.parent.promise(segments)


class OwnerShare(Generic[SharerT]):
    """The part of one owner in one network pool.

    Args:
        owner: The owner.
        network_pool: The network pool.
        parent: The part of the owner's parent.

    Attributes:
        owner: The owner.
        network_pool: The network pool.
        tenant: The part of its tenant; itself if the owner has no parent.
        parts: The parts of its applications, if it is the part of a tenant.
        sharing: Its pools that share spare segments.
        local_pools: Number of all its local pools.
        held_segments: Segments that its pools have drawn, destroyed ones too, and its exclusive
            ones. A pool whose limit has fallen may have more than its share, but all pools together
            never draw beyond the owner's limit.
        waiting_requests: Number of its requests for exclusive segments that wait.
        starving: The tenant's pools that would draw a segment if their owner were not at its limit.
    """

    __slots__ = (
        "held_segments",
        "local_pools",
        "network_pool",
        "owner",
        "parent",
        "parts",
        "sharing",
        "starving",
        "tenant",
        "waiting_requests",
    )

    def __init__(
        self,
        owner: SegmentOwner,
        network_pool: object,
        parent: "OwnerShare[SharerT] | None" = None,
    ) -> None:
        self.owner: Final = owner
        self.network_pool: Final = network_pool
        self.parent: Final = parent
        self.tenant: Final[OwnerShare[SharerT]] = self if parent is None else parent.tenant
        self.parts: Final[dict[OwnerShare[SharerT], None]] = {}
        if parent is not None:
            parent.parts[self] = None
        self.sharing: Final[Sharing[SharerT]] = Sharing()
        self.local_pools = 0
        self.held_segments = 0
        self.waiting_requests = 0
        self.starving: dict[SharerT, None] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left of it."""
        return (
            not self.parts and self.held_segments == self.local_pools == self.waiting_requests == 0
        )

    @property
    def is_limited(self) -> bool:
        """Whether the owner or its parent has a limit."""
        parent = self.parent
        return self.owner.limit_segments is not None or (parent is not None and parent.is_limited)

    def may_hold(self, segments: int) -> bool:
        """Return whether the owner and its parent may have ``segments`` more."""
        limit, parent = self.owner.limit_segments, self.parent
        within = limit is None or self.held_segments + segments <= limit
        return within and (parent is None or parent.may_hold(segments))

    @property
    def room(self) -> int:
        """Spare segments that its pools or parts can take, within the owner's limit."""
        limit = self.owner.limit_segments
        room = self.sharing.total_room + sum(each.room for each in self.parts)
        return room if limit is None else min(room, max(0, limit - self.owner.promised_segments))


def owners_shares(spare: int, owners: Sequence[OwnerShare[SharerT]]) -> list[int]:
    """Share spare segments among owners so that the least totals rise first.

    The total of an owner is what is promised to it and its share.

    Args:
        spare: Segments to share, 0 or more.
        owners: Owners; ``room`` is the most that each can take.

    Returns:
        The share of each. Their sum is as much of ``spare`` as there is room for. An owner with a
        share has at most one segment more than one that has room left.
    """
    rooms = [each.room for each in owners]
    if sum(rooms) <= spare:
        return rooms
    totals = [each.owner.promised_segments for each in owners]
    shares = [0] * len(owners)
    rising = [number for number, room in enumerate(rooms) if room]
    while spare:
        level = min(totals[number] for number in rising)
        lowest = [number for number in rising if totals[number] == level]
        higher = [totals[number] - level for number in rising if totals[number] > level]
        left = [rooms[number] - shares[number] for number in lowest]
        step = min(spare // len(lowest), *left, *higher)
        if step == 0:  # fewer are left than owners at this level: the first of them get one each
            lowest, step = lowest[:spare], 1
        for number in lowest:
            shares[number] += step
            totals[number] += step
        spare -= step * len(lowest)
        rising = [number for number in rising if shares[number] < rooms[number]]
    return shares


class OwnerShares(Generic[SharerT]):
    """The parts of all owners that have something in one network pool.

    Args:
        network_pool: The network pool.
    """

    def __init__(self, network_pool: object) -> None:
        self._network_pool = network_pool
        self._by_owner: dict[SegmentOwner, OwnerShare[SharerT]] = {}

    def of(self, owner: SegmentOwner) -> OwnerShare[SharerT]:
        """Return the part of an owner."""
        share = self._by_owner.get(owner)
        if share is None:
            parent = None if owner.parent is None else self.of(owner.parent)
            share = self._by_owner[owner] = OwnerShare(owner, self._network_pool, parent)
        return share

    def all(self) -> list[OwnerShare[SharerT]]:
        """Return the parts of all owners."""
        return list(self._by_owner.values())

    def drop_empty(self, share: OwnerShare[SharerT]) -> None:
        """Forget a part of which nothing is left."""
        if share.is_empty and share.owner in self._by_owner:
            del self._by_owner[share.owner]
            if share.parent is not None:
                del share.parent.parts[share]
                self.drop_empty(share.parent)

    def distribute(self, spare: int) -> Iterator[tuple[SharerT, int]]:
        """Yield the pools and their shares of the spare segments; unchanged ones may be left out.

        The caller must read the iterator to its end.
        """
        yield from _distribute(
            spare, [each for each in self._by_owner.values() if each.parent is None]
        )


def _distribute(spare: int, shares: Sequence[OwnerShare[SharerT]]) -> Iterator[tuple[SharerT, int]]:
    for share, extra in zip(shares, owners_shares(spare, shares), strict=True):
        if share.parts:
            yield from _distribute(extra, list(share.parts))
        else:
            yield from share.sharing.shares(extra)
