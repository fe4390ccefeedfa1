"""Group commit: rows that arrive during a write share the next write.

A row goes to the journals of all arenas that hold bytes of its map output, and is valid when each
of them has it; the row of a release goes to every journal. A journal without room for a row moves
to another place, and back when there is room beside its arena (:mod:`.journal_files`). One task
drains the queue, so rows and rewrites never overlap, and rows have one order. Each journal has a
thread for its writes: even a write to the page cache blocks while the kernel throttles writers on a
busy disk.

The space of a released map output is freed when the journal beside it has the release. Otherwise a
crash could bring the map output back after its bytes were overwritten.

The callers bound the queue: it has one row per map attempt that is being finished and one per
shuffle or application that is being released.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from .....protocol.errors import ErrorCode
from .....transport.loop import run_together, start_task
from ....names import MapAttemptKey, ShuffleKey
from ...bounds.accounts import Resource
from ..errors import JournalWriteFailed, ReleasedDuringCommit, StorageClosed, StorageError
from ..stored_outputs import MapOutput, Region, journals_for
from ..tiers.tiers import Tiers
from .journal import Entry
from .journal_files import JournalFiles, JournalWrite
from .pending_rows import PendingRelease, PendingRow
from .rows import LOSE_ROW, pack_commit, pack_drop, pack_lose, pack_secure

if TYPE_CHECKING:
    from ..tiers.tier import Extent
    from .opened_storage import OpenedStorage

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0
"""Interval to check whether a full journal has room again, and whether a moved one can move back:
the system does not notify of free space."""


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
        self.files = JournalFiles(storage, tiers, self._kept_releases)
        self._index = storage.index
        self._accounts = storage.accounts
        self._tiers = tiers
        self._queue: list[PendingRow | PendingRelease] = []
        self._in_flight: list[PendingRow | PendingRelease] = []
        self._pending: dict[MapAttemptKey, PendingRow] = {}
        self._late: list[PendingRelease] = []
        """Valid releases that a journal on a full disk does not have yet."""
        self._missed = list(storage.lost.values())
        """Releases that a left-out journal does not have, and rows of lost arenas."""
        self._last_release: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._must_look = False
        """Whether the next round checks for room."""
        self._leaving: set[bytes] = set()
        self._restores: list[tuple[bytes, asyncio.Future[bool]]] = []

    def is_pending(self, key: ShuffleKey, map_attempt_id: int) -> bool:
        """Whether the commit of a map attempt is being written."""
        return MapAttemptKey(key, map_attempt_id) in self._pending

    def pending(self, attempt: MapAttemptKey) -> "asyncio.Future[None] | None":
        """Return the future of the row being written for a map attempt, or None."""
        entry = self._pending.get(attempt)
        return None if entry is None else entry.done

    def commit(self, output: MapOutput) -> "asyncio.Future[None]":
        """Queue a commit; its future ends when the output is visible, or fails."""
        attempt = MapAttemptKey(output.key, output.map_attempt_id)
        publish = partial(self._add, attempt, output)
        return self._put_row(attempt, output.regions, pack_commit(output), publish)

    def _add(self, attempt: MapAttemptKey, output: MapOutput) -> None:
        before = self._index.open_output(attempt)
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
        """Drop the secured regions of a map output, even if being written."""
        pending = self._pending.get(attempt)
        if pending is not None:
            application_id, shuffle_id = attempt.shuffle
            pending.refusal = StorageError(
                f"map attempt {attempt.map_attempt_id} of shuffle {shuffle_id} of "
                f"{application_id} was given up while it was being written",
                code=ErrorCode.PARTITION_RELEASED,
                remedy="Nothing to do: its task runs again if it is needed",
                map_attempt_id=attempt.map_attempt_id,
            )
        output = self._index.pop_open(attempt)
        if output is not None or pending is not None:
            regions = [] if output is None else output.take()
            self._put_release(pack_drop(*attempt), regions)

    def release(self, row: bytes, regions: Iterable[Region]) -> None:
        """Queue the row of a release, which frees regions."""
        self._last_release = self._put_release(row, regions)

    def released(self) -> "asyncio.Future[None] | None":
        """Return a future for the last release to survive the process; None: it does."""
        last = self._last_release
        return None if last is None or (last.done() and last.exception() is None) else last

    def refuse(self, released: Callable[[MapAttemptKey], bool]) -> int:
        """Fail running commits of released map attempts; return their number."""
        refused = 0
        for attempt, entry in self._pending.items():
            if entry.refusal is None and released(attempt):
                entry.refusal = ReleasedDuringCommit(*attempt.shuffle, attempt.map_attempt_id)
                refused += 1
        return refused

    def lose(self, arena: bytes) -> None:
        """Stop writing to the journal of a lost arena, and record the loss in all others."""
        self._leaving.add(arena)
        self._put_release(pack_lose(arena), [])

    def restore(self, arena: bytes) -> "asyncio.Future[bool]":
        """Rewrite a journal, with the valid rows and the releases that it missed.

        Returns:
            A future with whether the journal takes rows again.
        """
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._restores.append((arena, done))
        self._begin()
        return done

    async def close(self) -> None:
        """Write the queued rows, then close the files."""
        if self._task is not None:
            await asyncio.wait({self._task})
        if self._retry is not None:
            self._retry.cancel()
        for release in self._late:
            self._give_back(release, set(release.arenas))
        await self.files.close()

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
        arenas, needs_all = journals_for(regions, list(self.files.journals))
        self._pending[attempt] = PendingRow(attempt, regions, row, arenas, needs_all, publish, done)
        self._put(self._pending[attempt])
        return done

    def _put_release(self, row: bytes, regions: Iterable[Region]) -> "asyncio.Future[None]":
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        extents = [region.extent for region in regions if region.extent is not None]
        self._put(PendingRelease(row, set(self.files.journals), extents, done))
        return done

    def _put(self, entry: PendingRow | PendingRelease) -> None:
        self._queue.append(entry)
        self._begin()

    def _begin(self) -> None:
        if self._task is None:
            self._task = start_task(self._drain())

    async def _drain(self) -> None:
        try:
            while self._queue or self._leaving or self._restores or self._must_look:
                while self._leaving:
                    self.files.leave(self._leaving.pop())
                while self._restores:
                    await self._restore(*self._restores.pop())
                if self._must_look:
                    self._must_look = False
                    await self.files.look_for_room()
                self._in_flight = [*self._late, *self._queue]
                self._late, self._queue = [], []
                writes = await self._write(self._in_flight)
                batch, self._in_flight = self._in_flight, []
                self._complete(batch, writes)
                await self.files.compact_if_worthwhile()
                self._look_again_later()
        except BaseException as error:  # the loop ends, or a bug: no caller may wait forever
            left = [*self._in_flight, *self._queue]
            self._in_flight, self._queue = [], []
            failure: StorageError = JournalWriteFailed(None, repr(error))
            if isinstance(error, asyncio.CancelledError):
                failure = StorageClosed()
            for entry in left:
                self._fail(entry, failure)
            for _, done in self._restores:
                done.cancel()
            raise
        finally:
            self._task = None

    # ---- writing ---------------------------------------------------------------------------------

    async def _write(
        self, batch: Sequence[PendingRow | PendingRelease]
    ) -> dict[bytes, JournalWrite]:
        """Append a batch to the journals; return the write of each, by arena."""
        writes: dict[bytes, JournalWrite] = {}
        for each in batch:
            if isinstance(each, PendingRelease):
                each.entry = each.entry or self.files.entry(each.row)
                for arena in each.arenas:
                    writes.setdefault(arena, JournalWrite()).releases.append(each.entry)
            elif each.refusal is None:
                entry = self.files.entry(each.row)
                for arena in each.arenas:
                    writes.setdefault(arena, JournalWrite()).entries.append(entry)
        appends = [self.files.append(arena, write) for arena, write in writes.items()]
        if len(appends) == 1:  # a task would cost turns of the event loop
            await appends[0]
        else:
            await run_together(appends)
        return writes

    def _kept_releases(self) -> list[Entry]:
        """Return the releases that other journals may lack; a rewritten one needs them."""
        under_way = (each for each in self._in_flight if isinstance(each, PendingRelease))
        late = (each.entry for each in (*self._late, *under_way) if each.entry is not None)
        return [*self._missed, *late]

    async def _restore(self, arena: bytes, done: "asyncio.Future[bool]") -> None:
        restored = await self.files.restore(arena)
        if restored and not self.files.misses_rows:
            self._missed = [each for each in self._missed if each.row.startswith(LOSE_ROW)]
        if not done.done():
            done.set_result(restored)

    def _look_again_later(self) -> None:
        """Schedule a check for room if a journal lacks rows or room, or has moved."""
        if self._retry is None and (self._late or self.files.lack_room):
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(RETRY_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._retry = None
        self._must_look = True
        self._begin()

    # ---- completion ------------------------------------------------------------------------------

    def _complete(
        self, batch: Sequence[PendingRow | PendingRelease], writes: Mapping[bytes, JournalWrite]
    ) -> None:
        failures = {arena: each.failure for arena, each in writes.items() if each.failure}
        kept = {arena for arena, each in writes.items() if each.release_failure is None}
        for each in batch:
            if isinstance(each, PendingRelease):
                self._complete_release(each, kept)
                continue
            refused = each.arenas & failures.keys()
            failed = next(iter(refused), None) if each.needs_all or refused == each.arenas else None
            if each.refusal is not None:
                self._fail(each, each.refusal)
            elif failed is not None:
                journal = self._tiers.directory_of(failed)
                self._fail(each, JournalWriteFailed(journal, str(failures[failed])))
            else:
                self._forget(each)
                each.publish()
                if not each.done.done():
                    each.done.set_result(None)

    def _complete_release(self, release: PendingRelease, kept: set[bytes]) -> None:
        """Complete a release, and free its extents in arenas whose journals have it.

        Args:
            release: The release.
            kept: Arenas whose journals have the releases of its batch.
        """
        written = release.arenas & kept
        left_out = {arena for arena in release.arenas if arena not in self.files.journals}
        release.arenas -= written | left_out
        if release.entry is not None and self.files.misses_rows:
            self._missed.append(release.entry)
        if written and not release.done.done():
            release.done.set_result(None)
        self._give_back(release, written | left_out)
        if release.arenas:
            self._late.append(release)
        elif not release.done.done():
            self._fail(release, JournalWriteFailed(None, "no directory is left"))

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

    def _fail(self, entry: PendingRow | PendingRelease, failure: StorageError) -> None:
        if isinstance(entry, PendingRelease):
            self._give_back(entry, {extent.tier.tier_id for extent in entry.extents})
            if not entry.done.done():
                entry.done.set_exception(failure)
                entry.done.exception()  # retrieved: most callers do not wait for a release
            return
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

    def _forget(self, entry: PendingRow) -> None:
        if self._pending.get(entry.attempt) is entry:
            del self._pending[entry.attempt]
            account = self._accounts.of(entry.attempt.shuffle.application_id)
            account.give_back(Resource.METADATA_BYTES, len(entry.row))
