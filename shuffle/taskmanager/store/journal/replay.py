"""Replays the rows of several journals in one order, without any I/O.

A map output is valid if the journal of each arena with its bytes has its row. A release is valid
if any journal has it.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ....names import ShuffleKey
from ..releases import ReleasedShuffles
from ..tiers.tier import is_arena
from .adoption_progress import with_progress
from .journal import Entry
from .journal_reader import FoundJournal
from .rows import (
    LOSE_ROW,
    CommitRow,
    DropCommittedRow,
    DropRow,
    LoseRow,
    ReleaseApplicationRow,
    ReleaseAttemptsRow,
    ReleasedRow,
    ReleaseShuffleRow,
    SecureRow,
    unpack,
)

logger = logging.getLogger(__name__)

Arenas = frozenset[bytes]
"""The ids of the arenas whose journals have a row."""


class Committed(NamedTuple):
    """A committed map output that no later row has undone.

    Attributes:
        entry: Its packed row. The bytes identify a row that a rewrite moved.
        arenas: The arenas whose journals have the row.
        row: The row.
    """

    entry: Entry
    arenas: Arenas
    row: CommitRow


class Secured(NamedTuple):
    """A row of secured regions that no later row has undone; see :class:`Committed`."""

    entry: Entry
    arenas: Arenas
    row: SecureRow


@dataclass(slots=True)
class Replayed:
    """The result of a replay.

    Attributes:
        commits: Committed map outputs.
        secured: The rows of each uncommitted map output, in the order of the regions.
        broken: Number of committed map outputs whose row is missing in a journal.
        undone: Arenas whose journals have rows, but not the release that undoes them.
        released: The releases of each application.
    """

    commits: list[Committed] = field(default_factory=list)
    secured: list[list[Secured]] = field(default_factory=list)
    broken: int = 0
    undone: set[bytes] = field(default_factory=set)
    released: dict[str, ReleasedShuffles] = field(default_factory=dict)


def replay(found: Mapping[bytes, FoundJournal]) -> Replayed:
    """Replay journals.

    Args:
        found: The journals of this start, by the ids of their arenas.
    """
    state = _State()
    rows = _in_order(found)
    for entry, arenas in with_progress(rows, "replaying rows of journals", len(rows)):
        state.apply(entry, arenas)
    return state.end()


def lost_arenas(found: Iterable[FoundJournal]) -> dict[bytes, Entry]:
    """Return the last loss row of each lost arena, by the arena's id."""
    lost: dict[bytes, Entry] = {}
    for each in found:
        for entry in each.releases:
            if entry.row.startswith(LOSE_ROW):
                row = unpack(entry.row)
                if isinstance(row, LoseRow):
                    lost[row.tier_id] = max(entry, lost.get(row.tier_id, entry))
    return lost


def _in_order(found: Mapping[bytes, FoundJournal]) -> list[tuple[Entry, Arenas]]:
    """Return each row once, with the arenas whose journals have it."""
    rows: dict[Entry, Arenas] = {}
    lost = lost_arenas(found.values())
    for arena, each in found.items():
        if each.doubtful:
            logger.error(
                "%s: %d rows before the damage do not count, because their release may be lost",
                each.journal.path,
                each.doubtful,
            )
        here = dict.fromkeys(each.entries[each.doubtful :], frozenset({arena}))
        here.update(dict.fromkeys(each.releases, frozenset({arena})))
        if arena in lost:
            gone = lost[arena]
            here = {entry: arenas for entry, arenas in here.items() if entry >= gone}
        for entry in rows.keys() & here.keys():
            here[entry] |= rows[entry]
        rows.update(here)
    return sorted(rows.items())


class _State:
    def __init__(self) -> None:
        self._commits: dict[str, dict[int, dict[int, Committed]]] = defaultdict(
            lambda: defaultdict(dict)
        )
        self._secured: dict[str, dict[int, dict[int, dict[int, Secured]]]] = defaultdict(
            lambda: defaultdict(dict)
        )
        """The rows of each map attempt by their first regions, by application and shuffle."""
        self._undone: set[bytes] = set()
        self._released: defaultdict[str, ReleasedShuffles] = defaultdict(ReleasedShuffles)

    def apply(self, entry: Entry, arenas: Arenas) -> None:
        """Apply the next row."""
        try:
            row = unpack(entry.row)
        except ValueError as error:
            # Its checksum is right, so another version wrote it; the other rows are still valid.
            logger.error("row %d of run %d is not understood: %s", entry.number, entry.run, error)
            return
        match row:
            case CommitRow():
                application_id, shuffle_id = row.key
                attempts = self._commits[application_id][shuffle_id]
                before = attempts.get(row.map_attempt_id)
                if before is not None and before.entry.row == entry.row:
                    arenas |= before.arenas
                attempts[row.map_attempt_id] = Committed(entry, arenas, row)
            case SecureRow():
                self._secure(Secured(entry, arenas, row))
            case ReleaseShuffleRow(key=key):
                self._released[key.application_id].add(key.shuffle_id, None)
                shuffles = self._commits.get(key.application_id, {})
                self._undo(arenas, shuffles.pop(key.shuffle_id, {}).values())
                secured = self._secured.get(key.application_id, {}).pop(key.shuffle_id, {})
                self._undo_secured(arenas, secured.values())
            case ReleaseAttemptsRow(key=key, end=end):
                self._released[key.application_id].add(key.shuffle_id, end)
                attempts = self._commits.get(key.application_id, {}).get(key.shuffle_id, {})
                released = [each for each in attempts if each < end]
                self._undo(arenas, [attempts.pop(each) for each in released])
                parts = self._secured_of(key)
                self._undo_secured(arenas, [parts.pop(each) for each in [*parts] if each < end])
            case ReleaseApplicationRow(application_id=application_id):
                self._released.pop(application_id, None)
                for attempts in self._commits.pop(application_id, {}).values():
                    self._undo(arenas, attempts.values())
                for parts in self._secured.pop(application_id, {}).values():
                    self._undo_secured(arenas, parts.values())
            case ReleasedRow(application_id=application_id, released=released):
                self._released[application_id] = released  # it includes what was before
            case LoseRow():
                pass  # it was applied when the rows were put in order
            case DropCommittedRow(key=key):
                attempts = self._commits.get(key.application_id, {}).get(key.shuffle_id, {})
                if row.map_attempt_id in attempts:
                    self._undo(arenas, [attempts.pop(row.map_attempt_id)])
                self._drop(arenas, key, row.map_attempt_id)  # the rows that the commit replaced
            case DropRow(key=key):  # a commit stays: it is that of a copy from elsewhere
                self._drop(arenas, key, row.map_attempt_id)

    def end(self) -> Replayed:
        """Return the result."""
        result = Replayed(undone=self._undone, released=self._released)
        for shuffles in self._commits.values():
            for attempts in shuffles.values():
                for each in attempts.values():
                    if _is_whole(each):
                        result.commits.append(each)
                        if self._secured:
                            self._secured_of(each.row.key).pop(each.row.map_attempt_id, None)
                    else:
                        result.broken += 1
        for by_shuffle in self._secured.values():
            for parts in by_shuffle.values():
                for rows in parts.values():
                    first_rows = _following_on(rows)
                    if first_rows:
                        result.secured.append(first_rows)
                    if len(first_rows) < len(rows):
                        row = next(iter(rows.values())).row
                        logger.warning(
                            "map attempt %d of %s lacks regions",
                            row.map_attempt_id,
                            row.key,
                            extra=row.key.log_fields | {"map_attempt": row.map_attempt_id},
                        )
        return result

    def _secure(self, each: Secured) -> None:
        row = each.row
        application_id, shuffle_id = row.key
        parts = self._secured[application_id][shuffle_id]
        rows = parts.setdefault(row.map_attempt_id, {})
        before = rows.get(row.first_region)
        if before is not None:
            if before.entry.row == each.entry.row:
                each = each._replace(arenas=each.arenas | before.arenas)
            elif row.first_region == 0:
                rows.clear()  # the map output was started again
        rows[row.first_region] = each

    def _secured_of(self, key: ShuffleKey) -> dict[int, dict[int, Secured]]:
        """Return the secured rows of a shuffle, by map attempt."""
        return self._secured.get(key.application_id, {}).get(key.shuffle_id, {})

    def _drop(self, having: Arenas, key: ShuffleKey, map_attempt_id: int) -> None:
        """Undo the secured rows of a map attempt."""
        self._undo(having, self._secured_of(key).pop(map_attempt_id, {}).values())

    def _undo_secured(self, having: Arenas, dropped: Iterable[Mapping[int, Secured]]) -> None:
        for rows in dropped:
            self._undo(having, rows.values())

    def _undo(self, having: Arenas, rows: Iterable[Committed | Secured]) -> None:
        """Record the journals that have one of the rows but not its release."""
        for row in rows:
            self._undone |= row.arenas - having


def _is_whole(each: Committed | Secured) -> bool:
    """Whether the journals of all arenas of a row have it; for objects one is enough."""
    arenas = each.arenas
    for region in each.row.regions:  # all() would be slower, for each map output
        if region.tier_id not in arenas and is_arena(region.tier_id):
            return False
    return True


def _following_on(rows: Mapping[int, Secured]) -> list[Secured]:
    """Return the rows of the first regions of a map output, up to an incomplete row."""
    found: list[Secured] = []
    end = 0
    while (row := rows.get(end)) is not None and row.row.regions and _is_whole(row):
        found.append(row)
        end += len(row.row.regions)
    return found
