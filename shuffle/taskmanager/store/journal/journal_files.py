"""Appends to the journals of a store, rewrites them, and finds room for them.

If a journal has no room for a row, it is rewritten in another place (:mod:`.journal_places`), and
the row is appended there. If no place has room, the tier accepts no map outputs until one has. One
task calls all methods, one batch of rows after another; each journal has a thread for its writes.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from ..files.io_threads import IoThreads
from ..files.journal_places import require_room
from ..tiers.tier import FULL
from ..tiers.tiers import Tiers
from .journal import COMPACTION_FLOOR_BYTES, Entry, Journal
from .reserved_room import RESERVED_BYTES
from .rows import pack_commit

if TYPE_CHECKING:
    from .opened_storage import OpenedStorage

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class JournalWrite:
    """The rows of a batch for one journal.

    Attributes:
        entries: Rows of map outputs.
        releases: Rows of releases.
        failure: Why the rows of map outputs were not written; None if they were.
        release_failure: Why the rows of releases were not written; None if they were.
    """

    entries: list[Entry] = field(default_factory=list)
    releases: list[Entry] = field(default_factory=list)
    failure: OSError | None = None
    release_failure: OSError | None = None


class JournalFiles:
    """The journals of a store, by the ids of their arenas.

    Args:
        storage: Has the run, the open journals, and the index, from which journals are rewritten.
        tiers: Notified when a journal refuses a write.
        kept: Returns the releases that a rewritten journal must have, because others lack them.

    Attributes:
        journals: The journals that accept rows.
        compactions: Number of rewrites that removed dead rows.
    """

    def __init__(
        self, storage: "OpenedStorage", tiers: Tiers, kept: Callable[[], list[Entry]]
    ) -> None:
        self.journals = dict(storage.journals)
        self.compactions = 0
        self._run = storage.run
        self._number = 0
        self._index = storage.index
        self._tiers = tiers
        self._kept = kept
        self._full: set[bytes] = set()
        """Arenas whose journals have no room in any directory."""
        self._moved = {
            arena
            for arena, journal in self.journals.items()
            if journal.path.parent != tiers.directory_of(arena)
        }
        """Arenas whose journals are not beside them."""
        self._generations = {arena: journal.generation for arena, journal in self.journals.items()}
        self._compact_above_bytes = dict.fromkeys(self.journals, 0)
        self._threads = {arena: IoThreads(1, "sluice-journal") for arena in self.journals}

    @property
    def size_bytes(self) -> int:
        """Length of all journals."""
        return sum(journal.size_bytes for journal in self.journals.values())

    @property
    def lack_room(self) -> bool:
        """Whether :meth:`look_for_room` must be called again."""
        return bool(self._full or self._moved)

    @property
    def misses_rows(self) -> bool:
        """Whether a left-out journal misses new releases."""
        return any(tier.tier_id not in self.journals for tier in self._tiers.tiers())

    def entry(self, row: bytes) -> Entry:
        """Assign a row its place in the order of all rows."""
        self._number += 1
        return Entry(self._run, self._number, row)

    async def append(self, arena: bytes, write: JournalWrite) -> None:
        """Append rows to a journal, moving it if necessary; set failures in ``write``."""
        if arena not in self.journals:
            write.failure = write.release_failure = OSError("the directory is left out")
            return
        error = await self._put(arena, write.entries, write.releases)
        if error is not None and await self._move(arena, error):
            error = await self._put(arena, write.entries, write.releases)
        if error is None:
            return
        write.failure = write.release_failure = error
        if error.errno in FULL and write.entries and write.releases:
            write.release_failure = await self._put(arena, [], write.releases)
        count = len(write.entries) + (len(write.releases) if write.release_failure else 0)
        logger.error("the journal %s refused %d rows: %s", self.journals[arena].path, count, error)
        self._note_failure(arena, error)

    def leave(self, arena: bytes) -> None:
        """Close a journal, and write no rows to it until it is restored."""
        journal = self.journals.pop(arena, None)
        self._full.discard(arena)
        self._moved.discard(arena)
        if journal is not None:
            journal.close()

    async def restore(self, arena: bytes) -> bool:
        """Rewrite a left-out journal; return whether it accepts rows again."""
        self._threads.setdefault(arena, IoThreads(1, "sluice-journal"))
        self._compact_above_bytes.setdefault(arena, 0)
        return await self._write_anew(arena, self._tiers.journal_places(arena))

    async def look_for_room(self) -> None:
        """Move journals back beside their arenas, and check full ones for room."""
        for arena in sorted(self._moved):
            home = self._tiers.directory_of(arena)
            if (
                home is not None
                and await self._finds_room(arena, home)
                and await self._rewrite(arena, home) is None
            ):
                logger.warning("the journal of %s has moved back there", home)
            elif not await self._threads[arena].run(self.journals[arena].is_in_place):
                await self._write_anew(arena, self._tiers.journal_places(arena))
        for arena in sorted(self._full):
            if await self._threads[arena].run(self.journals[arena].reserve):
                self._note_room(arena)
                continue
            for place in self._tiers.journal_places(arena)[1:]:
                if await self._finds_room(arena, place) and not await self._rewrite(arena, place):
                    self._note_room(arena)
                    break

    async def compact_if_worthwhile(self) -> None:
        """Rewrite the journals that consist mostly of dead rows."""
        for arena, journal in list(self.journals.items()):
            live = self._index.live_bytes(arena)
            dead = journal.size_bytes - live
            if dead < max(live, COMPACTION_FLOOR_BYTES, self._compact_above_bytes[arena]):
                continue
            error = await self._rewrite(arena, journal.path.parent)
            if error is None:
                self.compactions += 1
                self._compact_above_bytes[arena] = 0
                continue
            self._compact_above_bytes[arena] = 2 * dead  # not again with every batch
            logger.error("the journal %s cannot be rewritten: %s", journal.path, error)
            if error.errno not in FULL and arena not in self._moved:
                self._note_failure(arena, error)

    async def close(self) -> None:
        """Wait for the threads, then close the files."""
        for threads in self._threads.values():
            await asyncio.to_thread(threads.end)
        for journal in self.journals.values():
            journal.close()

    async def _put(
        self, arena: bytes, entries: Sequence[Entry], releases: Sequence[Entry]
    ) -> OSError | None:
        """Append rows to the journal of an arena; return the error if that fails."""
        append = self.journals[arena].append
        try:
            await self._threads[arena].run(partial(append, entries, releases))
        except OSError as error:
            return error
        return None

    def _note_failure(self, arena: bytes, error: OSError) -> None:
        """Record a failed write, and leave the directory out if the error is permanent."""
        if error.errno in FULL:
            self._full.add(arena)
        if not self._tiers.note_journal_failure(arena, error):
            self.leave(arena)

    def _note_room(self, arena: bytes) -> None:
        self._full.discard(arena)
        self._tiers.note_journal_room(arena)

    async def _move(self, arena: bytes, error: OSError) -> bool:
        """Move a journal that refused rows; return whether that succeeded.

        It does not contain the rows in flight, which follow. Unless the error is a lack of room,
        the arena is left out if the journal is beside it.
        """
        here = self.journals[arena].path.parent
        if arena in self._full or (error.errno not in FULL and arena not in self._moved):
            return False
        places = [place for place in self._tiers.journal_places(arena) if place != here]
        if not await self._write_anew(arena, places):
            return False
        logger.warning(
            "the journal of %s refused rows in %s (%s): it is kept in %s%s",
            self._tiers.directory_of(arena),
            here,
            error,
            self.journals[arena].path.parent,
            " until there is room beside its arena" if arena in self._moved else "",
        )
        return True

    async def _finds_room(self, arena: bytes, place: Path) -> bool:
        """Return whether a place has room for a journal."""
        look = partial(require_room, place, self._needed_bytes(arena))
        try:
            await self._threads[arena].run(look)
        except OSError:
            return False
        return True

    def _needed_bytes(self, arena: bytes) -> int:
        """Return the room that a journal needs in a new place."""
        return self._index.live_bytes(arena) + 2 * RESERVED_BYTES

    async def _write_anew(self, arena: bytes, places: Sequence[Path]) -> bool:
        """Rewrite a journal in the first place with room; return whether one has room."""
        for place in places:
            error = await self._rewrite(arena, place)
            if error is None:
                self._note_room(arena)
                return True
            logger.error("no new journal can be written to %s: %s", place, error)
            if error.errno not in FULL and place == self._tiers.directory_of(arena):
                return False  # the directory fails, it is not just full
        return False

    async def _rewrite(self, arena: bytes, place: Path) -> OSError | None:
        """Write a journal's next generation to a place; return the error, if any."""
        old = self.journals.get(arena)
        outputs = self._index.outputs_in(arena)
        secured = self._index.secured_in(arena)
        first = self._number
        self._number += len(outputs) + len(secured)
        kept = self._kept()
        above = self._generations.get(arena, 0)
        moves = old is None or old.path.parent != place
        needed_bytes = self._needed_bytes(arena)

        def write() -> Journal:
            # Outputs are immutable, so the thread may read them while the event loop runs. Releases
            # in the meantime wait in the queue, and are appended to the new file.
            if moves:
                require_room(place, needed_bytes)
            rows = chain(map(pack_commit, outputs), secured)
            entries = (Entry(self._run, first + n, row) for n, row in enumerate(rows, 1))
            return Journal.create(place, arena, self._run, entries, kept, above)

        try:
            journal = await self._threads[arena].run(write)
        except OSError as error:
            return error
        self.journals[arena] = journal
        self._generations[arena] = journal.generation
        if place == self._tiers.directory_of(arena):
            self._moved.discard(arena)
        else:
            self._moved.add(arena)
        if old is not None:
            await self._threads[arena].run(old.remove)
        return None
