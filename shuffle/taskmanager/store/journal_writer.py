"""Group commit: rows wait while a write is under way, then all of them share the next write.

One task drains the queue, so appends, compaction and moves of the journal never overlap, and rows
reach the file in the order in which they were given. The write itself runs in a thread of its own:
even a write to the page cache blocks while the kernel throttles writers on a busy disk.

The queue is bounded by its callers: one row per map attempt that is being finished and one per
shuffle or application that is being released.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from ...names import MapAttemptKey, ShuffleKey
from .errors import (
    JournalWriteFailed,
    MapOutputDropped,
    ReleasedDuringCommit,
    StorageClosed,
    StorageError,
)
from .io_threads import IoThreads
from .journal import Journal, record_bytes
from .output_index import OutputIndex
from .outputs import MapOutput, Region
from .rows import pack_commit, pack_drop, pack_secure
from .tiers import Tiers

logger = logging.getLogger(__name__)

COMPACTION_FLOOR_BYTES = 1024 * 1024
"""A journal with fewer dead bytes is left alone: a rewrite would cost more than it saves."""


@dataclass(slots=True, eq=False)
class PendingRow:
    """A commit, or regions that are secured before it, on its way into the journal.

    Attributes:
        attempt: The map attempt.
        regions: The regions of the row.
        row: The packed row.
        publish: Makes the row visible; called with the bytes of its record.
        done: Resolved when the row is visible, or failed.
        refusal: Set by a release in the meantime: the row must not become visible any more.
    """

    attempt: MapAttemptKey
    regions: Sequence[Region]
    row: bytes
    publish: Callable[[int], None]
    done: "asyncio.Future[None]"
    refusal: StorageError | None = None


class JournalWriter:
    """Writes the journal of a store.

    Args:
        journal: The open journal.
        index: Committed outputs; the writer adds those whose rows are written.
        tiers: Asked for another directory when this one refuses a write, and told of that.
    """

    def __init__(
        self,
        journal: Journal,
        index: OutputIndex,
        tiers: Tiers,
    ) -> None:
        self.journal = journal
        self.compactions = 0
        self._index = index
        self._tiers = tiers
        self._queue: list[PendingRow | bytes] = []
        self._in_flight: list[PendingRow | bytes] = []
        self._pending: dict[MapAttemptKey, PendingRow] = {}
        self._task: asyncio.Task[None] | None = None
        self._compact_above_bytes = 0
        self._thread = IoThreads(1, "sluice-journal")

    def is_pending(self, key: ShuffleKey, map_attempt_id: int) -> bool:
        """Whether the commit of a map attempt is being written."""
        return MapAttemptKey(key, map_attempt_id) in self._pending

    def pending(self, attempt: MapAttemptKey) -> "asyncio.Future[None] | None":
        """Return the future of the row of a map attempt that is being written, or None."""
        entry = self._pending.get(attempt)
        return None if entry is None else entry.done

    def commit(self, output: MapOutput) -> "asyncio.Future[None]":
        """Queue a commit. The future ends when the output is visible, or with a StorageError."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        attempt = MapAttemptKey(output.key, output.map_attempt_id)
        publish = partial(self._index.add, output)
        entry = PendingRow(attempt, output.regions, pack_commit(output), publish, done)
        self._pending[attempt] = entry
        self._put(entry)
        return done

    def secure(
        self, attempt: MapAttemptKey, num_subpartitions: int, regions: Sequence[Region]
    ) -> "asyncio.Future[None]":
        """Queue regions of a map output that is not committed. The future is that of a commit."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        before = self._index.open_output(attempt)
        first = 0 if before is None else len(before.regions)
        row = pack_secure(*attempt, num_subpartitions, first, regions)
        publish = partial(self._index.secure, attempt, num_subpartitions, regions)
        self._pending[attempt] = entry = PendingRow(attempt, regions, row, publish, done)
        self._put(entry)
        return done

    def drop(self, attempt: MapAttemptKey) -> None:
        """Give up the secured regions of a map output, also those being written."""
        pending = self._pending.get(attempt)
        if pending is not None:
            pending.refusal = MapOutputDropped(*attempt.shuffle, attempt.map_attempt_id)
        output = self._index.pop_open(attempt)
        if output is not None:
            output.release()
        if output is not None or pending is not None:
            self._put(pack_drop(*attempt))

    def release(self, row: bytes) -> None:
        """Queue the row of a release."""
        self._put(row)

    def refuse(self, released: Callable[[ShuffleKey], bool]) -> int:
        """Fail the commits under way to shuffles that are being released; return their number."""
        refused = 0
        for attempt, entry in self._pending.items():
            if entry.refusal is None and released(attempt.shuffle):
                entry.refusal = ReleasedDuringCommit(*attempt.shuffle, attempt.map_attempt_id)
                refused += 1
        return refused

    def _put(self, entry: PendingRow | bytes) -> None:
        self._queue.append(entry)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain())

    async def close(self) -> None:
        """Write the queued rows, then close the file."""
        if self._task is not None:
            await asyncio.wait({self._task})
        await asyncio.to_thread(self._thread.end)
        self.journal.close()

    async def _drain(self) -> None:
        try:
            while self._queue:
                batch, self._queue = self._queue, []
                self._in_flight = batch
                rows = [
                    entry if isinstance(entry, bytes) else entry.row
                    for entry in batch
                    if isinstance(entry, bytes) or entry.refusal is None
                ]
                failure = await self._write(rows)
                self._in_flight = []
                if failure is None:
                    self._complete(batch)
                else:
                    self._fail(batch, failure)
                    # Releases must come before whatever is committed next into the same extents.
                    # They wait for that, instead of trying a full disk again and again.
                    releases = [entry for entry in batch if isinstance(entry, bytes)]
                    self._queue[:0] = releases
                    if not self._pending:
                        return
                await self._compact_if_worthwhile()
        except BaseException as error:  # the loop ends, or a bug: no caller may wait for ever
            left = [*self._in_flight, *self._queue]
            self._in_flight, self._queue = [], []
            cancelled = isinstance(error, asyncio.CancelledError)
            failure = (
                StorageClosed() if cancelled else JournalWriteFailed(self.journal.path, repr(error))
            )
            self._fail(left, failure)
            raise
        finally:
            self._task = None

    async def _write(self, rows: list[bytes]) -> StorageError | None:
        """Append rows, moving the journal to another directory if this one refuses."""
        if not rows:
            return None
        journal = self.journal
        try:
            await self._thread.run(journal.append, rows)
        except OSError as error:
            logger.error("the journal %s refused %d records: %s", journal.path, len(rows), error)
            self._tiers.note_disk_failure(journal.path.parent, error)
            for directory in self._tiers.healthy_disks():
                if directory != journal.path.parent and await self._rewrite(directory, rows):
                    return None
            return JournalWriteFailed(journal.path, str(error))
        return None

    async def _compact_if_worthwhile(self) -> None:
        size = self.journal.size_bytes
        dead = size - self._index.journal_bytes
        if dead < max(self._index.journal_bytes, COMPACTION_FLOOR_BYTES, self._compact_above_bytes):
            return
        if await self._rewrite(self.journal.path.parent, []):
            self.compactions += 1
            self._compact_above_bytes = 0
        else:
            self._compact_above_bytes = 2 * dead  # not again with every batch

    async def _rewrite(self, directory: Path, more: list[bytes]) -> bool:
        """Write the next generation: all live rows and ``more``. Return whether that went well."""
        old = self.journal
        outputs = self._index.outputs()
        secured = [
            pack_secure(each.key, each.map_attempt_id, each.num_subpartitions, 0, each.regions)
            for each in self._index.open_outputs()
        ]

        def write() -> Journal:
            # Outputs are immutable, so the thread may read them while the event loop goes on. The
            # rows of releases in the meantime wait in the queue and follow in the new file.
            rows = chain(map(pack_commit, outputs), secured, more)
            journal = Journal.create(directory, old.generation + 1, rows)
            old.remove()
            return journal

        try:
            self.journal = await self._thread.run(write)
        except OSError as error:
            logger.error("no new journal can be written to %s: %s", directory, error)
            self._tiers.note_disk_failure(directory, error)
            return False
        return True

    def _complete(self, batch: list[PendingRow | bytes]) -> None:
        for entry in batch:
            if isinstance(entry, bytes):
                continue
            if entry.refusal is not None:
                self._fail([entry], entry.refusal)
                continue
            self._forget(entry)
            entry.publish(record_bytes(entry.row))
            if not entry.done.done():
                entry.done.set_result(None)

    def _fail(self, batch: list[PendingRow | bytes], failure: StorageError) -> None:
        for entry in batch:
            if isinstance(entry, bytes):
                continue
            self._forget(entry)
            taken = self._index.open_output(entry.attempt)
            if taken is not None and taken.taken:  # a commit that failed cannot be resumed
                self._index.pop_open(entry.attempt)
                self._queue.append(pack_drop(*entry.attempt))
            if not entry.done.done():
                entry.done.set_exception(entry.refusal or failure)
            else:  # cancelled: the store owns the regions
                for region in entry.regions:
                    region.release()

    def _forget(self, entry: PendingRow) -> None:
        if self._pending.get(entry.attempt) is entry:
            del self._pending[entry.attempt]
