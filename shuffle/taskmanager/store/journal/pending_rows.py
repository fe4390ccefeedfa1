"""Rows that wait to be written to the journals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....names import MapAttemptKey
from ..errors import StorageError
from ..stored_outputs import Region
from ..tiers.tier import Extent
from .journal import Entry

if TYPE_CHECKING:
    from asyncio import Future


@dataclass(slots=True, eq=False)
class PendingRow:
    """A commit, or regions secured before it, to be written to the journals.

    Attributes:
        attempt: The map attempt.
        regions: The regions of the row.
        row: The packed row.
        arenas: Arenas whose journals get it.
        needs_all: Whether all of these journals must have it, or any.
        publish: Makes the row visible.
        done: Resolved when the row is visible, or failed.
        refusal: Set by a release in the meantime: the row must not become visible.
    """

    attempt: MapAttemptKey
    regions: Sequence[Region]
    row: bytes
    arenas: set[bytes]
    needs_all: bool
    publish: Callable[[], None]
    done: "Future[None]"
    refusal: StorageError | None = None


@dataclass(slots=True, eq=False)
class PendingRelease:
    """A release to be written to all journals.

    Attributes:
        row: The packed row.
        arenas: Arenas whose journals do not have it yet.
        extents: Extents to release when the journal beside them has the row.
        done: Resolved when a restart will not undo the release, or failed.
        entry: The row in the order of all rows; None before the first write.
    """

    row: bytes
    arenas: set[bytes]
    extents: list[Extent]
    done: "Future[None]"
    entry: Entry | None = None
