"""The store of committed map outputs of one TaskManager: the facade of this package.

::

    begin_region() ─▶ RegionWriter ─finish()─▶ Region ─┐
    begin_region() ─▶ RegionWriter ─finish()─▶ Region ─┴─▶ MapOutput ─commit()─▶ journal ─▶ index
                                                                                  │
    read(extent, …), extent.view  ◀──────────────── lookup() / map_outputs() ◀────┘

One event-loop thread owns all state. Only :meth:`ShuffleStore.open` blocks (run it before serving,
or in a thread before the loop uses the store); disk accesses later are made by ``io_threads``
threads, journal writes by one more.

What survives: everything whose commit was acknowledged, through any death of the process, because
it lies in the page cache or in tmpfs. After a reboot the memory tier's outputs are forgotten.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from crc32c import crc32c

from sluice.shuffle.names import MapAttemptKey, ShuffleKey
from sluice.shuffle.taskmanager.sections import StorageConfig
from sluice.shuffle.taskmanager.store.arena import Extent, TierStatistics
from sluice.shuffle.taskmanager.store.disk_tier import DiskTier
from sluice.shuffle.taskmanager.store.errors import (
    CorruptRegion,
    DuplicateMapOutput,
    StorageClosed,
    StorageFull,
    StorageReadFailed,
)
from sluice.shuffle.taskmanager.store.extent_reader import ExtentRead, read_cached, read_extents
from sluice.shuffle.taskmanager.store.index import ShuffleEntry, ShuffleStatistics, StoreStatistics
from sluice.shuffle.taskmanager.store.journal_writer import JournalWriter
from sluice.shuffle.taskmanager.store.outputs import (
    MapOutput,
    OpenOutput,
    Region,
    cumulative_offsets,
)
from sluice.shuffle.taskmanager.store.recovery import OpenedStorage, open_storage
from sluice.shuffle.taskmanager.store.region_writer import RegionWriter
from sluice.shuffle.taskmanager.store.rows import pack_release_application, pack_release_shuffle
from sluice.shuffle.taskmanager.store.threads import run_in_thread

logger = logging.getLogger(__name__)

_VERIFY_BYTES = 1024 * 1024


class ShuffleStore:
    """Extents, journal and index of a TaskManager's data directories.

    Made by :meth:`open`. Every extent that is handed out stays valid as long as somebody holds a
    reference to it: retain it before using it across an ``await``, release it afterwards.
    """

    def __init__(self, config: StorageConfig, storage: OpenedStorage) -> None:
        if storage.journal is None:
            raise RuntimeError("storage without a journal")
        self._config = config
        self._storage = storage
        self._index = storage.index
        self._executor = ThreadPoolExecutor(config.io_threads, thread_name_prefix="sluice-storage")
        self._journal = JournalWriter(
            storage.journal, self._index, self._journal_directories, self._disk_failed
        )
        self._next_disk = 0
        self._background: set[asyncio.Task[None]] = set()
        self._busy: set[int] = set()
        self._commits = 0
        self._adopted = self._index.map_outputs
        self._closed = False
        for disk in storage.disks:
            disk.on_excess = self._trim_soon

    @classmethod
    def open(cls, config: StorageConfig) -> Self:
        """Lock the directories and adopt what a previous daemon committed there. Blocks.

        Directories that cannot be used are left out, with a logged reason.

        Raises:
            StorageInUse: Another process has one of the directories.
            StorageUnavailable: No data directory can be used.
        """
        return cls(config, open_storage(config))

    @property
    def taskmanager_id(self) -> str:
        """Stable random id of this TaskManager, 16 hex digits, kept in the data directories."""
        return self._storage.taskmanager_id

    def begin_region(
        self, key: ShuffleKey, first_subpartition: int, lengths: Sequence[int]
    ) -> RegionWriter:
        """Allot an extent for a region: in the memory tier if it has room, else on a disk.

        Args:
            key: The shuffle.
            first_subpartition: Number of the region's first subpartition; ``EVERY_SUBPARTITION``
                for a region whose bytes are those of each subpartition.
            lengths: Bytes of each of its subpartitions; one length then.

        Raises:
            StorageFull: No tier has room.
            StorageClosed: The store was closed.
            ValueError: A length is negative.
        """
        self._check_open()
        offsets = cumulative_offsets(lengths)
        length = offsets[-1]
        extent = self._allocate(length) if length else None
        return RegionWriter(key, extent, first_subpartition, offsets, self._executor)

    def commit(self, output: MapOutput) -> "asyncio.Future[None]":
        """Commit a map output: its row goes to the journal first, then it becomes visible.

        Commits that are made while a journal write is under way share the next one.

        Args:
            output: Its regions come from :meth:`RegionWriter.finish`. Once the future has succeeded
                they belong to the store; if this call or the future raises, they still belong to
                the caller, who releases them (:func:`release_regions`).

        Returns:
            A future that ends when the output survives the process and is visible. Cancelling it
            does not take the commit back; the store then looks after the regions in either case.
            It may fail with JournalWriteFailed, ReleasedDuringCommit or StorageClosed.

        Raises:
            DuplicateMapOutput: The map attempt is committed, or being committed.
            StorageClosed: The store was closed.
        """
        self._check_open()
        if self.lookup(output.key, output.map_attempt_id) is not None or self._journal.is_pending(
            output.key, output.map_attempt_id
        ):
            raise DuplicateMapOutput(*output.key, output.map_attempt_id)
        self._commits += 1
        return self._journal.commit(output)

    def secure(
        self, attempt: MapAttemptKey, num_subpartitions: int, regions: Sequence[Region]
    ) -> "asyncio.Future[None]":
        """Let the next regions of a map output survive the process before it is committed.

        Args:
            attempt: The map attempt; one call is under way at a time.
            num_subpartitions: Subpartitions of the shuffle.
            regions: They follow those secured before. Once the future has succeeded they belong to
                the store; if this call or the future raises, they still belong to the caller.

        Returns:
            A future as that of :meth:`commit`.

        Raises:
            DuplicateMapOutput: The map attempt is committed, or something of it is being written.
            StorageClosed: The store was closed.
        """
        self._check_open()
        if self.lookup(*attempt) is not None or self._journal.is_pending(*attempt):
            raise DuplicateMapOutput(*attempt.shuffle, attempt.map_attempt_id)
        return self._journal.secure(attempt, num_subpartitions, regions)

    def open_output(self, attempt: MapAttemptKey) -> OpenOutput | None:
        """Return what is secured of a map output that is not committed, or None."""
        return self._index.open_output(attempt)

    def open_outputs(self) -> list[OpenOutput]:
        """Return all map outputs of which something is secured."""
        return self._index.open_outputs()

    def pending(self, attempt: MapAttemptKey) -> "asyncio.Future[None] | None":
        """Return the future of a commit or of regions of a map attempt that are being written."""
        return self._journal.pending(attempt)

    def drop_open(self, attempt: MapAttemptKey) -> None:
        """Give up what is secured, or is being secured, of a map output. Idempotent."""
        if not self._closed:
            self._journal.drop(attempt)

    def lookup(self, key: ShuffleKey, map_attempt_id: int) -> MapOutput | None:
        """Return a committed map output, or None."""
        return self._index.get(key, map_attempt_id)

    def map_outputs(self, key: ShuffleKey) -> Mapping[int, MapOutput]:
        """Return a read-only live view of a shuffle's committed map outputs by attempt id."""
        return self._index.outputs_of(key)

    def release_shuffle(self, key: ShuffleKey) -> int:
        """Forget a shuffle. Extents that readers still hold are freed with their last reference.

        Commits under way to this shuffle fail with ReleasedDuringCommit.

        Returns:
            Stored bytes that were given up.

        Raises:
            StorageClosed: The store was closed.
        """
        self._check_open()
        refused = self._journal.refuse(lambda other: other == key)
        entry = self._index.pop(key)
        secured = self._release_open(lambda other: other == key)
        if entry is None and not refused and not secured:
            return 0
        self._journal.release(pack_release_shuffle(key))
        return 0 if entry is None else _release(entry)

    def release_application(self, application_id: str) -> int:
        """Forget all shuffles of an application, like :meth:`release_shuffle`."""
        self._check_open()
        refused = self._journal.refuse(lambda key: key.application_id == application_id)
        keys = self._index.shuffles_of(application_id)
        secured = self._release_open(lambda key: key.application_id == application_id)
        if not keys and not refused and not secured:
            return 0
        self._journal.release(pack_release_application(application_id))
        entries = [self._index.pop(key) for key in keys]
        return sum(_release(entry) for entry in entries if entry is not None)

    def _release_open(self, released: Callable[[ShuffleKey], bool]) -> int:
        """Forget what is secured of uncommitted map outputs of shuffles that are released."""
        outputs = [each for each in self._index.open_outputs() if released(each.key)]
        for output in outputs:
            self._index.pop_open(MapAttemptKey(output.key, output.map_attempt_id))
            output.release()
        return len(outputs)

    async def read(self, extent: Extent, offset: int, buffers: list[memoryview]) -> None:
        """Fill buffers from one extent; see :meth:`read_all`.

        Args:
            extent: It is retained meanwhile.
            offset: Position in the extent, in bytes.
            buffers: Filled completely, one behind the other.

        Raises:
            StorageReadFailed: The disk failed or gave less than was written.
            OutsideRegion: The range reaches beyond the extent.
            asyncio.CancelledError: Raised when no thread touches the buffers any more; their
                content is unknown.
        """
        await self.read_all([ExtentRead(extent, offset, buffers)])

    async def read_all(self, reads: Sequence[ExtentRead]) -> None:
        """Fill buffers from extents: copies in the memory tier, one call of a thread for the disk.

        Raises:
            StorageReadFailed: As :meth:`read`, like all the rest.
        """
        await read_extents(self._executor, reads)

    def read_cached(self, reads: Sequence[ExtentRead]) -> bool:
        """Fill buffers at once if the page cache has it all, as ``region_writer.read_cached``."""
        return read_cached(reads)

    async def verify(self, region: Region) -> None:
        """Compare a region's bytes with its checksum, in a thread.

        Raises:
            CorruptRegion: They differ.
            StorageReadFailed: The disk failed.
        """
        extent = region.extent
        found = 0
        if extent is not None:
            extent.retain()
            try:
                found = await run_in_thread(self._executor, _checksum, extent)
            except OSError as error:
                raise StorageReadFailed(
                    extent.tier.path, extent.offset, extent.length, 0, str(error)
                ) from error
            finally:
                extent.release()
        if found != region.crc32c:
            raise CorruptRegion(region.crc32c, found, repr(extent))

    def applications(self) -> list[str]:
        """Return the applications that have committed map outputs, adopted ones included."""
        return self._index.applications()

    def shuffles(self) -> list[ShuffleStatistics]:
        """Return what is stored per shuffle."""
        return [
            ShuffleStatistics(key, len(entry.outputs), entry.stored_bytes, entry.regions)
            for key, entry in self._index.entries()
        ]

    def tiers(self) -> list[TierStatistics]:
        """Return the state of all tiers, then the directories that were left out at the start."""
        left_out = [
            TierStatistics(
                kind="memory" if error.directory == self._config.memory_directory else "disk",
                directory=Path(error.directory),
                healthy=False,
                reason=error.reason,
                capacity_bytes=0,
                used_bytes=0,
                peak_used_bytes=0,
                touched_bytes=0,
                largest_free_bytes=0,
                extents=0,
            )
            for error in self._storage.left_out
        ]
        return [*(tier.statistics() for tier in self._storage.tiers), *left_out]

    def statistics(self) -> StoreStatistics:
        """Return totals."""
        return StoreStatistics(
            map_outputs=self._index.map_outputs,
            stored_bytes=self._index.stored_bytes,
            commits=self._commits,
            adopted_map_outputs=self._adopted,
            forgotten_map_outputs=self._storage.forgotten,
            journal_path=self._journal.journal.path,
            journal_bytes=self._journal.journal.size_bytes,
            journal_live_bytes=self._index.journal_bytes,
            compactions=self._journal.compactions,
        )

    async def close(self) -> None:
        """Write what is queued, wait for disk accesses, close all files, give up the locks.

        Data stays for the next process. Idempotent. Not to be cancelled; it waits for disks only.
        """
        if self._closed:
            return
        self._closed = True
        await self._journal.close()
        while self._background:
            await asyncio.wait(self._background)
        await asyncio.to_thread(self._executor.shutdown)
        self._storage.close()

    def _allocate(self, length: int) -> Extent:
        memory = self._storage.memory
        if memory is not None:
            extent = memory.allocate(length)
            if extent is not None:
                if memory.wants_backing:
                    self._back_ahead()
                return extent
        disks = self._storage.disks
        for step in range(len(disks)):
            # Round robin: as many spindles as there are, and no directory fills up alone.
            number = (self._next_disk + step) % len(disks)
            extent = disks[number].allocate(length)
            if extent is not None:
                self._next_disk = number + 1
                return extent
        tiers = self.tiers()
        detail = "; ".join(
            f"{tier.kind} {tier.directory} "
            + (f"has {tier.largest_free_bytes} in one piece" if tier.healthy else tier.reason)
            for tier in tiers
        )
        raise StorageFull(length, max(tier.largest_free_bytes for tier in tiers), detail)

    def _back_ahead(self) -> None:
        """Let a thread allot and touch the pages that are used next."""
        memory = self._storage.memory
        if memory is None or id(memory) in self._busy:
            return

        async def work() -> None:
            start, end = memory.backing_range()
            memory.prepared(end, await run_in_thread(self._executor, memory.prepare, start, end))

        self._in_background(id(memory), work())

    def _trim_soon(self, disk: DiskTier) -> None:
        """Give free space at the end of an arena back to the disk."""
        if id(disk) in self._busy or self._closed:
            return

        async def work() -> None:
            await asyncio.sleep(0)  # a release frees many extents in a row: trim once, after them
            while (trim := disk.begin_trim()) is not None:
                disk.end_trim(*trim, await run_in_thread(self._executor, disk.punch, *trim))

        self._in_background(id(disk), work())

    def _in_background(self, subject: int, work: Coroutine[Any, Any, None]) -> None:
        """Run upkeep of a tier, at most one at a time for each."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # an extent was released after the loop had ended
            work.close()
            return

        def ended(task: "asyncio.Task[None]") -> None:
            self._background.discard(task)
            self._busy.discard(subject)
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.error("upkeep of the storage failed", exc_info=error)

        task = loop.create_task(work)
        self._busy.add(subject)
        self._background.add(task)
        task.add_done_callback(ended)

    def _journal_directories(self) -> list[Path]:
        return [disk.directory for disk in self._storage.disks if disk.healthy]

    def _disk_failed(self, directory: Path, error: OSError) -> None:
        for disk in self._storage.disks:
            if disk.directory == directory:
                disk.note_failure(error)

    def _check_open(self) -> None:
        if self._closed:
            raise StorageClosed


def release_regions(regions: Iterable[Region]) -> None:
    """Give up regions that were finished but never committed."""
    for region in regions:
        region.release()


def _release(entry: ShuffleEntry) -> int:
    for output in entry.outputs.values():
        release_regions(output.regions)
    return entry.stored_bytes


def _checksum(extent: Extent) -> int:
    """Compute an extent's checksum. Runs in a thread, a piece at a time."""
    value = 0
    view = extent.view
    buffer = memoryview(bytearray(min(_VERIFY_BYTES, extent.length)))
    for start in range(0, extent.length, _VERIFY_BYTES):
        length = min(_VERIFY_BYTES, extent.length - start)
        if view is not None:
            value = crc32c(view[start : start + length], value)
        elif isinstance(extent.tier, DiskTier):
            extent.tier.read(extent.offset + start, [buffer[:length]])
            value = crc32c(buffer[:length], value)
    return value
