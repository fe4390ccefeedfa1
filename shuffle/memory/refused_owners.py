"""The queue of owners that were refused segments.

A refused owner asks again later. Without a queue, owners that ask at once would take everything
that is returned meanwhile. So a refusal is a place in the queue: until the owner asks again, the
segments are kept from others, except from those that would have less in all. The owner with the
fewest promised segments is served first, and an owner whose segments were reclaimed does not
overtake one that waits.

A tenant has one place, so that it cannot keep more from others by asking for many applications. A
place is lost when the owner has got as much, or was not refused again during :data:`MAX_AGE` calls
of :meth:`RefusedOwners.age`.
"""

from collections.abc import Iterator
from typing import Final

from .segment_owner import SegmentOwner

MAX_PLACES: Final = 256
"""Further owners are refused without a place: without tokens, every application is a tenant."""

MAX_AGE: Final = 2
"""Calls of :meth:`RefusedOwners.age` that a place outlives."""


class RefusedOwners:
    """Owners that were refused segments, in the order in which they first were."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: dict[SegmentOwner, _Place] = {}
        """By tenant."""

    def __iter__(self) -> Iterator[tuple[SegmentOwner, int]]:
        """Yield the owners and the segments that each was refused."""
        return ((place.owner, place.segments) for place in self._places.values())

    def add(self, owner: SegmentOwner, segments: int) -> None:
        """Queue an owner that was refused segments, or renew its place."""
        tenant = owner.parent or owner
        place = self._places.get(tenant)
        if place is None:
            if len(self._places) < MAX_PLACES:
                self._places[tenant] = _Place(owner, segments)
        elif place.owner is owner:
            place.segments, place.age = segments, 0

    def granted(self, owner: SegmentOwner, segments: int) -> None:
        """Remove an owner that got as many segments as it was refused."""
        tenant = owner.parent or owner
        place = self._places.get(tenant)
        if place is not None and place.owner is owner and segments >= place.segments:
            del self._places[tenant]

    def kept_from(self, owner: SegmentOwner, segments: int) -> int:
        """Return the segments that are kept from an owner that asks for some.

        They are kept for the owners that would have less in all than it would, or as much and were
        refused before it.
        """
        mine = owner.rank_with(segments)
        kept, is_before = 0, True
        for place in self._places.values():
            theirs = place.owner.rank_with(place.segments)
            if place.owner is owner:
                is_before = False
            elif theirs < mine or (is_before and theirs == mine):
                kept += place.segments
        return kept

    def age(self) -> None:
        """Remove the owners that were not refused again since the call before the last."""
        for tenant, place in list(self._places.items()):
            place.age += 1
            if place.age > MAX_AGE:
                del self._places[tenant]


class _Place:
    __slots__ = ("age", "owner", "segments")

    def __init__(self, owner: SegmentOwner, segments: int) -> None:
        self.owner = owner
        self.segments = segments
        self.age = 0
