"""Group commit: rows wait while a write is under way, then all of them go in one write.

One task drains the queue, so appends, compaction and moves of the journal never overlap, and rows
reach the file in the order in which they were given. The write itself runs in a thread of its own:
even a write to the page cache blocks while the kernel throttles writers on a busy disk.

The queue is bounded by its callers: one row per map attempt that is being finished and one per
shuffle or application that is being released.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from shuffle.storage.errors import JournalWriteFailed, ShuffleReleased, StorageClosed, StorageError
from shuffle.storage.index import OutputIndex
from shuffle.storage.journal import Journal, record_bytes
from shuffle.storage.outputs import MapOutput, ShuffleKey
from shuffle.storage.rows import pack_commit
from shuffle.storage.threads import run_in_thread

logger = logging.getLogger(__name__)

COMPACTION_FLOOR_BYTES = 1024 * 1024
"""A journal with fewer dead bytes is left alone: a rewrite would cost more than it saves."""


@dataclass(slots=True, eq=False)
class PendingCommit:
    """A commit on its way into the journal.

    Attributes:
        output: The map output.
        row: Its packed row.
        done: Resolved when the output is visible, or failed.
        refusal: Set by a release meanwhile: the commit must not become visible any more.
    """

    output: MapOutput
    row: bytes
    done: "asyncio.Future[None]"
    refusal: StorageError | None = None


class JournalWriter:
    """Writes the journal of a store.

    Args:
        journal: The open journal.
        index: Committed outputs; this class adds those whose rows are written.
        directories: Asked when the journal must move: usable data directories, best first.
        on_failure: Told about a directory that refused a write.
    """

    def __init__(
        self,
        journal: Journal,
        index: OutputIndex,
        directories: Callable[[], list[Path]],
        on_failure: Callable[[Path, OSError], None],
    ) -> None:
        self.journal = journal
        self.compactions = 0
        self._index = index
        self._directories = directories
        self._on_failure = on_failure
        self._queue: list[PendingCommit | bytes] = []
        self._in_flight: list[PendingCommit | bytes] = []
        self._pending: dict[tuple[ShuffleKey, int], PendingCommit] = {}
        self._task: asyncio.Task[None] | None = None
        self._compact_above_bytes = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sluice-journal")

    def is_pending(self, key: ShuffleKey, map_attempt_id: int) -> bool:
        """Whether the commit of a map attempt is being written."""
        return (key, map_attempt_id) in self._pending

    def commit(self, output: MapOutput) -> "asyncio.Future[None]":
        """Queue a commit. The future ends when the output is visible, or with a StorageError."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = PendingCommit(output, pack_commit(output), done)
        self._pending[output.key, output.map_attempt_id] = entry
        self._put(entry)
        return done

    def release(self, row: bytes) -> None:
        """Queue the row of a release."""
        self._put(row)

    def refuse(self, released: Callable[[ShuffleKey], bool]) -> int:
        """Fail the commits under way to shuffles that are being released; return their number."""
        refused = 0
        for (key, map_attempt_id), entry in self._pending.items():
            if entry.refusal is None and released(key):
                entry.refusal = ShuffleReleased(*key, map_attempt_id)
                refused += 1
        return refused

    def _put(self, entry: PendingCommit | bytes) -> None:
        self._queue.append(entry)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain())

    async def close(self) -> None:
        """Write what is queued, then close the file."""
        if self._task is not None:
            await asyncio.wait({self._task})
        await asyncio.to_thread(self._thread.shutdown)
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
        except BaseException as error:  # the loop ends, or a bug: nobody may wait for ever
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
            await run_in_thread(self._thread, journal.append, rows)
        except OSError as error:
            logger.error("the journal %s refused %d records: %s", journal.path, len(rows), error)
            self._on_failure(journal.path.parent, error)
            for directory in self._directories():
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

        def write() -> Journal:
            # Outputs are immutable, so the thread may read them while the event loop goes on. Rows
            # of what is released meanwhile wait in the queue and follow in the new file.
            rows = chain(map(pack_commit, outputs), more)
            journal = Journal.create(directory, old.generation + 1, rows)
            old.remove()
            return journal

        try:
            self.journal = await run_in_thread(self._thread, write)
        except OSError as error:
            logger.error("no new journal can be written to %s: %s", directory, error)
            self._on_failure(directory, error)
            return False
        return True

    def _complete(self, batch: list[PendingCommit | bytes]) -> None:
        for entry in batch:
            if isinstance(entry, bytes):
                continue
            if entry.refusal is not None:
                self._fail([entry], entry.refusal)
                continue
            del self._pending[entry.output.key, entry.output.map_attempt_id]
            self._index.add(entry.output, record_bytes(entry.row))
            if not entry.done.done():
                entry.done.set_result(None)

    def _fail(self, batch: list[PendingCommit | bytes], failure: StorageError) -> None:
        for entry in batch:
            if isinstance(entry, bytes):
                continue
            del self._pending[entry.output.key, entry.output.map_attempt_id]
            if not entry.done.done():
                entry.done.set_exception(entry.refusal or failure)
            else:  # cancelled: nobody else looks after the regions
                for region in entry.output.regions:
                    region.release()
