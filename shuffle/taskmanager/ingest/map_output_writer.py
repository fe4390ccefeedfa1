"""Receiving the output of one map attempt: its state machine and its regions.

::

    state        BeginRegion   RegionData    FinishPartition   AbortPartition
    OPEN         IN_REGION     ✗             FINISHING         ABORTED
    IN_REGION    ✗             IN_REGION,    ✗                 ABORTED
                               OPEN at the
                               region's end
    SECURING     ✗             ✗             ✗                 ABORTED
    FINISHING    ✗             ✗             ✗                 ABORTED

✗ is a :class:`MapOutputMismatch` that ends the partition. An empty region leaves OPEN as it is.
Committing is the caller's: FINISHING ends when all regions are written. SecureRegion leads from
OPEN to SECURING, and back when the complete regions outlive the process. SharedRegion is a whole
region in one message: it leaves OPEN as it is, too, and is allowed nowhere else.
"""

import asyncio
import enum
from collections.abc import Callable, Sequence
from functools import partial

from sluice.protocol.errors import SluiceError
from sluice.protocol.framing import PayloadMemory
from sluice.protocol.limits import MAX_U64
from sluice.protocol.messages import EVERY_SUBPARTITION
from sluice.shuffle.errors import MapOutputMismatch
from sluice.shuffle.memory import LocalBufferPool
from sluice.shuffle.names import MapAttemptKey, ShuffleKey
from sluice.shuffle.taskmanager.ingest.attached_area import CopiedRegion
from sluice.shuffle.taskmanager.ingest.region_receiver import (
    DiskRegionReceiver,
    MemoryRegionReceiver,
    RegionReceiver,
    WrittenRegion,
)
from sluice.shuffle.taskmanager.store.errors import ReleasedDuringCommit
from sluice.shuffle.taskmanager.store.outputs import MapOutput, Region
from sluice.shuffle.taskmanager.store.region_area import RegionArea
from sluice.shuffle.taskmanager.store.region_writer import RegionWriter
from sluice.shuffle.taskmanager.store.store import ShuffleStore, release_regions


class WriterState(enum.Enum):
    """States of a map output on its way in."""

    OPEN = "open"
    IN_REGION = "in region"
    SECURING = "securing"
    FINISHING = "finishing"
    ABORTED = "aborted"


class MapOutputWriter:
    """One map attempt's output while it is written.

    Args:
        store: Gives extents and takes regions.
        key: The shuffle.
        map_attempt_id: The attempt.
        num_subpartitions: Subpartitions of the shuffle.
        payload_bytes: Largest payload of a RegionData that is received into a segment.
        large_payload_bytes: Largest payload of one that is received into the memory tier, or into
            several segments.
        verify_checksums: Whether regions are checked as they arrive.
        pool: Gives the pool for writes to the disk tier; called when it is needed first.
        opened: Tells the producer the number of a region and the payload size it may use.
        grant: Sends credit to the producer.
        failed: Told when a region cannot be written, at a moment when nothing is being received.
        resumed: Whether it goes on behind the regions that are secured in the store.
    """

    def __init__(
        self,
        store: ShuffleStore,
        key: ShuffleKey,
        map_attempt_id: int,
        num_subpartitions: int,
        *,
        payload_bytes: int,
        large_payload_bytes: int,
        verify_checksums: bool,
        pool: Callable[[], LocalBufferPool],
        opened: Callable[[int, int], None],
        grant: Callable[[int], None],
        failed: Callable[[SluiceError], None],
        resumed: bool = False,
    ) -> None:
        self.key = key
        self.map_attempt_id = map_attempt_id
        self.num_subpartitions = num_subpartitions
        self.state = WriterState.OPEN
        self.total_bytes = 0
        """Bytes of the complete regions."""
        self._store = store
        self._payload_bytes = payload_bytes
        self._large_payload_bytes = large_payload_bytes
        self._verify_checksums = verify_checksums
        self._pool = pool
        self._opened = opened
        self._grant = grant
        self._failed = failed
        self._failure: SluiceError | None = None
        self._receiving = False
        """True while a payload arrives in memory of a region: it must stay that region's."""
        self._receiver: RegionReceiver | None = None
        self._written: list[WrittenRegion] = []
        self._secured = 0
        secured = store.open_output(MapAttemptKey(key, map_attempt_id)) if resumed else None
        if secured is not None:
            self._secured = len(secured.regions)
            self.total_bytes = secured.total_bytes

    @property
    def attempt(self) -> MapAttemptKey:
        """What is written."""
        return MapAttemptKey(self.key, self.map_attempt_id)

    @property
    def regions(self) -> int:
        """Regions so far, the one that is being received included."""
        return self._secured + len(self._written)

    def begin_region(
        self, region: int, first_subpartition: int, lengths: Sequence[int], crc32c: int
    ) -> None:
        """Begin a region and grant its first credit.

        With ``EVERY_SUBPARTITION`` as the first one, the bytes are those of each subpartition.

        Raises:
            MapOutputMismatch: Not the next region, more subpartitions than there are, not one
                length for every subpartition, wrong state.
            StorageFull: No place for it.
        """
        writer = self._begin("BeginRegion", region, first_subpartition, lengths)
        receiver: RegionReceiver
        if writer.in_memory:
            receiver = MemoryRegionReceiver(
                writer, crc32c, self._verify_checksums, self._large_payload_bytes
            )
        else:
            try:
                pool = self._pool()
            except SluiceError:
                writer.abort()
                raise
            receiver = DiskRegionReceiver(
                writer,
                crc32c,
                self._verify_checksums,
                segment_payload_bytes=self._payload_bytes,
                most_payload_bytes=self._large_payload_bytes,
                pool=pool,
                grant=self._grant,
                failed=self._region_failed,
            )
        self._written.append(receiver)
        if writer.length == 0:
            self._complete(receiver)
            return
        self._receiver = receiver
        self.state = WriterState.IN_REGION
        self._opened(region, receiver.payload_bytes)
        receiver.begin(self._grant)

    def copy_region(
        self,
        region: int,
        first_subpartition: int,
        lengths: Sequence[int],
        crc32c: int,
        area: RegionArea,
        offset: int,
    ) -> int:
        """Copy a region whose bytes lie in a region area; what fails shows when it is secured.

        Returns:
            Its bytes.

        Raises:
            MapOutputMismatch: As for :meth:`begin_region`, or it reaches beyond the area.
            StorageFull: No place for it.
        """
        writer = self._begin("SharedRegion", region, first_subpartition, lengths)
        copied = CopiedRegion(writer, crc32c, self._verify_checksums, area, offset)
        self._written.append(copied)
        self.total_bytes += copied.length
        return copied.length

    def _begin(
        self, what: str, region: int, first_subpartition: int, lengths: Sequence[int]
    ) -> RegionWriter:
        """Check what a producer says of its next region, and find a place for it."""
        self._require(WriterState.OPEN, what)
        if region != self.regions:
            raise MapOutputMismatch(
                "Regions of a map output must be numbered from 0 without gaps",
                value=region,
                limit=self.regions,
                map_attempt_id=self.map_attempt_id,
            )
        if first_subpartition == EVERY_SUBPARTITION:
            if len(lengths) != 1:
                raise MapOutputMismatch(
                    "Region of every subpartition must have one length",
                    value=len(lengths),
                    limit=1,
                    map_attempt_id=self.map_attempt_id,
                )
        elif first_subpartition + len(lengths) > self.num_subpartitions:
            raise MapOutputMismatch(
                "Region has lengths for more subpartitions than the shuffle has",
                value=first_subpartition + len(lengths),
                limit=self.num_subpartitions,
                map_attempt_id=self.map_attempt_id,
            )
        try:
            return self._store.begin_region(self.key, first_subpartition, lengths)
        except ValueError as error:
            raise MapOutputMismatch(
                "Lengths of a region do not add up to a size",
                value=error,
                limit=f"{MAX_U64} bytes",
                map_attempt_id=self.map_attempt_id,
            ) from error

    def payload_buffer(self, offset: int, length: int) -> PayloadMemory:
        """Supply the place for the next bytes of the region.

        Raises:
            MapOutputMismatch: Not in a region, or not the next bytes of it.
            CreditExceeded: No credit was granted for them.
            SluiceError: An earlier part of the map output could not be written.
        """
        if self._failure is not None:
            raise self._failure
        buffer = self._current("RegionData").payload_buffer(offset, length)
        self._receiving = buffer is not None
        return buffer

    def data_received(self, offset: int, length: int) -> None:
        """Take note that the bytes of a RegionData have come.

        Raises:
            MapOutputMismatch: As above.
            ChecksumMismatch: The region is complete and its checksum is wrong.
            SluiceError: An earlier part of the map output could not be written.
        """
        self._receiving = False
        if self._failure is not None:
            raise self._failure
        receiver = self._current("RegionData")
        if length == 0:
            raise MapOutputMismatch(
                "RegionData without data", value=0, limit=1, map_attempt_id=self.map_attempt_id
            )
        if receiver.received(length):
            self._receiver = None
            self.state = WriterState.OPEN
            self._complete(receiver)

    async def secure(self, region: int) -> None:
        """Let all regions so far outlive the process.

        Args:
            region: The last one, in the producer's count.

        Raises:
            MapOutputMismatch: Another one is the last, or it is not complete.
            SluiceError: A region could not be written, or not be secured.

        Cancellation: safe; what was secured by then stays in the store.
        """
        self._require(WriterState.OPEN, "SecureRegion")
        if region != self.regions - 1:
            raise MapOutputMismatch(
                "SecureRegion names another region than the last",
                value=region,
                limit=self.regions - 1,
                map_attempt_id=self.map_attempt_id,
            )
        self.state = WriterState.SECURING
        for each in self._written:
            await each.flush()
        if self.state is not WriterState.SECURING:
            return
        regions = [each.finish() for each in self._take_written()]
        self._secured += len(regions)
        try:
            secured = self._store.secure(self.attempt, self.num_subpartitions, regions)
        except SluiceError:
            release_regions(regions)
            raise
        secured.add_done_callback(partial(_secured, regions))
        await asyncio.shield(secured)
        if self.state is WriterState.SECURING:
            self.state = WriterState.OPEN

    async def finish(self, total_bytes: int, regions: int) -> MapOutput:
        """Wait until all regions are written, and put the map output together.

        Args:
            total_bytes: What the producer sent, in its own count.
            regions: How many regions it sent.

        Returns:
            The map output, to be committed. It owns the regions' extents.

        Raises:
            MapOutputMismatch: The totals differ, or a region is incomplete.
            SluiceError: A region could not be written.

        Cancellation: safe; abort afterwards.
        """
        self._require(WriterState.OPEN, "FinishPartition")
        if (total_bytes, regions) != (self.total_bytes, self.regions):
            raise MapOutputMismatch(
                "Totals of a map output do not add up",
                value=f"{total_bytes} bytes in {regions} regions",
                limit=f"{self.total_bytes} bytes in {self.regions} regions",
                map_attempt_id=self.map_attempt_id,
            )
        self.state = WriterState.FINISHING
        for each in self._written:
            await each.flush()
        if self.state is not WriterState.FINISHING:
            raise MapOutputMismatch(
                "Map output was aborted while it was finished", map_attempt_id=self.map_attempt_id
            )
        written = [each.finish() for each in self._take_written()]
        if self._secured:
            secured = self._store.open_output(self.attempt)
            if secured is None or len(secured.regions) != self._secured:
                release_regions(written)
                raise ReleasedDuringCommit(*self.key, self.map_attempt_id)
            secured.taken = True
            written = [*secured.regions, *written]
        return MapOutput(self.key, self.map_attempt_id, self.num_subpartitions, tuple(written))

    def abort(self) -> None:
        """Give everything up; what is being written is freed when the threads are done."""
        self.state = WriterState.ABORTED
        self._receiver = None
        for each in self._take_written():
            each.abort()

    def _take_written(self) -> list[WrittenRegion]:
        written, self._written = self._written, []
        return written

    def _region_failed(self, error: SluiceError) -> None:
        if self._failure is None:
            self._failure = error
            if not self._receiving:  # else data_received raises it, a moment later
                self._failed(error)

    def _complete(self, receiver: RegionReceiver) -> None:
        receiver.verify()
        self.total_bytes += receiver.length

    def _current(self, what: str) -> RegionReceiver:
        if self._receiver is None:
            self._require(WriterState.IN_REGION, what)
            raise MapOutputMismatch(f"{what} outside a region", map_attempt_id=self.map_attempt_id)
        return self._receiver

    def _require(self, state: WriterState, what: str) -> None:
        if self.state is not state:
            raise MapOutputMismatch(
                f"{what} is not allowed here",
                value=f"state {self.state.value}",
                limit=f"state {state.value}",
                map_attempt_id=self.map_attempt_id,
            )


def _secured(regions: list[Region], done: "asyncio.Future[None]") -> None:
    """Give regions up that could not be secured; nobody may wait for it any more."""
    if not done.cancelled() and done.exception() is not None:
        release_regions(regions)
