"""Appends to the journals of a store, rewrites them, and finds room for them.

If a journal has no room for a row, it is rewritten in another place (:mod:`.journal_places`), and
the row is appended there. If no place has room, the tier accepts no map outputs until one has. One
task for each journal calls the methods, one batch of rows after another. The thread of the
directory in which a journal lies makes its calls; if that directory hangs, they fail.
"""

import errno
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from .....transport.fair_queue import OWN_FLOW
from ..errors import DirectoryHangs
from ..files.io_threads import IoThreads, Used
from ..files.journal_places import directory_of, require_room
from ..tiers.tier import FULL
from ..tiers.tiers import Tiers
from .arena_sync import ArenaSync
from .journal import COMPACTION_FLOOR_BYTES, Entry, Journal
from .reserved_room import RESERVED_BYTES
from .rows import pack_commit
from .written_journal import WrittenJournal

if TYPE_CHECKING:
    from .opened_storage import OpenedStorage

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(slots=True)
class JournalWrite:
    """The rows of a batch for one journal.

    Attributes:
        entries: Rows of map outputs.
        releases: Rows of releases.
        failure: Why the rows of map outputs were not written; None if they were.
        release_failure: Why the rows of releases were not written; None if they were.
        uses: What the rows refer to; retained if the disk hangs while they are written.
    """

    entries: list[Entry] = field(default_factory=list)
    releases: list[Entry] = field(default_factory=list)
    failure: OSError | None = None
    release_failure: OSError | None = None
    uses: Sequence[Used] = ()


class JournalFiles:
    """The journals of a store, by the ids of their arenas.

    Args:
        storage: Has the run, the open journals, and the index, from which journals are rewritten.
        tiers: Notified when a journal refuses a write.
        kept: Returns the releases that a rewritten journal must have, because others lack them.
        waiting: Returns the rows of an arena's journal that wait for other journals.

    Attributes:
        journals: The journals that accept rows.
        compactions: Number of rewrites that removed dead rows.
        syncs: Syncs what the rows name.
    """

    def __init__(
        self,
        storage: "OpenedStorage",
        tiers: Tiers,
        kept: Callable[[], list[Entry]],
        waiting: Callable[[bytes], list[Entry]],
    ) -> None:
        self.journals = dict(storage.journals)
        self.compactions = 0
        self._run_number = storage.run
        self._number = 0
        self._index = storage.index
        self._tiers = tiers
        self._kept = kept
        self._waiting = waiting
        self._full: set[bytes] = set()
        """Arenas whose journals have no room in any directory."""
        self._moved = {
            arena
            for arena, journal in self.journals.items()
            if journal.path.parent != tiers.directory_of(arena)
        }
        """Arenas whose journals are not beside them."""
        self._replaced = dict(storage.replaced)
        """Closed journals of arenas with none in use; removed after the next one is written."""
        self._generations = dict(storage.generations)
        for arena, journal in self.journals.items():
            self._generations[arena] = max(journal.generation, self._generations.get(arena, 0))
        """The latest generations, including those that were given up and may still appear."""
        self._renumbered: set[bytes] = set()
        """Arenas whose journals are being renamed."""
        self._compact_above_bytes = dict.fromkeys(self.journals, 0)
        self._threads = storage.threads
        self._hanging = storage.hanging
        self.syncs = ArenaSync(storage.sync, tiers, self._run)

    @property
    def size_bytes(self) -> int:
        """Length of all journals."""
        return sum(journal.size_bytes for journal in self.journals.values())

    def lacks_room(self, arena: bytes) -> bool:
        """Whether :meth:`look_for_room` must be called again."""
        return arena in self._full or arena in self._moved

    @property
    def misses_rows(self) -> bool:
        """Whether a left-out journal misses new releases, or a directory that does not answer."""
        return bool(self._hanging) or any(
            tier.tier_id not in self.journals for tier in self._tiers.tiers()
        )

    def entry(self, row: bytes) -> Entry:
        """Assign a row its place in the order of all rows."""
        self._number += 1
        return Entry(self._run_number, self._number, row)

    def is_renumbered(self, arena: bytes) -> bool:
        """Whether a thread is renaming the journal of an arena, so that its path is not known."""
        return arena in self._renumbered

    async def append(self, arena: bytes, write: JournalWrite) -> None:
        """Append rows to a journal, moving it if necessary; set failures in ``write``.

        Cancellation: waits until the thread has ended, or is abandoned.
        """
        if arena not in self.journals:
            write.failure = write.release_failure = OSError("the directory is left out")
            return
        error = await self._append(arena, write)
        if error is None:
            if write.entries:
                self.syncs.appended(arena)
            return
        write.failure = write.release_failure = error
        if error.errno in FULL and write.entries and write.releases:
            write.release_failure = await self._put(arena, [], write.releases)
        count = len(write.entries) + (len(write.releases) if write.release_failure else 0)
        logger.error("the journal %s refused %d rows: %s", self.journals[arena].path, count, error)
        self._note_failure(arena, error)

    async def _append(self, arena: bytes, write: JournalWrite) -> OSError | None:
        """Sync the bytes that the rows name if they must be, then append the rows."""
        error = await self.syncs.before_rows(arena) if write.entries else None
        if error is not None:
            return error
        error = await self._put(arena, write.entries, write.releases, write.uses)
        if error is not None and await self._move(arena, error):
            error = await self._put(arena, write.entries, write.releases, write.uses)
        return error

    async def sync(self, arena: bytes) -> None:
        """Sync the arena and its journal; leave the directory out if that fails.

        Cancellation: waits until the thread has ended, or is abandoned.
        """
        journal = self.journals.get(arena)
        error = None if journal is None else await self.syncs.sync(arena, journal)
        if journal is not None and error is not None:
            logger.error("the journal %s cannot be synced: %s", journal.path, error)
            self._note_failure(arena, error)

    def leave(self, arena: bytes) -> None:
        """Close a journal, and write no rows to it until it is restored."""
        journal = self.journals.pop(arena, None)
        self._full.discard(arena)
        self._moved.discard(arena)
        self.syncs.forget(arena)
        if journal is not None:
            self._close(journal)
            self._replaced[arena] = journal

    def _close(self, journal: Journal) -> None:
        """Close a journal when no thread uses it: another file may get the descriptor then."""
        self._threads_of(journal.path.parent).when_idle(journal.close)

    async def restore(self, arena: bytes) -> bool:
        """Rewrite a left-out journal; return whether it accepts rows again.

        Cancellation: waits until the thread has ended, or is abandoned.
        """
        self._compact_above_bytes.setdefault(arena, 0)
        return await self._write_anew(arena, self._tiers.journal_places(arena))

    async def look_for_room(self, arena: bytes) -> None:
        """Move a journal back beside its arena, or check a full one for room.

        Cancellation: waits until the thread has ended, or is abandoned.
        """
        if arena in self._moved:
            home = self._tiers.directory_of(arena)
            if (
                home is not None
                and await self._finds_room(arena, home)
                and await self._rewrite(arena, home) is None
            ):
                logger.warning("the journal of %s has moved back there", home)
            elif not await self._answers(arena, Journal.is_in_place):
                await self._write_anew(arena, self._tiers.journal_places(arena))
        if arena in self._full:
            if await self._answers(arena, Journal.reserve):
                self._note_room(arena)
                return
            for place in self._tiers.journal_places(arena)[1:]:
                if await self._finds_room(arena, place) and not await self._rewrite(arena, place):
                    self._note_room(arena)
                    break

    async def compact_if_worthwhile(self, arena: bytes) -> None:
        """Rewrite a journal that consists mostly of dead rows.

        Cancellation: waits until the thread has ended, or is abandoned.
        """
        journal = self.journals.get(arena)
        if journal is None:
            return
        live = self._index.live_bytes(arena)
        dead = journal.size_bytes - live
        if dead < max(live, COMPACTION_FLOOR_BYTES, self._compact_above_bytes[arena]):
            return
        error = await self._rewrite(arena, journal.path.parent)
        if error is None:
            self.compactions += 1
            # What the index does not count, such as missed releases, must not cause the next one.
            self._compact_above_bytes[arena] = 2 * max(0, self.journals[arena].size_bytes - live)
            return
        self._compact_above_bytes[arena] = 2 * dead  # not again with every batch
        logger.error("the journal %s cannot be rewritten: %s", journal.path, error)
        if error.errno not in FULL and arena not in self._moved:
            self._note_failure(arena, error)

    def close(self) -> None:
        """Close the files, each when no thread uses it."""
        for journal in self.journals.values():
            self._close(journal)

    # ---- calls in threads ------------------------------------------------------------------------

    def _threads_of(self, place: Path) -> IoThreads:
        """Return the thread of the directory in which a place for journals lies."""
        return self._threads.of(directory_of(place)).journal

    async def _run(
        self, place: Path, call: Callable[[], T], size_bytes: int = 0, uses: Sequence[Used] = ()
    ) -> T:
        """Run a call in the thread of a place.

        Raises:
            OSError: The call failed, or the directory hangs.
        """
        try:
            return await self._threads_of(place).run_for(OWN_FLOW, size_bytes, call, uses)
        except DirectoryHangs as error:
            raise OSError(errno.ETIMEDOUT, error.reason) from error

    async def _answers(self, arena: bytes, question: Callable[[Journal], bool]) -> bool:
        """Return the answer about a journal; False if its directory hangs."""
        journal = self.journals[arena]
        try:
            return await self._run(journal.path.parent, partial(question, journal))
        except OSError:
            return False

    async def _put(
        self,
        arena: bytes,
        entries: Sequence[Entry],
        releases: Sequence[Entry],
        uses: Sequence[Used] = (),
    ) -> OSError | None:
        """Append rows to the journal of an arena; return the error if that fails."""
        journal, latest = self.journals[arena], self._generations[arena]
        size_bytes = sum(len(entry.row) for entry in (*entries, *releases))
        append = partial(journal.append, entries, releases)
        try:
            if journal.generation < latest:
                await self._renumber(arena, journal, latest + 1)
            await self._run(journal.path.parent, append, size_bytes, uses)
        except OSError as error:
            return error
        return None

    async def _renumber(self, arena: bytes, journal: Journal, generation: int) -> None:
        """Make a journal the latest before it gets rows that a rewrite lacks.

        The rewrite was given up. But its thread may still put it into place, even after this
        process was killed, and the next start would read that generation only.

        Raises:
            OSError: It cannot be renamed, or its directory hangs.
        """
        self._generations[arena] = generation
        self._renumbered.add(arena)
        try:
            await self._run(journal.path.parent, partial(journal.renumber, generation))
        finally:
            self._renumbered.discard(arena)

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
            await self._run(place, look)
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
        packed = [*self._index.secured_in(arena), *self._index.released_rows()]
        first = self._number
        self._number += len(outputs) + len(packed)
        kept, waiting = self._kept(), self._waiting(arena)
        above, run = self._generations.get(arena, 0), self._run_number
        moves = old is None or old.path.parent != place
        needed_bytes = self._needed_bytes(arena)
        mode = self.syncs.mode(arena)
        written = WrittenJournal()

        def write() -> Journal:
            # Outputs are immutable, so the thread may read them while the event loop runs. Releases
            # in the meantime wait in the queue, and are appended to the new file.
            if moves:
                require_room(place, needed_bytes)
            rows = chain(map(pack_commit, outputs), packed)
            new = (Entry(run, first + n, row) for n, row in enumerate(rows, 1))
            entries = chain(waiting, new)
            create = partial(Journal.create, place, arena, run, entries, kept, above)
            return written.keep(create(written.is_wanted, mode))

        # A write that is given up may still complete: its generation is not used again.
        self._generations[arena] = above + 1
        try:
            journal = await self._run(place, write, needed_bytes, (written,))
        except OSError as error:
            if error.errno in FULL:  # it was not given up, and is removed
                self._generations[arena] = above
            return error
        self.journals[arena] = journal
        self._generations[arena] = journal.generation
        if place == self._tiers.directory_of(arena):
            self._moved.discard(arena)
        else:
            self._moved.add(arena)
        old = self._replaced.pop(arena, None) or old
        if old is not None:
            try:
                await self._run(old.path.parent, old.remove)
            except OSError:  # the next start removes it
                self._close(old)
        return None
