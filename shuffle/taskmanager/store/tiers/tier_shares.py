"""Whether an application may take room of the memory tier: max-min fair shares with a reserve.

What lies in the tier stays until its owner gives it up, so that shares can only be kept when room
is given out. Two rules do it, and both are in proportion to a reserve:

- An application may always hold its *fair share*: the tier is divided among the applications that
  hold any of it, so that a reserve is left beside the shares.
- Beyond its fair share it may hold a multiple of what is free then: 7 times as much with a reserve
  of an eighth. So those that want more divide what others leave, all up to the same amount, and
  stop with room left for one that comes anew. This is the dynamic threshold that switches share
  their memory with (Choudhury and Hahne 1998).

A lone application takes all but the reserve. One that comes anew finds the reserve at once. The
others are then above their shares and get nothing until they are below: what they give up goes to
the newcomer. A region that is refused goes to the disk.
"""

from typing import Final

PERCENT: Final = 100


def fair_share_bytes(room_bytes: int, sharers: int, reserve_percent: int) -> int:
    """Return what each application may hold in any case.

    Args:
        room_bytes: Size of the tier.
        sharers: Applications that hold any of it, or ask for it; at least 1.
        reserve_percent: What a lone application leaves free, from 0 to 99.
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
        wanted_bytes: Room that it asks for.
        held_bytes: What it holds already.
        free_bytes: What nobody holds.
        share_bytes: Its fair share.
        reserve_percent: What a lone application leaves free.
    """
    if wanted_bytes > free_bytes:
        return False
    held_bytes += wanted_bytes
    free_bytes -= wanted_bytes
    return (
        held_bytes <= share_bytes
        or held_bytes * reserve_percent <= (PERCENT - reserve_percent) * free_bytes
    )
