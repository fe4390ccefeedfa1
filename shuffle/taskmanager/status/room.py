"""Decides whether the storage has room for new map outputs, with a hysteresis.

A store that is full to the brim has room again with every map output that is dropped, and loses it
with the next region. A TaskManager that alternates between ready and not ready
is of no use to a load balancer. So it stays full until there is room for several regions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ....transport.settings import approximate_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..store.store_status import TierStatus

REGION_BYTES: Final = 2 * 1024 * 1024
"""The largest region that a Spark task sends by default (``spark.sluice.writer.regionSize``). With
less than that in one piece a tier counts as full."""

ROOM_BYTES: Final = 8 * REGION_BYTES
"""With this many bytes in one piece a full store has room again."""

REGIONS_OF_A_SMALL_TIER: Final = 16
"""A tier smaller than this many regions is full when less than a sixteenth of it is free."""


class StorageRoom:
    """Remembers whether the storage of one TaskManager is full."""

    def __init__(self) -> None:
        self._full = False

    def none_because(self, tiers: Sequence[TierStatus]) -> str | None:
        """Check the tiers; return why none has room for a region, None if one has."""
        taking = [tier for tier in tiers if tier.healthy]
        size = max((_size(tier) for tier in taking), default=0)
        if self._full:
            needed = min(ROOM_BYTES, size // 2)
        else:
            needed = min(REGION_BYTES, size // REGIONS_OF_A_SMALL_TIER)
        # A tier of no size, such as a disk with a quota of 0, has no room however little is needed.
        self._full = not any(tier.largest_free_bytes >= max(needed, 1) for tier in taking)
        if not self._full:
            return None
        pieces = ", ".join(f"{tier.tier} {tier.directory} {_state(tier)}" for tier in tiers)
        return f"no storage has room for a region in one piece: {pieces}"


def _state(tier: TierStatus) -> str:
    """Return why a tier has no room for a region."""
    if not tier.healthy:
        return "is out of use"
    if tier.reason:
        return f"takes no region: {tier.reason}"
    return f"has {approximate_size(tier.largest_free_bytes)}"


def _size(tier: TierStatus) -> int:
    """Return the capacity of a tier; without a limit of its own it counts as a large one."""
    return 2 * ROOM_BYTES if tier.capacity_bytes is None else tier.capacity_bytes
