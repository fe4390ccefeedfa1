# Longer than 450 lines, because it is the facade of this package.
"""Facade of this package: stores the committed map outputs of a TaskManager.

::

    begin_region() ─▶ RegionWriter ─finish()─▶ Region ─┐
    begin_region() ─▶ RegionWriter ─finish()─▶ Region ─┴─▶ MapOutput ─commit()─▶ journal ─▶ index
                                                                                  │
    read_all(…), extent.view  ◀──────────────────── lookup() / map_outputs() ◀────┘

One event-loop thread owns all state. Only :meth:`ShuffleStore.open` blocks: run it before serving,
or in a thread before the loop uses the store. Afterwards threads of each directory access it.

A map output whose commit was acknowledged survives the process, because its bytes are in the page
cache or in tmpfs. A reboot loses the map outputs of the memory tier.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from ....protocol.limits import MAX_I64
from ....transport.fair_queue import OWN_FLOW, Flow
from ...names import MapAttemptKey, ShuffleKey
from ..bounds.accounts import Accounts, Resource
from ..config.storage_config import StorageConfig
from .errors import DuplicateMapOutput, RemoteObjectMissing, StorageClosed, StorageUnavailable
from .extent_reader import ExtentRange, read_cached, read_extents, will_need
from .journal import rows
from .journal.journal_writer import JournalWriter
from .journal.opened_storage import OpenedStorage
from .journal.recovery import open_storage
from .output_index import Lost, StoreStatistics, regions_of
from .region_writer import RegionWriter
from .store_health import StoreHealth
from .store_status import RemoteStatus, ShuffleStatus, TierStatus
from .stored_outputs import MapOutput, OpenOutput, Region, kept_bytes, region_index
from .tiers.tier import ExtentRead
from .tiers.tiers import Tiers

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from ...wait_status import Wait
    from .files.io_threads import Used
    from .remote.remote_outputs import RemoteOutputs
    from .remote.remote_watch import RemoteWatch


class ShuffleStore:
    """The tiers, journals and index of a TaskManager's data directories.

    Made by :meth:`open`. An extent stays valid as long as it has a reference: retain it before
    using it across an ``await``, and release it afterwards.
    """

    def __init__(self, config: StorageConfig, storage: OpenedStorage) -> None:
        self._storage = storage
        self.accounts = storage.accounts
        """The accounts of the applications whose bytes this store holds."""
        self._index = storage.index
        self.releases = storage.index.releases
        """The releases of shuffles, to refuse later commits and copies."""
        self._tiers = Tiers(
            storage.memory,
            storage.disks,
            storage.left_out,
            storage.upkeep,
            config.memory_tier_reserve_percent,
            storage.remote,
        )
        self.region_reads = self._tiers.region_reads
        """Returns how long readers waited for each tier without memory."""
        self._journal = JournalWriter(storage, self._tiers)
        self._config = config
        self._health = StoreHealth(storage, self._tiers, self._journal, config)
        self.remote: RemoteOutputs | None = None
        """The map outputs that moved to the remote tier; None without a remote tier."""
        if storage.remote is not None:  # only then load the modules of the remote tier
            from .remote import remote_outputs

            self.remote = remote_outputs.RemoteOutputs(
                storage.remote,
                self._index,
                self.accounts,
                self.read_all,
                lambda attempt: self._journal.is_pending(*attempt),
                self._lose_objects,
            )
        self._remote_watch: RemoteWatch | None = None
        self._commits = 0
        self._adopted = self._index.map_outputs
        self._closed = False

    @classmethod
    def open(cls, config: StorageConfig, accounts: Accounts | None = None) -> Self:
        """Lock the directories and adopt committed map outputs. Blocks.

        Unusable directories are left out, and the reason is logged.

        Args:
            config: Directories and sizes.
            accounts: Accounts to charge for stored bytes; by default there are no quotas.

        Raises:
            StorageInUse: Another process uses one of the directories.
            StorageUnavailable: No data directory can be used.
        """
        with open_storage(config, accounts or Accounts()).closed_on_error() as storage:
            return cls(config, storage)

    @property
    def taskmanager_id(self) -> str:
        """Stable random id, 16 hex digits, stored in the data directories."""
        return self._storage.taskmanager_id

    def begin_region(
        self,
        key: ShuffleKey,
        first_subpartition: int,
        lengths: Sequence[int],
        connection: int = 0,
    ) -> RegionWriter:
        """Allocate an extent for a region: in memory, else on a disk, else remotely.

        Args:
            key: The shuffle.
            first_subpartition: Number of the region's first subpartition; ``EVERY_SUBPARTITION``
                for a broadcast region, whose bytes belong to every subpartition.
            lengths: Bytes of each of its subpartitions; a single length for a broadcast region.
            connection: The producer's connection; connections take turns to write to a disk.

        Raises:
            StorageFull: No tier has room.
            QuotaExceeded: The application would exceed its quota.
            StorageClosed: The store was closed.
            ValueError: A length is negative.
        """
        self._check_open()
        index = region_index(lengths)
        length = index[0][-1]
        account = self.accounts.of(key.application_id)
        account.require_room(Resource.METADATA_BYTES, kept_bytes(*index))
        extent = self._tiers.allocate(length, account) if length else None
        flow = Flow(key.application_id, connection)
        threads = self._storage.threads.memory if extent is None else extent.tier.threads
        return RegionWriter(key, extent, first_subpartition, index, account, threads, flow)

    def commit(self, output: MapOutput) -> "asyncio.Future[None]":
        """Commit a map output: write its row to the journal, then make it visible.

        A copy from another TaskManager replaces a map output that was found in the remote tier.

        Args:
            output: Its regions come from :meth:`RegionWriter.finish`. When the future succeeds,
                they belong to the store. If this call or the future raises, they still belong to
                the caller, who must release them (``stored_outputs.release_regions``).

        Returns:
            A future that ends when the output survives the process and is visible. Canceling it
            does not undo the commit; the store then owns the regions in either case. The
            future may fail with JournalWriteFailed, ReleasedDuringCommit or StorageClosed.

        Raises:
            DuplicateMapOutput: The map attempt is committed or being committed.
            StorageClosed: The store was closed.
        """
        self._check_open()
        found = self.lookup(output.key, output.map_attempt_id)
        is_known = found is not None and not (found.is_moved and output.origin)
        if is_known or self._journal.is_pending(output.key, output.map_attempt_id):
            raise DuplicateMapOutput(*output.key, output.map_attempt_id)
        self._commits += 1
        return self._journal.commit(output, None if self.remote is None else self.remote.replaced)

    def secure(
        self,
        attempt: MapAttemptKey,
        num_subpartitions: int,
        regions: Sequence[Region],
        process: str = "",
    ) -> "asyncio.Future[None]":
        """Make the next regions of a map output survive the process before its commit.

        Args:
            attempt: The map attempt; do not call this again for it before the future has ended.
            num_subpartitions: Subpartitions of the shuffle.
            regions: The regions after the ones secured before. When the future succeeds, they
                belong to the store. If this call or the future raises, they still belong to the
                caller.
            process: The random text of the producer's process.

        Returns:
            A future like the one from :meth:`commit`.

        Raises:
            DuplicateMapOutput: The map attempt is committed, or one of its rows is being written.
        """
        self._check_open()
        if self.lookup(*attempt) is not None or self._journal.is_pending(*attempt):
            raise DuplicateMapOutput(*attempt.shuffle, attempt.map_attempt_id)
        return self._journal.secure(attempt, num_subpartitions, regions, process)

    def open_output(self, attempt: MapAttemptKey) -> OpenOutput | None:
        """Return the secured part of a map output that is not committed, or None."""
        return self._index.open_output(attempt)

    def open_outputs(self) -> list[OpenOutput]:
        """Return all uncommitted map outputs with secured regions."""
        return self._index.open_outputs()

    def pending(self, attempt: MapAttemptKey) -> "asyncio.Future[None] | None":
        """Return the future of the row being written for a map attempt, or None."""
        return self._journal.pending(attempt)

    def drop_open(self, attempt: MapAttemptKey) -> None:
        """Drop the secured regions of a map output, even if being written. Idempotent."""
        if not self._closed:
            self._journal.drop(attempt)

    def lookup(self, key: ShuffleKey, map_attempt_id: int) -> MapOutput | None:
        """Return a committed map output, or None."""
        return self._index.get(key, map_attempt_id)

    def map_outputs(self, key: ShuffleKey) -> Mapping[int, MapOutput]:
        """Return a read-only live view of a shuffle's map outputs by attempt id."""
        return self._index.outputs_of(key)

    def release_shuffle(self, key: ShuffleKey, end: int | None = None) -> int:
        """Forget a shuffle, or its map attempts below ``end``.

        Its space becomes free when the release is written and its last reader has ended. Running
        commits of the shuffle fail with ReleasedDuringCommit.

        Returns:
            Number of stored bytes released. Wait for :meth:`released` until it survives a restart.

        Raises:
            StorageClosed: The store was closed.
        """
        self._check_open()
        is_new = self.releases.add(key, end)
        if self.remote is not None:
            self.remote.released(key, end, is_new=is_new)
        below = MAX_I64 + 1 if end is None else end
        refused = self._journal.refuse(lambda each: each.shuffle == key and each[1] < below)
        entry = self._index.pop(key) if end is None else self._index.pop_below(key, end)
        secured = self._index.pop_released(lambda each: each.shuffle == key and each[1] < below)
        row = rows.pack_release(key, end)
        if not (entry or refused or secured or is_new or self._storage.is_lacking(row)):
            return 0
        self._journal.release(row, [*secured, *regions_of([entry])])
        return 0 if entry is None else entry.stored_bytes

    def release_application(self, application_id: str) -> int:
        """Forget all shuffles of an application, like :meth:`release_shuffle`."""
        self._check_open()
        if self.remote is not None:
            self.remote.forget(application_id)
        refused = self._journal.refuse(lambda each: each.shuffle.application_id == application_id)
        keys = self._index.shuffles_of(application_id)
        secured = self._index.pop_released(lambda each: each[0].application_id == application_id)
        had_releases = self.releases.forget(application_id)
        row = rows.pack_release_application(application_id)
        if not (keys or refused or secured or had_releases or self._storage.is_lacking(row)):
            return 0
        entries = [self._index.pop(key) for key in keys]
        self._journal.release(row, [*secured, *regions_of(entries)])
        return sum(entry.stored_bytes for entry in entries if entry is not None)

    def drop(self, output: MapOutput, why: str, *, report: bool = True) -> None:
        """Drop a map output; report it, or delete its remote copy, too, if it is replaced."""
        self._index.lose(output, why)
        row = rows.pack_drop_committed(output.key, output.map_attempt_id)
        self._journal.release(row, output.regions)
        if report:
            self._health.report_lost({output.key: [output.map_attempt_id]})
        elif self.remote is not None:
            self.remote.superseded(MapAttemptKey(output.key, output.map_attempt_id))

    def released(self) -> "asyncio.Future[None] | None":
        """Return a future for the last release to survive a restart; None: it does.

        It may fail with JournalWriteFailed or StorageClosed. Do not cancel it: it is shared.
        """
        return self._journal.released()

    def watch(
        self,
        on_lost: Callable[[Lost], None],
        on_unlocked: Callable[[str], None] | None = None,
        on_adopted: Callable[[Sequence[MapOutput]], None] | None = None,
    ) -> None:
        """Probe the directories and the remote tier until the store is closed.

        Args:
            on_lost: Called with the map attempts that were lost with a directory, by shuffle.
            on_unlocked: Called with a description when the lock of a directory is gone.
            on_adopted: Called with the map outputs of a directory that did not answer at the start.
        """
        self._health.watch(on_lost, on_unlocked, on_adopted)
        remote = self._tiers.remote
        if remote is not None:
            from .remote.remote_watch import RemoteWatch

            self._remote_watch = RemoteWatch(remote, self._known_applications, self._config)

    def _known_applications(self) -> set[str]:
        held = {account.application_id for account in self.accounts.in_use()}
        return held if self.remote is None else held | self.remote.applications()

    async def move_to_remote(self, output: MapOutput) -> None:
        """Copy a committed map output to the remote tier, where any TaskManager finds it.

        The local copy is served and counted as before, until it is released. The remote copy is
        removed when its shuffle is released on a TaskManager that moved or found it, when its
        application ends, or as an orphan.

        Args:
            output: A committed map output; it may be released during the call.

        Raises:
            StorageUnavailable: There is no remote tier.
            RemoteFailed: The upload failed, or cannot be confirmed. Then others may find it.
            OtherRemoteOutput: The remote tier has one of the same name with other bytes.
            StorageReadFailed: Its bytes cannot be read. All errors of :meth:`read_all` are raised.
            STORAGE_CORRUPT: Its bytes do not match their checksum.
            StorageClosed: The store was closed.

        Cancellation: safe, uploaded parts are deleted.
        """
        self._check_open()
        if self.remote is None:
            raise StorageUnavailable("remote", "there is no remote tier", "Set [storage] remote")
        await self.remote.move(output)

    def application_ends(self, application_id: str) -> None:
        """Delete an ended application's objects in the remote tier, in the background."""
        if self.remote is not None and not self._closed:
            self.remote.ended(application_id)

    def _lose_objects(self, missing: set[object]) -> None:
        """Forget the map outputs whose objects are gone."""
        self._health.lose_outputs(
            lambda output: any(region.extent in missing for region in output.regions),
            "their objects in the remote tier",
        )

    def lost_of(self, application_id: str) -> Lost:
        """Return the lost map attempts of an application's unreleased shuffles."""
        return self._index.lost_of(application_id)

    def why_lost(self, key: ShuffleKey, map_attempt_id: int) -> str:
        """Return why a map output that was here is lost; empty: it is not."""
        return self._index.why_lost(key, map_attempt_id)

    async def read_all(
        self,
        reads: Sequence[ExtentRead],
        flow: Flow = OWN_FLOW,
        uses: "Sequence[Used]" = (),
        *,
        for_reader: bool = False,
    ) -> None:
        """Fill buffers from extents; see ``read_extents``.

        Raises:
            StorageError: A read failed.
            asyncio.CancelledError: Raised only after no thread uses the buffers, or the disk hangs.
        """
        try:
            await read_extents(reads, flow, uses, for_reader=for_reader)
        except RemoteObjectMissing as error:
            if self.remote is not None:
                self.remote.note_missing(error.extent)
            raise

    async def will_need(self, ranges: Sequence[ExtentRange], flow: Flow) -> None:
        """Advise the kernel which bytes a flow reads soon; see ``will_need``."""
        if not self._closed:
            await will_need(ranges, flow)

    def read_cached(self, reads: Sequence[ExtentRead]) -> bool:
        """Fill buffers at once if the page cache has all bytes; see ``read_cached``."""
        return read_cached(reads)

    def applications(self) -> list[str]:
        """Return the applications with map outputs or releases, including adopted ones."""
        return self._index.applications()

    def shuffles(self, application_id: str | None = None) -> list[ShuffleStatus]:
        """Return the status of each shuffle with committed map outputs, or of an application's."""
        return [
            ShuffleStatus(*key, len(entry.outputs), 0, entry.stored_bytes, entry.regions)
            for key, entry in self._index.entries(application_id)
        ]

    def tiers(self) -> list[TierStatus]:
        """Return the status of all tiers, then of directories left out at the start."""
        return self._tiers.status()

    def used_bytes(self) -> tuple[int, int]:
        """Return the bytes in use of the memory tier and of all disks; costs no system call."""
        return self._tiers.used_bytes()

    def remote_status(self) -> RemoteStatus:
        """Return the status of the remote tier; all zero without a remote tier."""
        return RemoteStatus() if self.remote is None else self.remote.status()

    @property
    def memory_refusals(self) -> int:
        """Regions sent to disk because of the fair shares of the memory tier."""
        return self._tiers.memory_refusals

    def wholes(self) -> dict[Resource, int]:
        """Return the total bytes that the tiers can hold, by resource."""
        return self._tiers.wholes()

    def waits(self) -> "Iterator[Wait]":
        """Yield the waits for directories and the remote tier, for status."""
        # Imported here: a TaskManager loads them only when its status is read.
        from .store_waits import waits_of_calls, waits_of_remote, waits_of_rows

        yield from waits_of_calls(self._storage.threads)
        yield from waits_of_rows(self._journal)
        if self.remote is not None:
            yield from waits_of_remote(self.remote)

    def statistics(self) -> StoreStatistics:
        """Return totals."""
        return StoreStatistics(
            map_outputs=self._index.map_outputs,
            stored_bytes=self._index.stored_bytes,
            commits=self._commits,
            adopted_map_outputs=self._adopted,
            forgotten_map_outputs=self._storage.forgotten,
            journal_bytes=self._journal.files.size_bytes,
            compactions=self._journal.files.compactions,
            repaired_map_outputs=self._index.repaired,
        )

    async def close(self) -> None:
        """Write the queued rows, then close all files and unlock the directories.

        The next process adopts the data. A directory that does not answer is given up: its rows
        fail, and its last thread closes it. Idempotent. Do not cancel it: it only waits for disks.
        """
        if self._closed:
            return
        self._closed = True
        late = self._storage.threads.abandon_later()
        await self._health.close()
        if self._remote_watch is not None:
            await self._remote_watch.close()
        if self.remote is not None:
            await self.remote.close()
        await self._journal.close()
        if self._tiers.remote is not None:
            await self._tiers.remote.close()
        await self._tiers.upkeep.end()
        await self._storage.threads.close()
        late.cancel()
        self._tiers.close(self._storage.threads)
        self._storage.unlock()

    def _check_open(self) -> None:
        if self._closed:
            raise StorageClosed
