"""The status of copies of map outputs on other TaskManagers, and of moves there."""

from typing import Annotated

import msgspec

from ...metric import gauge


class CopiesStatus(msgspec.Struct, frozen=True, gc=False):
    """Copies of map outputs on other TaskManagers, and moves there."""

    waiting: Annotated[
        int, gauge("Map outputs being copied or queued for it.", "copies_waiting")
    ] = 0
    short: Annotated[
        int,
        gauge(
            "Map outputs that lack copies which this TaskManager has to make.",
            "map_outputs_short_of_copies",
        ),
    ] = 0
    watched: int = 0
    """TaskManagers that are watched because they share map outputs with this one."""
    migrating: Annotated[bool, gauge("1 during a migration.")] = False
    moved: int = 0
    """Map outputs that are read elsewhere."""
    staying: Annotated[
        int,
        gauge(
            "Map outputs that no other TaskManager accepts in a migration.",
            "map_outputs_staying",
        ),
    ] = 0
    reason: str = ""
    """Why they stay; empty if none does."""
    short_of_remote: Annotated[
        int,
        gauge(
            "Map outputs that lack their copy in the remote tier, which this TaskManager has to "
            "make.",
            "map_outputs_short_of_remote_copy",
        ),
    ] = 0
    unreachable: Annotated[
        int,
        gauge(
            "TaskManagers that this one watches and cannot reach.",
            "taskmanagers_unreachable",
            combine="max",
        ),
    ] = 0
