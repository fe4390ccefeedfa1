"""Replays the rows of several journals in their one order, without any I/O.

A map output counts if the journal of each arena in which it lies has its row. What a release names
is gone, whichever journal the release was found in.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ...names import MapAttemptKey
from .journal import Entry, FoundJournal
from .rows import (
    LOSE_ROW,
    CommitRow,
    DropRow,
    LoseRow,
    ReleaseApplicationRow,
    ReleaseAttemptsRow,
    ReleaseShuffleRow,
    SecureRow,
    unpack,
)
from .tier import is_arena

logger = logging.getLogger(__name__)

Order = tuple[int, int]
"""Run and number: the place of a row in the order of all rows."""


class Copies(NamedTuple):
    """A row, and where it was found.

    Attributes:
        order: Its place in the order of all rows.
        data: Its bytes, by which it is known when a rewrite has given it another place.
        arenas: Those whose journals have it.
    """

    order: Order
    data: bytes
    arenas: frozenset[bytes]


class Committed(NamedTuple):
    """A committed map output that no later row has undone."""

    copies: Copies
    row: CommitRow


class Secured(NamedTuple):
    """A row of secured regions that no later row has undone."""

    copies: Copies
    row: SecureRow


@dataclass(slots=True)
class Replayed:
    """What the rows say is there.

    Attributes:
        commits: Committed map outputs.
        secured: The rows of map outputs that are not committed, each with the regions in order.
        broken: Committed map outputs of which not all journals have the row.
        undone: Arenas with rows that are undone by a release that their journals do not have.
    """

    commits: list[Committed] = field(default_factory=list)
    secured: list[list[Secured]] = field(default_factory=list)
    broken: int = 0
    undone: set[bytes] = field(default_factory=set)


def replay(found: Mapping[bytes, FoundJournal]) -> Replayed:
    """Replay journals.

    Args:
        found: The journals of this start, by the ids of their arenas.
    """
    state = _State()
    for copies in _in_order(found):
        state.apply(copies)
    return state.end()


def lost_arenas(found: Iterable[FoundJournal]) -> dict[bytes, Entry]:
    """Return the last row that says that an arena is gone, by its id."""
    lost: dict[bytes, Entry] = {}
    for each in found:
        for entry in each.releases:
            if entry.row.startswith(LOSE_ROW):
                row = unpack(entry.row)
                if isinstance(row, LoseRow):
                    lost[row.tier_id] = max(entry, lost.get(row.tier_id, entry))
    return lost


def _in_order(found: Mapping[bytes, FoundJournal]) -> list[Copies]:
    rows: dict[Order, Copies] = {}
    lost = lost_arenas(found.values())
    for arena, each in found.items():
        if each.doubtful:
            logger.error(
                "%s: %d rows before the damage do not count, because their release may be lost",
                each.journal.path,
                each.doubtful,
            )
        here = frozenset({arena})
        gone = lost[arena][:2] if arena in lost else (0, 0)
        for entries in (each.entries[each.doubtful :], each.releases):
            for run, number, data in entries:
                order = (run, number)
                if order < gone:
                    continue
                before = rows.get(order)
                arenas = here if before is None else before.arenas | here
                rows[order] = Copies(order, data, arenas)
    return sorted(rows.values())


class _State:
    def __init__(self) -> None:
        self._commits: dict[str, dict[int, dict[int, Committed]]] = {}
        self._secured: dict[MapAttemptKey, dict[int, Secured]] = {}
        self._undone: set[bytes] = set()

    def apply(self, copies: Copies) -> None:
        """Take the next row."""
        try:
            row = unpack(copies.data)
        except ValueError as error:
            # Its checksum is right, so another version wrote it; the other rows still count.
            logger.error("row %d of run %d is not understood: %s", *copies.order[::-1], error)
            return
        match row:
            case CommitRow(key=key):
                shuffles = self._commits.setdefault(key.application_id, {})
                attempts = shuffles.setdefault(key.shuffle_id, {})
                before = attempts.get(row.map_attempt_id)
                attempts[row.map_attempt_id] = Committed(_joined(before, copies), row)
            case SecureRow():
                self._secure(copies, row)
            case ReleaseShuffleRow(key=key):
                shuffles = self._commits.get(key.application_id, {})
                self._undo(copies, shuffles.pop(key.shuffle_id, {}).values())
                self._drop(copies, lambda attempt: attempt.shuffle == key)
            case ReleaseAttemptsRow(key=key, end=end):
                attempts = self._commits.get(key.application_id, {}).get(key.shuffle_id, {})
                released = [each for each in attempts if each < end]
                self._undo(copies, [attempts.pop(each) for each in released])
                self._drop(copies, lambda each: each.shuffle == key and each.map_attempt_id < end)
            case ReleaseApplicationRow(application_id=application_id):
                for attempts in self._commits.pop(application_id, {}).values():
                    self._undo(copies, attempts.values())
                self._drop(copies, lambda each: each.shuffle.application_id == application_id)
            case LoseRow():
                pass  # it was heeded when the rows were put in order
            case DropRow():
                dropped = MapAttemptKey(row.key, row.map_attempt_id)
                self._drop(copies, lambda attempt: attempt == dropped)

    def end(self) -> Replayed:
        """Return what is left."""
        result = Replayed(undone=self._undone)
        committed: set[MapAttemptKey] = set()
        for shuffles in self._commits.values():
            for attempts in shuffles.values():
                for each in attempts.values():
                    if _is_whole(each):
                        result.commits.append(each)
                        if self._secured:
                            committed.add(MapAttemptKey(each.row.key, each.row.map_attempt_id))
                    else:
                        result.broken += 1
        for attempt, rows in self._secured.items():
            if attempt not in committed:
                first_rows = _following_on(rows)
                if first_rows:
                    result.secured.append(first_rows)
                if len(first_rows) < len(rows):
                    logger.warning("map attempt %d of %s lacks regions", *attempt[::-1])
        return result

    def _secure(self, copies: Copies, row: SecureRow) -> None:
        rows = self._secured.setdefault(MapAttemptKey(row.key, row.map_attempt_id), {})
        first = rows.get(0)
        if row.first_region == 0 and first is not None and first.copies.data != copies.data:
            rows.clear()  # the map output was begun anew
        rows[row.first_region] = Secured(_joined(rows.get(row.first_region), copies), row)

    def _drop(self, release: Copies, dropped: Callable[[MapAttemptKey], bool]) -> None:
        if self._secured:
            for attempt in [attempt for attempt in self._secured if dropped(attempt)]:
                self._undo(release, self._secured.pop(attempt).values())

    def _undo(self, release: Copies, rows: Iterable[Committed | Secured]) -> None:
        for row in rows:
            if not row.copies.arenas <= release.arenas:
                self._undone |= row.copies.arenas - release.arenas


def _joined(before: Committed | Secured | None, copies: Copies) -> Copies:
    """Return a row with the arenas of its other copies; another row takes its place."""
    if before is None or before.copies.data != copies.data:
        return copies
    return copies._replace(arenas=before.copies.arenas | copies.arenas)


def _is_whole(each: Committed | Secured) -> bool:
    """Whether the journals of all arenas of a row have it; an object needs any of them."""
    arenas = each.copies.arenas
    return all(
        region.tier_id in arenas or not is_arena(region.tier_id) for region in each.row.regions
    )


def _following_on(rows: Mapping[int, Secured]) -> list[Secured]:
    """Return the rows of the first regions of a map output, up to one that is not whole."""
    found: list[Secured] = []
    end = 0
    while (row := rows.get(end)) is not None and row.row.regions and _is_whole(row):
        found.append(row)
        end += len(row.row.regions)
    return found
