"""How spare segments are shared among local pools. Pure arithmetic."""

from collections.abc import Iterator, Sequence


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
