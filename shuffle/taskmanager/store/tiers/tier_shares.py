"""Limits an application's part of the memory tier: max-min fair shares with a reserve.

Extents stay in the tier until their owner releases them, so shares can only be enforced at
allocation. There are two rules, which both depend on the size of the reserve:

- An application may always hold its *fair share*: the tier is divided among the applications that
  hold any of it, and a reserve is left in addition to the shares.
- Above its fair share it may hold a multiple of the currently free room: 7 times as much with a
  reserve of an eighth. So applications that want more divide the unused room, all up to the same
  amount, and leave room for a new application. Network switches share their memory with this
  dynamic threshold (Choudhury and Hahne 1998).

A single application gets everything except the reserve. A new application finds the reserve at
once. The others are then above their shares and get nothing until they are below: the room that
they release goes to the new one. A refused region goes to the disk.
"""

from typing import Final

PERCENT: Final = 100


def fair_share_bytes(room_bytes: int, sharers: int, reserve_percent: int) -> int:
    """Return the bytes that each application may always hold.

    Args:
        room_bytes: Size of the tier.
        sharers: Number of applications that hold or request any of it; at least 1.
        reserve_percent: Part that a single application leaves free, from 0 to 99.
    """
    mine = PERCENT - reserve_percent
    return room_bytes * mine // (sharers * mine + reserve_percent)


def may_take(
    wanted_bytes: int,
    held_bytes: int,
    free_bytes: int,
    share_bytes: int,
    reserve_percent: int,
) -> bool:
    """Return whether an application may take ``wanted_bytes`` more.

    Args:
        wanted_bytes: Requested bytes.
        held_bytes: Bytes that it holds already.
        free_bytes: Free bytes of the tier.
        share_bytes: Its fair share.
        reserve_percent: Part that a single application leaves free.
    """
    if wanted_bytes > free_bytes:
        return False
    held_bytes += wanted_bytes
    free_bytes -= wanted_bytes
    return (
        held_bytes <= share_bytes
        or held_bytes * reserve_percent <= (PERCENT - reserve_percent) * free_bytes
    )
