"""Rows that wait to be written to the journals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
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
        entry: The row in the order of all rows.
        arenas: Arenas whose journals do not have it yet.
        needs_all: Whether all of these journals must have it, or any.
        publish: Makes the row visible.
        done: Resolved when the row is visible, or failed.
        refusal: Set by a release in the meantime: the row must not become visible.
        is_over: Whether the row is visible or has failed; a journal may still be writing it.
        has_failed: Whether it has failed.
        queued_at: Time of its queuing, as of ``time.monotonic()``.
    """

    attempt: MapAttemptKey
    regions: Sequence[Region]
    entry: Entry
    arenas: set[bytes]
    needs_all: bool
    publish: Callable[[], None]
    done: "Future[None]"
    refusal: StorageError | None = None
    is_over: bool = False
    has_failed: bool = False
    queued_at: float = field(default_factory=monotonic)


@dataclass(slots=True, eq=False)
class PendingRelease:
    """A release to be written to all journals.

    Attributes:
        entry: The row in the order of all rows.
        arenas: Arenas whose journals do not have it yet.
        extents: Extents to release when the journal beside them has the row.
        done: Resolved when a restart will not undo the release, or failed.
    """

    entry: Entry
    arenas: set[bytes]
    extents: list[Extent]
    done: "Future[None]"
