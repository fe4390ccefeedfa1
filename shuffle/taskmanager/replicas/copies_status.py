"""The status of copies of map outputs on other TaskManagers, and of moves there."""

from typing import Annotated

import msgspec

from ...metric import gauge


class CopiesStatus(msgspec.Struct, frozen=True, gc=False):
    """Copies of map outputs on other TaskManagers, and moves there."""

    waiting: Annotated[
        int, gauge("Map outputs that are being copied or wait for their turn.", "copies_waiting")
    ] = 0
    short: Annotated[
        int,
        gauge(
            "Map outputs with fewer copies than they shall have, which this TaskManager has to "
            "make.",
            "map_outputs_short_of_copies",
        ),
    ] = 0
    watched: int = 0
    """TaskManagers that are watched because they share map outputs with this one."""
    migrating: Annotated[bool, gauge("1 while all map outputs are being moved.")] = False
    moved: int = 0
    """Map outputs that are read elsewhere."""
    staying: Annotated[
        int,
        gauge(
            "Map outputs that no other TaskManager takes while all are being moved.",
            "map_outputs_staying",
        ),
    ] = 0
    reason: str = ""
    """Why they stay; empty if none does."""
