"""Limits a tenant's part of the memory tier: max-min fair shares with a reserve.

Extents stay in the tier until their owner releases them, so shares can only be enforced at
allocation. There are two rules, which both depend on the size of the reserve:

- A tenant may always hold its *fair share*: the tier is divided among the tenants that hold any of
  it, and a reserve is left in addition to the shares.
- Above its fair share it may hold a multiple of the currently free room: 7 times as much with a
  reserve of an eighth. So tenants that want more divide the unused room, all up to the same amount,
  and leave room for a new tenant. Network switches share their memory with this dynamic threshold
  (Choudhury and Hahne 1998).

A single tenant gets everything except the reserve. A new tenant finds the reserve at once. The
others are then above their shares and get nothing until they are below: the room that they release
goes to the new one. A refused region goes to the disk.

The applications of a subject share the room of their tenant by the same rules: what it holds and
may still take is their tier.
"""

from typing import Final

PERCENT: Final = 100


def fair_share_bytes(room_bytes: int, sharers: int, reserve_percent: int) -> int:
    """Return the bytes that each tenant may always hold.

    Args:
        room_bytes: Size of the tier.
        sharers: Number of tenants that hold or request any of it; at least 1.
        reserve_percent: Part that a single tenant leaves free, from 0 to 99.
    """
    mine = PERCENT - reserve_percent
    return room_bytes * mine // (sharers * mine + reserve_percent)


def allowance(held_bytes: int, free_bytes: int, share_bytes: int, reserve_percent: int) -> int:
    """Return how many bytes a tenant may take more, 0 or more.

    Args:
        held_bytes: Bytes that it holds already.
        free_bytes: Free bytes of the tier.
        share_bytes: Its fair share.
        reserve_percent: Part that a single tenant leaves free.
    """
    up_to_share = share_bytes - held_bytes
    # The most of which held * reserve <= (100 - reserve) * free holds afterwards.
    of_free = ((PERCENT - reserve_percent) * free_bytes - reserve_percent * held_bytes) // PERCENT
    return max(0, min(free_bytes, max(up_to_share, of_free)))
