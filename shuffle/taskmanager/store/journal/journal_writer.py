"""Group commit: rows that arrive during a write share the next write.

A row goes to the journals of all arenas that hold bytes of its map output, and is valid when each
of them has it; the row of a release goes to every journal. A journal without room for a row moves
to another place, and back when there is room beside its arena (:mod:`.journal_files`).

Each journal has a lane with a queue (:mod:`.journal_lane`), and each directory a thread for its
journals: even a write to the page cache blocks while the kernel throttles writers on a busy disk.
Rows are numbered when they are queued, so they have one order although lanes write them at
different times.

The space of a released map output is freed when the journal beside it has the release. Otherwise a
crash could bring the map output back after its bytes were overwritten.

The callers bound the queue: it has one row per map attempt that is being finished and one per
shuffle or application that is being released.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from .....protocol.errors import ErrorCode
from ....names import MapAttemptKey, ShuffleKey
from ...bounds.accounts import Resource
from ..errors import JournalWriteFailed, ReleasedDuringCommit, StorageError
from ..stored_outputs import MapOutput, Region, arenas_of, journals_for, release_regions
from ..tiers.tiers import Tiers
from .journal import Entry
from .journal_files import JournalFiles
from .journal_lane import JournalLane
from .pending_rows import PendingRelease, PendingRow
from .rows import (
    LOSE_ROW,
    is_commit,
    pack_commit,
    pack_drop,
    pack_drop_committed,
    pack_lose,
    pack_secure,
)

if TYPE_CHECKING:
    from pathlib import Path

    from ..tiers.tier import Extent
    from .opened_storage import OpenedStorage


class JournalWriter:
    """Writes the journals of a store.

    Args:
        storage: Has the run, the open journals, and the index, to which the writer adds the map
            outputs whose rows are written.
        tiers: Notified when a directory refuses a write.

    Attributes:
        files: The journals.
    """

    def __init__(self, storage: "OpenedStorage", tiers: Tiers) -> None:
        self.files = JournalFiles(storage, tiers, self.kept_releases, self._kept_rows)
        self._index = storage.index
        self._accounts = storage.accounts
        self._tiers = tiers
        self._sync = storage.sync
        self._lanes = {arena: JournalLane(arena, self.files, self) for arena in self.files.journals}
        self._pending: dict[MapAttemptKey, PendingRow] = {}
        self._releases: dict[PendingRelease, None] = {}
        """Releases that a journal in use does not have yet, in their order."""
        self._missed = [*storage.lost.values(), *storage.unseen]
        """Releases that a left-out journal does not have, and rows of lost arenas."""
        self._newest: list[Entry] = []
        """The last release. A missing directory counts as away because other journals have it."""
        self._refused: list[Region] = []
        """Regions of rows that were just refused, for the release that undoes these rows."""
        self._last_release: asyncio.Future[None] | None = None

    def is_pending(self, key: ShuffleKey, map_attempt_id: int) -> bool:
        """Whether the commit of a map attempt is being written."""
        return MapAttemptKey(key, map_attempt_id) in self._pending

    def pending(self, attempt: MapAttemptKey) -> "asyncio.Future[None] | None":
        """Return the future of the row being written for a map attempt, or None."""
        entry = self._pending.get(attempt)
        return None if entry is None else entry.done

    def directory_of(self, arena: bytes) -> "Path | None":
        """Return the directory of an arena, if there is one, for status."""
        return self._tiers.directory_of(arena)

    @property
    def rows(self) -> list[PendingRow]:
        """The rows of map outputs that wait to be written, for status."""
        return list(self._pending.values())

    def commit(
        self, output: MapOutput, replaced: Callable[[MapOutput], None] | None = None
    ) -> "asyncio.Future[None]":
        """Queue a commit; its future ends when the output is visible, or fails.

        Args:
            output: The map output.
            replaced: Called with one found in the remote tier whose place it takes.
        """
        attempt = MapAttemptKey(output.key, output.map_attempt_id)
        publish = partial(self._add, attempt, output, replaced)
        return self._put_row(attempt, output.regions, pack_commit(output), publish)

    def _add(
        self,
        attempt: MapAttemptKey,
        output: MapOutput,
        replaced: Callable[[MapOutput], None] | None,
    ) -> None:
        before = self._index.open_output(attempt)
        found = self._index.get(*attempt)
        if found is not None:  # in the remote tier; this copy replaces it
            self._index.remove(found)
            release_regions(found.regions)
            if replaced is not None:
                replaced(found)
        self._index.add(output)
        left = [] if before is None else before.take()
        if left:
            # Its producer moved to another TaskManager, which sent this copy.
            self._put_release(pack_drop(*attempt), left)

    def secure(
        self,
        attempt: MapAttemptKey,
        num_subpartitions: int,
        regions: Sequence[Region],
        process: str,
    ) -> "asyncio.Future[None]":
        """Queue regions of an uncommitted map output, like :meth:`commit`."""
        before = self._index.open_output(attempt)
        first = 0 if before is None else len(before.regions)
        row = pack_secure(*attempt, num_subpartitions, first, regions, process)
        publish = partial(self._index.secure, attempt, num_subpartitions, regions, process)
        return self._put_row(attempt, regions, row, publish)

    def drop(self, attempt: MapAttemptKey) -> None:
        """Drop the secured regions of a map output, and fail its row that is being written."""
        pending = self._pending.get(attempt)
        row = pack_drop(*attempt)
        if pending is not None:
            application_id, shuffle_id = attempt.shuffle
            if is_commit(pending.entry.row):
                row = pack_drop_committed(*attempt)  # what was secured before is dropped with it
            refusal = StorageError(
                f"map attempt {attempt.map_attempt_id} of shuffle {shuffle_id} of "
                f"{application_id} was given up while it was being written",
                code=ErrorCode.PARTITION_RELEASED,
                remedy="Nothing to do: its task runs again if it is needed",
                map_attempt_id=attempt.map_attempt_id,
            )
            self._refuse(pending, refusal)
        output = self._index.pop_open(attempt)
        if output is not None or pending is not None:
            self._put_release(row, [] if output is None else output.take())

    def release(self, row: bytes, regions: Iterable[Region]) -> None:
        """Queue the row of a release, which frees regions."""
        self._last_release = self._put_release(row, regions)

    def released(self) -> "asyncio.Future[None] | None":
        """Return a future for the last release to survive the process; None: it does."""
        last = self._last_release
        return None if last is None or (last.done() and last.exception() is None) else last

    def refuse(self, released: Callable[[MapAttemptKey], bool]) -> int:
        """Fail running commits of released map attempts; :meth:`release` must follow.

        Returns:
            Their number, and that of failed ones whose rows may still reach a journal: they need
            the row of the release.
        """
        refused = sum(map(released, self._doubtful()))
        for attempt, entry in self._pending.items():
            if entry.refusal is None and released(attempt):
                error = ReleasedDuringCommit(*attempt.shuffle, attempt.map_attempt_id)
                self._refuse(entry, error)
                refused += 1
        return refused

    def _refuse(self, row: PendingRow, refusal: StorageError) -> None:
        """Fail a row. A journal may have it already, so keep its bytes until it has the release.

        Its regions belong to the caller of the commit, which releases them when it fails.
        """
        row.refusal = refusal
        for region in row.regions:
            if region.extent is not None:
                region.extent.retain()
                self._refused.append(region)

    def _doubtful(self) -> set[MapAttemptKey]:
        return {attempt for lane in self._lanes.values() for attempt in lane.doubtful}

    def lose(self, arena: bytes) -> None:
        """Stop writing to the journal of a lost arena, and record the loss in all others."""
        self._lane(arena).leave()
        self._put_release(pack_lose(arena), [])

    def restore(self, arena: bytes) -> "asyncio.Future[bool]":
        """Rewrite a journal, with the valid rows and the releases that it missed.

        Returns:
            A future with whether the journal takes rows again.
        """
        return self._lane(arena).restore()

    async def close(self) -> None:
        """Write the queued rows, then close the files.

        Cancellation: safe; the files stay open.
        """
        lanes = self._lanes.values()
        while self.tasks or any([lane.sync() for lane in lanes]):
            await asyncio.wait(self.tasks)
        for lane in lanes:
            for release in lane.close():
                self._give_back(release, set(release.arenas))
        self.files.close()

    @property
    def tasks(self) -> "list[asyncio.Task[None]]":
        """The running tasks of the lanes."""
        return [lane.task for lane in self._lanes.values() if lane.task is not None]

    # ---- queueing --------------------------------------------------------------------------------

    def _by_health(self) -> list[bytes]:
        """Return the arenas with journals, healthy ones last: a row without bytes goes there.

        If rows must survive a power cut, the memory tier's journal is not among them.
        """
        return sorted(filter(self._is_durable, self.files.journals), key=self._tiers.is_healthy)

    def _is_durable(self, arena: bytes) -> bool:
        """Return whether a release in the journal of an arena survives what it must survive."""
        return not self._sync.is_on or self._sync.of(self._tiers.arena(arena)) != "never"

    def _lane(self, arena: bytes) -> JournalLane:
        lane = self._lanes.get(arena)
        if lane is None:
            lane = self._lanes[arena] = JournalLane(arena, self.files, self)
        return lane

    def _put_row(
        self,
        attempt: MapAttemptKey,
        regions: Sequence[Region],
        row: bytes,
        publish: Callable[[], None],
    ) -> "asyncio.Future[None]":
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        account = self._accounts.of(attempt.shuffle.application_id)
        account.hold(Resource.METADATA_BYTES, len(row))
        arenas, needs_all = journals_for(regions, self._by_health())
        entry = self.files.entry(row)
        pending = PendingRow(attempt, regions, entry, arenas, needs_all, publish, done)
        self._pending[attempt] = pending
        for arena in list(arenas):
            self._lane(arena).put(pending)
        return done

    def _put_release(self, row: bytes, regions: Iterable[Region]) -> "asyncio.Future[None]":
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        refused, self._refused = self._refused, []
        extents = [each.extent for each in (*regions, *refused) if each.extent is not None]
        arenas = {arena for arena, lane in self._lanes.items() if lane.takes_releases}
        release = PendingRelease(self.files.entry(row), arenas, extents, done)
        self._newest = [release.entry]
        self._releases[release] = None
        for arena in list(arenas):
            self._lanes[arena].put(release)
        if not arenas:
            self._end_release(release)
        return done

    def kept_releases(self) -> list[Entry]:
        """Return the releases that other journals may lack; a rewritten one needs them."""
        waiting = (release.entry for release in self._releases)
        return list(dict.fromkeys([*self._missed, *self._newest, *waiting]))

    def _kept_rows(self, arena: bytes) -> list[Entry]:
        """Return the rows that a journal has and that wait for others; a rewritten one needs them.

        They are not in the index yet.
        """
        return [
            row.entry
            for row in self._pending.values()
            if arena not in row.arenas and arena in arenas_of(row.regions)
        ]

    # ---- completion, reported by the lanes -------------------------------------------------------

    def row_written(self, row: PendingRow, arena: bytes, failure: OSError | None) -> None:
        """Complete a row when all journals that it needs have it, or fail it."""
        row.arenas.discard(arena)
        if row.is_over:
            return
        if row.refusal is not None:
            self.fail(row, row.refusal)
        elif failure is None:
            if not row.arenas or not row.needs_all:
                self._publish(row)
        elif row.needs_all or not row.arenas:
            directory = self._tiers.directory_of(arena)
            self.fail(row, JournalWriteFailed(directory, str(failure)))

    def _publish(self, row: PendingRow) -> None:
        row.is_over = True
        self._forget(row)
        row.publish()
        if not row.done.done():
            row.done.set_result(None)

    def release_written(self, release: PendingRelease, arena: bytes, *, written: bool) -> None:
        """Free the extents in an arena whose journal has a release, or is left out."""
        release.arenas.discard(arena)
        if release not in self._releases:
            return
        if written and self._is_durable(arena) and not release.done.done():
            release.done.set_result(None)
        self._give_back(release, {arena})
        if not release.arenas:
            self._end_release(release)

    def restored(self, arena: bytes, *, written: bool) -> None:
        """Forget the missed releases once every journal has them.

        A rewritten journal also has a release whose write to all journals had failed.
        """
        last = self._last_release
        if written and self._is_durable(arena) and last is not None and last.done():
            self._last_release = None
        if written and not self.files.misses_rows:
            self._missed = [each for each in self._missed if each.row.startswith(LOSE_ROW)]

    def _end_release(self, release: PendingRelease) -> None:
        """End a release: no further journal will write it."""
        del self._releases[release]
        if self.files.misses_rows:
            self._missed.append(release.entry)
        self._give_back(release, {extent.tier.tier_id for extent in release.extents})
        if not release.done.done():
            self._fail_release(release, JournalWriteFailed(None, "no directory is left"))

    def _give_back(self, release: PendingRelease, arenas: set[bytes]) -> None:
        """Release the extents of some arenas, and objects if the release is valid."""
        kept: list[Extent] = []
        valid = release.done.done()
        for extent in release.extents:
            if extent.tier.tier_id in arenas or (valid and not extent.tier.has_journal):
                extent.release()
            else:
                kept.append(extent)
        release.extents = kept

    def fail(self, entry: PendingRow | PendingRelease, failure: StorageError) -> None:
        """Fail an entry, once."""
        if isinstance(entry, PendingRelease):
            if self._releases.pop(entry, entry) is None:
                self._give_back(entry, {extent.tier.tier_id for extent in entry.extents})
                self._fail_release(entry, failure)
            return
        if entry.is_over:
            return
        entry.is_over = entry.has_failed = True
        self._forget(entry)
        taken = self._index.open_output(entry.attempt)
        if taken is not None and taken.taken:  # a commit that failed cannot be resumed
            self._index.pop_open(entry.attempt)
            self._put_release(pack_drop(*entry.attempt), [])
        if not entry.done.done():
            entry.done.set_exception(entry.refusal or failure)
        else:  # canceled: the store owns the regions
            for region in entry.regions:
                region.release()

    def _fail_release(self, release: PendingRelease, failure: StorageError) -> None:
        if not release.done.done():
            release.done.set_exception(failure)
            release.done.exception()  # retrieved: most callers do not wait for a release

    def _forget(self, entry: PendingRow) -> None:
        if self._pending.get(entry.attempt) is entry:
            del self._pending[entry.attempt]
            account = self._accounts.of(entry.attempt.shuffle.application_id)
            account.give_back(Resource.METADATA_BYTES, len(entry.entry.row))
