"""Receiving one region: straight into the memory tier, or by segments onto the disk tier."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from crc32c import crc32c as update_crc32c

from sluice.protocol.errors import CreditExceeded, SluiceError
from sluice.protocol.framing import PayloadMemory
from sluice.protocol.limits import RECEIVE_TAIL_BYTES
from sluice.shuffle.errors import ChecksumMismatch, MapOutputMismatch, internal_error
from sluice.shuffle.memory import (
    BufferGroup,
    ListenerHandle,
    LocalBufferPool,
    MemorySegment,
    group_neighbours,
    memory_to_receive,
)
from sluice.shuffle.taskmanager.store.outputs import Region
from sluice.shuffle.taskmanager.store.region_writer import RegionWriter

_log = logging.getLogger(__name__)


class WrittenRegion(Protocol):
    """What a map output needs of a region, however its bytes come."""

    @property
    def length(self) -> int:
        """Bytes of the region."""

    async def flush(self) -> None:
        """Wait until every byte is where it belongs."""

    def finish(self) -> Region:
        """End the complete, flushed region; the caller owns its extent then."""

    def abort(self) -> None:
        """Give the region up."""


class RegionReceiver(WrittenRegion, Protocol):
    """What it needs of one that comes in messages."""

    @property
    def payload_bytes(self) -> int:
        """Largest payload; every one but the last has that size."""

    def begin(self, grant: Callable[[int], None]) -> None:
        """Grant the first credit."""

    def payload_buffer(self, offset: int, length: int) -> PayloadMemory:
        """Supply the place for the next bytes."""

    def received(self, length: int) -> bool:
        """Take note of the bytes; True when the region is complete."""

    def verify(self) -> None:
        """Compare the checksum of the complete region."""


class _Progress:
    """Position and checksum of a region, the part that both kinds have in common."""

    def __init__(self, writer: RegionWriter, crc32c: int, verify_checksums: bool) -> None:
        self.writer = writer
        self.length = writer.length
        self.position = 0
        self._expected_crc32c = crc32c
        self._crc32c = 0
        self._verify_checksums = verify_checksums

    def require(self, offset: int, length: int) -> None:
        """Check that bytes are the next ones and within the region.

        Raises:
            MapOutputMismatch: They are not.
        """
        if offset != self.position or offset + length > self.length:
            raise MapOutputMismatch(
                "RegionData is not the next part of its region",
                value=f"{length} bytes at {offset}",
                limit=f"{self.length - self.position} bytes at {self.position}",
            )

    def add(self, data: memoryview) -> bool:
        """Count and checksum bytes that came; True when the region is complete."""
        if self._verify_checksums:
            self._crc32c = update_crc32c(data, self._crc32c)
        self.position += len(data)
        return self.position == self.length

    def verify(self) -> None:
        """Compare checksums.

        Raises:
            ChecksumMismatch: They differ.
        """
        if self._verify_checksums and self._crc32c != self._expected_crc32c:
            raise ChecksumMismatch(
                "Region arrived with a wrong checksum",
                value=f"{self._crc32c:#010x}",
                limit=f"{self._expected_crc32c:#010x}",
                remedy="The map task is run again; if it repeats, check memory and network",
            )


class MemoryRegionReceiver:
    """Receives into the mapping of the memory tier: no segment, no copy, all credit at once."""

    def __init__(
        self, writer: RegionWriter, crc32c: int, verify_checksums: bool, payload_bytes: int
    ) -> None:
        self.payload_bytes = payload_bytes
        self._progress = _Progress(writer, crc32c, verify_checksums)
        self._view = writer.view
        self.length = writer.length
        self._crc32c = crc32c

    def begin(self, grant: Callable[[int], None]) -> None:
        """Grant what the whole region needs: its memory is there already."""
        grant(-(-self.length // self.payload_bytes))

    def payload_buffer(self, offset: int, length: int) -> PayloadMemory:
        """Supply the place of the bytes, with tail room as far as the region reaches."""
        self._progress.require(offset, length)
        return self._view[offset : offset + length + RECEIVE_TAIL_BYTES]

    def received(self, length: int) -> bool:
        """Take note of the bytes; True when the region is complete."""
        position = self._progress.position
        return self._progress.add(self._view[position : position + length])

    def verify(self) -> None:
        """Compare the checksum of the complete region."""
        self._progress.verify()

    async def flush(self) -> None:
        """Every byte is there as soon as it is received."""

    def finish(self) -> Region:
        """End the region."""
        self._view = memoryview(b"")
        return self._progress.writer.finish(self._crc32c)

    def abort(self) -> None:
        """Give the extent back."""
        self._view = memoryview(b"")
        self._progress.writer.abort()


class DiskRegionReceiver:
    """Receives into segments that threads write to the disk tier.

    The segments of a payload are granted as one credit, filled, written with their neighbours, and
    granted again: what is in memory is never more than the partition's pool, however slow the disk.
    A payload is as large as the pool has segments for when the region begins. So many stay here
    until the last one is granted, so that the region goes on whatever others take of the pool.

    Args:
        writer: Writes to the extent.
        crc32c: What the region's checksum has to be.
        verify_checksums: Whether it is looked at.
        segment_payload_bytes: Largest payload in one segment.
        most_payload_bytes: Largest payload in several of them.
        pool: The map output's segments.
        grant: Sends credit to the producer.
        failed: Told when the disk has failed.
    """

    def __init__(
        self,
        writer: RegionWriter,
        crc32c: int,
        verify_checksums: bool,
        *,
        segment_payload_bytes: int,
        most_payload_bytes: int,
        pool: LocalBufferPool,
        grant: Callable[[int], None],
        failed: Callable[[SluiceError], None],
    ) -> None:
        self._progress = _Progress(writer, crc32c, verify_checksums)
        self.length = writer.length
        self._crc32c = crc32c
        self._pool = pool
        self._grant = grant
        self._failed = failed
        self._segment_payload_bytes = segment_payload_bytes
        self._free: list[MemorySegment] = []
        self._payload_segments = self._reserve(most_payload_bytes)
        self.payload_bytes = segment_payload_bytes * self._payload_segments
        self._granted: deque[list[MemorySegment]] = deque()
        """The segments of each credit."""
        self._ungranted_bytes = writer.length
        self._waiting: ListenerHandle | None = None
        self._arriving: list[BufferGroup] = []
        self._filled: list[BufferGroup] = []
        self._write_offset = 0
        self._writing: asyncio.Task[None] | None = None
        self._failure: SluiceError | None = None
        self._aborted = False

    def begin(self, grant: Callable[[int], None]) -> None:
        """Grant as much as the pool has segments for now."""
        self._grant_more()

    def payload_buffer(self, offset: int, length: int) -> PayloadMemory:
        """Supply the segments that were granted.

        Raises:
            CreditExceeded: None was.
        """
        self._progress.require(offset, length)
        if not self._granted:
            raise CreditExceeded("RegionData without credit", value=length, limit=0)
        segments = self._granted[0]
        most = len(segments) * self._segment_payload_bytes
        if length > most:
            raise MapOutputMismatch(
                "RegionData is larger than the payload size of its region", value=length, limit=most
            )
        needed = -(-length // self._segment_payload_bytes)
        self._arriving = group_neighbours(segments[:needed], length, self._recycled)
        return memory_to_receive(self._arriving)

    def received(self, length: int) -> bool:
        """Checksum the bytes and hand them to the writing threads; True when complete."""
        segments = self._granted.popleft()
        groups, self._arriving = self._arriving, []
        used = sum(len(group.segments) for group in groups)
        if used < len(segments):
            self._recycled(segments[used:])
        complete = False
        for group in groups:
            complete = self._progress.add(group.payload)
        self._filled += groups
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())
        return complete

    def verify(self) -> None:
        """Compare the checksum of the complete region."""
        self._progress.verify()

    async def flush(self) -> None:
        """Wait for the threads.

        Raises:
            SluiceError: A write failed.

        Cancellation: safe, the threads go on.
        """
        if self._writing is not None:
            await asyncio.shield(self._writing)
        if self._failure is not None:
            raise self._failure

    def finish(self) -> Region:
        """End the region."""
        return self._progress.writer.finish(self._crc32c)

    def abort(self) -> None:
        """Give everything back; segments in the hands of a thread follow when it is done."""
        if self._aborted:
            return
        self._aborted = True
        if self._waiting is not None:
            self._waiting.cancel()
        while self._granted:
            self._pool.recycle_together(self._granted.popleft())
        self._give_back_free()
        if self._writing is None or self._writing.done():
            self._drop_filled()
            self._progress.writer.abort()

    async def _write(self) -> None:
        """Write what has come, together, until there is nothing left."""
        while self._filled and self._failure is None and not self._aborted:
            batch, self._filled = self._filled, []
            length = sum(group.length for group in batch)
            try:
                await self._progress.writer.write(
                    self._write_offset, [group.payload for group in batch]
                )
            except SluiceError as error:
                self._failure = error
            except Exception as error:  # noqa: BLE001
                # A bug of ours must end this map output and be seen, not leave it waiting.
                _log.exception("internal error while writing the disk tier")
                self._failure = internal_error(error)
            self._write_offset += length
            for group in batch:
                group.recycle()
            if self._failure is not None:
                # At once, not when the region is complete: it never will be, for want of credit.
                if not self._aborted:
                    self._failed(self._failure)
            elif not self._aborted:
                self._grant_more()
        self._writing = None
        if self._aborted:
            self._drop_filled()
            self._progress.writer.abort()

    def _reserve(self, most_payload_bytes: int) -> int:
        """Take segments for the first payload; return of how many one is made."""
        pool = self._pool
        size = self._segment_payload_bytes
        # Half of the pool: one payload is written while the next one comes.
        most = min(most_payload_bytes // size, -(-self.length // size), pool.size_segments // 2)
        while len(self._free) < most:
            segment = pool.request_segment_nowait()
            if segment is None:
                break
            if segment.size_bytes != size:  # the producer takes less: there would be gaps
                most = 1
            self._free.append(segment)
        return max(1, len(self._free))

    def _grant_more(self) -> None:
        """Turn free segments into credit, as far as the region still needs them."""
        granted = 0
        free = self._free
        while self._ungranted_bytes > 0:
            wanted = -(-self._ungranted_bytes // self._segment_payload_bytes)
            wanted = min(wanted, self._payload_segments)
            while len(free) < wanted:
                segment = self._pool.request_segment_nowait()
                if segment is None:
                    break
                free.append(segment)
            if len(free) < wanted:
                self._wait()
                break
            self._granted.append(free[:wanted])
            del free[:wanted]
            self._ungranted_bytes -= self.payload_bytes
            granted += 1
        else:
            self._give_back_free()
        if granted:
            self._grant(granted)

    def _wait(self) -> None:
        if self._waiting is None or not self._waiting.is_waiting:
            handle = self._pool.add_listener(self._segment_came)
            if handle.is_waiting:  # else it was called already, and waits anew if need be
                self._waiting = handle

    def _segment_came(self, segment: MemorySegment | None) -> bool:
        self._waiting = None
        if (
            segment is None
            or self._aborted
            or self._failure is not None
            or self._ungranted_bytes <= 0
        ):
            return False
        self._free.append(segment)
        self._grant_more()
        return True

    def _recycled(self, segments: Sequence[MemorySegment]) -> None:
        """Keep as many segments as a payload needs; the others are for whoever is next."""
        missing = 0
        if self._ungranted_bytes > 0 and not self._aborted and self._failure is None:
            missing = max(0, self._payload_segments - len(self._free))
        self._free += segments[:missing]
        if missing < len(segments):
            self._pool.recycle_together(segments[missing:])

    def _give_back_free(self) -> None:
        free, self._free = self._free, []
        self._pool.recycle_together(free)

    def _drop_filled(self) -> None:
        filled, self._filled = self._filled, []
        for group in filled:
            group.recycle()
