"""One region of a map output that is received into segments and written to disk, or remotely."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic

from ....protocol.errors import CreditExceeded, SluiceError
from ....protocol.framing import PayloadMemory
from ....transport.loop import start_task
from ...errors import MapOutputMismatch, failure_of
from ...memory import (
    BufferGroup,
    ListenerHandle,
    LocalBufferPool,
    MemorySegment,
    group_neighbours,
    memory_to_receive,
)
from ..store.region_writer import RegionWriter
from .incoming_region import ReceivedRegion, ReceiveSettings


class DiskRegion(ReceivedRegion):
    """A region received into segments that are written to disk, or copied for an upload.

    The segments of a payload are granted as one credit, filled, written with their neighbours, and
    granted again: memory never holds more than the partition's pool, however slow the disk is. An
    upload takes them over up to its budget; beyond that the region waits for the upload.
    A payload is as large as the pool has segments for when the region begins. The region keeps that
    many until the last one is granted, so that it goes on even if others empty the pool.

    Args:
        writer: Writes to the extent.
        crc32c: The checksum that the producer announced.
        settings: How regions are received on this connection.
        pool: The map output's segments.
        grant: Sends credit to the producer.
        failed: Called with the error when the disk has failed.
    """

    def __init__(
        self,
        writer: RegionWriter,
        crc32c: int,
        settings: ReceiveSettings,
        pool: LocalBufferPool,
        grant: Callable[[int], None],
        failed: Callable[[SluiceError], None],
    ) -> None:
        size = settings.segment_payload_bytes
        super().__init__(writer, crc32c, settings.verify_checksums, size)
        self._pool = pool
        self._grant = grant
        self._failed = failed
        self._segment_payload_bytes = size
        self._free: list[MemorySegment] = []
        self._payload_segments = self._reserve(settings.large_payload_bytes)
        self.payload_bytes = size * self._payload_segments
        self._granted: deque[list[MemorySegment]] = deque()
        """The segments of each credit."""
        self._ungranted_bytes = writer.length
        self._waiting: ListenerHandle | None = None
        self._arriving: list[BufferGroup] = []
        self._filled: list[BufferGroup] = []
        self._write_offset = 0
        self._writing: asyncio.Task[None] | None = None
        self._write_began: float | None = None
        self._failure: SluiceError | None = None
        self._aborted = False

    @property
    def is_writing(self) -> bool:
        """Whether threads write segments, or an upload is running."""
        return self._writing is not None or self._writer.is_uploading

    @property
    def write_began(self) -> float | None:
        """Time of the last write, as of ``time.monotonic()``; None before the first."""
        return self._write_began

    @property
    def waits_for_segment(self) -> bool:
        """Whether the next credit waits for a segment of the pool."""
        return self._waiting is not None and self._waiting.is_waiting

    def begin(self) -> None:
        """Grant credit for as many segments as the pool has now."""
        self._grant_more()

    def payload_buffer(self, offset: int, length: int) -> PayloadMemory:
        """Supply the segments of the oldest credit.

        Raises:
            MapOutputMismatch: The bytes are not the next ones, or too many.
            CreditExceeded: No credit was granted for them.
        """
        self._require_next(offset, length)
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
        self._filled += groups
        complete = False
        for group in groups:
            complete = self._add(group.payload)
        if self._writing is None:
            self._writing = start_task(self._write())
        return complete

    async def flush(self) -> None:
        """Wait for the threads that write, and for the upload to the remote tier.

        Raises:
            SluiceError: A write failed.

        Cancellation: safe; both continue.
        """
        if self._writing is not None:
            await asyncio.shield(self._writing)
        if self._failure is not None:
            raise self._failure
        await self._writer.flush()

    def stop(self) -> None:
        """Stop granting credit and writing."""
        self._aborted = True
        if self._waiting is not None:
            self._waiting.cancel()

    def abort(self) -> None:
        """Free everything; segments that a thread writes follow when it is done.

        That may take as long as the disk hangs.
        """
        self.stop()
        while self._granted:
            self._pool.recycle_together(self._granted.popleft())
        self._give_back_free()
        if self._writing is None or self._writing.done():
            self._drop_filled()
            self._writer.abort()

    async def _write(self) -> None:
        """Write the filled segments, as many as there are at a time, until none is left."""
        while self._filled and self._failure is None and not self._aborted:
            batch, self._filled = self._filled, []
            length = sum(group.length for group in batch)
            self._write_began = monotonic()
            try:
                payloads = [group.payload for group in batch]
                await self._writer.write(self._write_offset, payloads, batch)
            except Exception as error:  # noqa: BLE001
                self._failure = failure_of(error, "writing the disk tier")
            self._write_offset += length
            for group in batch:
                group.recycle()
            if self._failure is not None:
                # Without further credit the region cannot be completed: it fails now.
                if not self._aborted:
                    self._failed(self._failure)
            elif not self._aborted:
                self._grant_more()
        self._writing = None
        if self._aborted:
            self._drop_filled()
            self._writer.abort()

    def _reserve(self, most_payload_bytes: int) -> int:
        """Take segments for the first payload; return the number of segments of a payload."""
        pool = self._pool
        size = self._segment_payload_bytes
        # Half of the pool: one payload is written while the next one comes.
        most = min(most_payload_bytes // size, -(-self.length // size), pool.size_segments // 2)
        try:
            while len(self._free) < most:
                segment = pool.request_segment_nowait()
                if segment is None:
                    break
                if segment.size_bytes != size:  # the producer sends less: segments would have gaps
                    most = 1
                self._free.append(segment)
        except BaseException:  # no region is made that could be aborted
            self._give_back_free()
            raise
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
            if handle.is_waiting:  # otherwise it was called already, and waits again if it must
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
        """Keep as many segments as a payload needs, and return the others to the pool."""
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
