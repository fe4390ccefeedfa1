"""The queue of one journal, and the task that writes it.

Each journal has a lane, so a journal whose disk is slow or hangs delays only the rows that it must
have. One task drains the queue, so appends and rewrites of a journal never overlap.

If the disk hangs during an append, the rows fail. They may still reach the file later, and would
count if the process were killed then. So their extents stay in use until the journal is rewritten.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from .....transport.loop import start_task
from ..errors import JournalWriteFailed, StorageClosed, StorageError
from .journal_files import JournalFiles, JournalWrite
from .pending_rows import PendingRelease, PendingRow

if TYPE_CHECKING:
    from ....names import MapAttemptKey
    from ..tiers.tier import Extent

RETRY_SECONDS: Final = 1.0
"""Interval to check whether a full journal has room again, and whether a moved one can move back:
the system does not notify of free space."""


class WrittenRows(Protocol):
    """Receives the reports of lanes."""

    def row_written(self, row: PendingRow, arena: bytes, failure: OSError | None) -> None:
        """Record that a journal has a row, or that it failed."""

    def release_written(self, release: PendingRelease, arena: bytes, *, written: bool) -> None:
        """Record that a journal has a release, or that it is left out and misses it."""

    def restored(self, arena: bytes, *, written: bool) -> None:
        """Record that a journal was rewritten with all releases, or could not be."""

    def fail(self, entry: PendingRow | PendingRelease, failure: StorageError) -> None:
        """Fail an entry: no lane will write it."""


class JournalLane:
    """The rows that wait for one journal.

    Args:
        arena: The arena of the journal.
        files: All journals.
        rows: Notified of each row.

    Attributes:
        task: Drains the queue; None if nothing waits.
        doubtful: Map attempts whose failed rows may still reach the file.
    """

    def __init__(self, arena: bytes, files: JournalFiles, rows: WrittenRows) -> None:
        self._arena = arena
        self._files = files
        self._rows = rows
        self._queue: list[PendingRow | PendingRelease] = []
        self._in_flight: list[PendingRow | PendingRelease] = []
        self._late: list[PendingRelease] = []
        """Releases for which the journal has no room yet."""
        self.task: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._must_look = False
        """Whether the next round checks for room."""
        self._sync_timer: asyncio.TimerHandle | None = None
        self._must_sync = False
        self._leaves = False
        self._restores: list[asyncio.Future[bool]] = []
        self.doubtful: set[MapAttemptKey] = set()
        self._doubtful_extents: list[Extent] = []

    @property
    def takes_releases(self) -> bool:
        """Whether the journal is in use, or will be after its rewrite."""
        return self._arena in self._files.journals or bool(self._restores)

    def put(self, entry: PendingRow | PendingRelease) -> None:
        """Queue a row."""
        self._queue.append(entry)
        self._begin()

    def leave(self) -> None:
        """Write nothing more to the journal, after the write under way."""
        self._leaves = True
        self._begin()

    def restore(self) -> "asyncio.Future[bool]":
        """Rewrite the journal; return a future with whether it takes rows again."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._restores.append(done)
        self._begin()
        return done

    def close(self) -> list[PendingRelease]:
        """Stop looking for room; return the releases that the journal does not have."""
        for timer in (self._retry, self._sync_timer):
            if timer is not None:
                timer.cancel()
        self._settle()
        return self._late

    def sync(self) -> bool:
        """Sync the rows that wait for the interval; return whether there are any."""
        if not self._files.syncs.is_due(self._arena):
            return False
        self._must_sync = True
        self._begin()
        return True

    def _begin(self) -> None:
        if self.task is None:
            self.task = start_task(self._drain())

    async def _drain(self) -> None:
        try:
            while self._has_work():
                if self._leaves:
                    self._leaves = False
                    self._files.leave(self._arena)
                    self._settle()
                if self._restores:
                    await self._restore()
                if self._must_look:
                    self._must_look = False
                    await self._files.look_for_room(self._arena)
                self._in_flight = [*self._late, *self._queue]
                self._late, self._queue = [], []
                if self._in_flight:
                    write = await self._write(self._in_flight)
                    batch, self._in_flight = self._in_flight, []
                    self._report(batch, write)
                if self._must_sync:
                    self._must_sync = False
                    await self._files.sync(self._arena)
                await self._files.compact_if_worthwhile(self._arena)
                self._look_again_later()
                self._sync_later()
        except BaseException as error:  # the loop ends, or a bug: no caller may wait forever
            left = [*self._in_flight, *self._queue, *self._late]
            self._in_flight, self._queue, self._late = [], [], []
            failure: StorageError = JournalWriteFailed(None, repr(error))
            if isinstance(error, asyncio.CancelledError):
                failure = StorageClosed()
            for entry in left:
                self._rows.fail(entry, failure)
            for done in self._restores:
                done.cancel()
            raise
        finally:
            self.task = None

    def _has_work(self) -> bool:
        waits = self._leaves or self._must_look or self._must_sync
        return bool(waits or self._queue or self._restores)

    async def _restore(self) -> None:
        """Rewrite the journal; releases that are put meanwhile are appended to it."""
        restored = await self._files.restore(self._arena)
        if restored:
            self._settle()
        self._rows.restored(self._arena, written=restored)
        restores, self._restores = self._restores, []
        for done in restores:
            if not done.done():
                done.set_result(restored)

    async def _write(self, batch: Sequence[PendingRow | PendingRelease]) -> JournalWrite:
        write = JournalWrite()
        rows: list[PendingRow] = []
        for each in batch:
            if isinstance(each, PendingRelease):
                write.releases.append(each.entry)
            elif each.refusal is None and not each.has_failed:  # others may have published it
                write.entries.append(each.entry)
                rows.append(each)
        write.uses = (_InDoubt(rows, self._doubt),)
        if write.entries or write.releases:
            await self._files.append(self._arena, write)
            if write.failure is None and self.doubtful:
                self._settle()  # the journal has moved away from a directory that hangs
        return write

    def _report(self, batch: Sequence[PendingRow | PendingRelease], write: JournalWrite) -> None:
        for each in batch:
            if not isinstance(each, PendingRelease):
                self._rows.row_written(each, self._arena, write.failure)
            elif write.release_failure is None:
                self._rows.release_written(each, self._arena, written=True)
            elif self._arena in self._files.journals:
                self._late.append(each)
            else:
                self._rows.release_written(each, self._arena, written=False)

    def _look_again_later(self) -> None:
        """Schedule a check for room if the journal lacks rows or room, or has moved."""
        if self._retry is None and (self._late or self._files.lacks_room(self._arena)):
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(RETRY_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._retry = None
        self._must_look = True
        self._begin()

    def _sync_later(self) -> None:
        """Schedule the sync of rows that were just written, unless it is scheduled."""
        if self._sync_timer is None and self._files.syncs.is_due(self._arena):
            seconds = self._files.syncs.interval_seconds
            loop = asyncio.get_running_loop()
            self._sync_timer = loop.call_later(seconds, self._end_interval)

    def _end_interval(self) -> None:
        self._sync_timer = None
        self.sync()

    # ---- rows in doubt ---------------------------------------------------------------------------

    def _doubt(self, rows: Sequence[PendingRow]) -> None:
        """Keep the extents of rows that may still reach the file."""
        for row in rows:
            self.doubtful.add(row.attempt)
            if row.is_over:  # its regions have another owner, or none: it cannot become valid
                continue
            for region in row.regions:
                if region.extent is not None:
                    region.extent.retain()
                    self._doubtful_extents.append(region.extent)

    def _settle(self) -> None:
        """Release the extents of rows that no file has: it was rewritten, or is gone."""
        extents, self._doubtful_extents = self._doubtful_extents, []
        self.doubtful.clear()
        for extent in extents:
            extent.release()


class _InDoubt:
    """The rows of an append: what it uses as long as its result is unknown."""

    def __init__(
        self, rows: Sequence[PendingRow], doubt: Callable[[Sequence[PendingRow]], None]
    ) -> None:
        self._rows = rows
        self._doubt = doubt

    def retain(self) -> None:
        """Keep what the rows refer to."""
        self._doubt(self._rows)

    def release(self) -> None:
        """Do nothing: the rows may be in the file now, until it is rewritten."""
