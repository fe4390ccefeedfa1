"""Reading ahead: the view of stored map outputs of which some are not in memory.

Slices of the disk tier are read into segments of the connection's read pool, a few at a time and
never more than there is credit for: a reader that does not consume holds no memory. Bytes in the
page cache are read at once, others by threads; objects of the remote tier are awaited, with more
segments at a time. :mod:`~sluice.shuffle.taskmanager.serve.look_ahead` keeps the disks busy
meanwhile. Small slices of the memory tier that lie between them are copied into the same
segments, because outputs of several tiers may alternate.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ....protocol.limits import MAX_U32
from ....protocol.schema import DATA
from ....transport.fair_queue import Flow
from ....transport.loop import start_task
from ...errors import failure_of
from ...memory import (
    BufferGroup,
    ListenerHandle,
    LocalBufferPool,
    MemorySegment,
    runs_of_neighbours,
)
from ...names import SubpartitionRange
from ...partition.view import DataListener, OutgoingBuffer
from ..store.shuffle_store import ShuffleStore
from ..store.tiers.tier import ExtentRead
from .look_ahead import LookAhead
from .stored_partition_view import MAX_COPIED_BYTES, ReadSizes, Slice, StoredPartitionView, mapped

MAX_READY_SEGMENTS: Final = 4
"""A read begins when no more segments than these are ready."""


class ReadAheadView(StoredPartitionView):
    """A view over slices of any tiers, which reads into segments what has no mapping.

    Args:
        store: Reads the extents.
        wanted: The subpartitions to read.
        slices: What to read, in order.
        sizes: How much a segment, a buffer and a credit stand for.
        read_pool: Gives the pool for reads; called when it is needed first.
        listener: Called when a read is done.
        on_released: Called with the view when it is released.
    """

    def __init__(
        self,
        store: ShuffleStore,
        wanted: SubpartitionRange,
        slices: Sequence[Slice],
        sizes: ReadSizes,
        read_pool: Callable[[], LocalBufferPool],
        listener: DataListener,
        on_released: Callable[[StoredPartitionView], None],
    ) -> None:
        super().__init__(wanted.shuffle, slices, sizes, listener, on_released)
        self._store = store
        # Each connection has one read pool, whose id identifies the connection.
        self._flow = Flow(wanted.shuffle.application_id, id(read_pool))
        self._segment_size_bytes = sizes.segment_bytes
        self._read_pool = read_pool
        self._ready: deque[BufferGroup] = deque()
        self._ready_segments = 0
        self._ready_bytes = 0
        self._given_bytes = 0  # of the first group, when it is given in parts
        self._reading = False
        self._reading_bytes = 0
        self._wanted_bytes = 0  # the credit, in bytes, when it began to wait for a segment
        self._listener_handle: ListenerHandle | None = None
        self._misses_cache = False
        self._read_place: object = None
        self._look_ahead = LookAhead(store, slices, self._flow)

    @property
    def backlog(self) -> int:
        """Data buffers still to come, if they are full; at most the wire's largest number."""
        left_bytes = self._ready_bytes + self._reading_bytes + self._left_bytes
        return min(self._buffers_of(left_bytes), MAX_U32)

    @property
    def holds_segments(self) -> bool:
        """Whether bytes have been read, or are being read, into segments and not taken."""
        return self._ready_segments > 0 or self._reading_bytes > 0

    @property
    def waits_for_segment(self) -> bool:
        """Whether a read waits for a segment of the read pool."""
        return self._listener_handle is not None and self._listener_handle.is_waiting

    @property
    def reads_from(self) -> str:
        """Directory or URL of the read under way; empty if none is."""
        if not self._reading or self.waits_for_segment or self._read_place is None:
            return ""
        return str(self._read_place)

    def is_available(self, credit: int) -> bool:
        """True if there is a buffer for the credit or the end, or if a read can begin."""
        if self._end_sent or self._released:
            return False
        if self.failure is not None:
            return True
        if self._ready:
            return credit > 0
        if self._reading:
            return False
        return credit > 0 or self._left_bytes == 0

    def next_buffer(self, credit: int) -> OutgoingBuffer | None:
        """Take the next buffer; None while a read is under way, or without credit."""
        if self.failure is not None:
            raise self.failure
        if self._end_sent or self._released:
            return None
        ready = self._ready
        if not ready and not self._left_bytes:
            return None if self._reading else self._end()
        if credit <= 0:
            return None
        self._copied_bytes = 0
        if not ready and not self._reading and self._slices[self._index].extent.in_memory:
            return self._next_from_memory(credit)
        wanted_bytes = credit * self._credit_bytes - self._ready_bytes
        if (
            not self._reading
            and wanted_bytes > 0
            and self._ready_segments <= MAX_READY_SEGMENTS
            and self._on_disk()
        ):
            self._begin_read(wanted_bytes)
        if not ready:
            return None
        return self._next_ready(min(self._message_bytes, credit * self._credit_bytes))

    def take_more(self, most_bytes: int) -> OutgoingBuffer | None:
        """Take data that has been read, or is in memory, for a message with the data before."""
        if self._released or self.failure is not None:
            return None
        if self._ready:
            return self._next_ready(most_bytes)
        if self._reading or not self._left_bytes or self._on_disk():
            return None
        if self._copied_bytes >= MAX_COPIED_BYTES:
            return None
        return self._take_from_memory(most_bytes)

    def release(self) -> None:
        """Release what the view holds. Idempotent."""
        if self._released:
            return
        super().release()
        if self._listener_handle is not None:
            self._listener_handle.cancel()
        self._look_ahead.stop()
        self._ready_segments = self._ready_bytes = 0
        while self._ready:
            self._ready.popleft().recycle()

    def _next_ready(self, most_bytes: int) -> OutgoingBuffer:
        """Give out a whole group of segments, or the part of it that may be sent now."""
        group = self._ready[0]
        start = self._given_bytes
        payload = group.payload
        if start or len(payload) > most_bytes:
            payload = payload[start : start + most_bytes]
        self._given_bytes = start + len(payload)
        if self._given_bytes < group.length:
            group.retain()
        else:
            self._given_bytes = 0
            self._ready.popleft()
            self._ready_segments -= len(group.segments)
        self._ready_bytes -= len(payload)
        self._total_buffers += self._buffers_of(len(payload))
        return OutgoingBuffer(payload, group.recycle, DATA)

    def _begin_read(self, most_bytes: int) -> None:
        """Read ahead into as many segments as there are, or wait for the first one."""
        pool = self._read_pool()
        segment = pool.request_segment_nowait()
        self._reading = True
        if segment is None:
            self._wanted_bytes = most_bytes
            self._listener_handle = pool.add_listener(self._segment_came)
            return
        self._read_into(pool, segment, most_bytes, pool.request_segment_nowait, at_once=True)
        # Not in the caller, which has looked at this attribute already: compiled code takes it for
        # None in the rest of that function, whatever is called in between.
        if self.failure is not None:
            raise self.failure

    def _segment_came(self, segment: MemorySegment | None) -> bool:
        """Take the segment waited for (None: the pool is gone, and this view with it)."""
        self._reading = False
        if segment is None or self._released:
            return False
        self._reading = True
        pool = self._read_pool()
        # Segments recycled together stay together: neighbours are sent as one piece. Always
        # deferred to a task: recycling calls this method and must not be re-entered.
        self._read_into(pool, segment, self._wanted_bytes, pool.take_more_nowait, at_once=False)
        if self.failure is not None:
            self._listener()
        return True

    def _read_into(
        self,
        pool: LocalBufferPool,
        segment: MemorySegment,
        most_bytes: int,
        another: Callable[[], MemorySegment | None],
        *,
        at_once: bool,
    ) -> None:
        """Read into a segment and others; a bug on the way fails this channel, and keeps none."""
        segments = [segment]
        try:
            reads, groups = self._plan(pool, segments, most_bytes, another)
            segments = [each for group in groups for each in group.segments]
            is_cached = at_once and self._store.read_cached(reads)
            if is_cached:
                self._read_ended(groups)
            else:
                self._start_reading(reads, groups)
        except Exception as error:  # noqa: BLE001 - as in a read that has begun
            self.failure = failure_of(error, "reading the disk tier")
            self._reading = False
            self._reading_bytes = 0
            pool.recycle_together(segments)
            return
        if at_once and not is_cached:
            self._misses_cache = True
        if self._misses_cache and self._left_bytes:
            self._look_ahead.advance(self._index, self._used, self._total_bytes - self._left_bytes)

    def _plan(
        self,
        pool: LocalBufferPool,
        segments: list[MemorySegment],
        most_bytes: int,
        another: Callable[[], MemorySegment | None],
    ) -> tuple[list[ExtentRead], list[BufferGroup]]:
        """Plan the next reads, into the given segments and others from ``another``."""
        most = -(-min(most_bytes, self._left_bytes) // self._segment_size_bytes)
        extent = self._slices[self._index].extent
        while len(segments) < min(most, extent.tier.read_ahead_segments):
            segment = another()
            if segment is None:
                break
            segments.append(segment)
        size = self._segment_size_bytes
        # A reader that takes less than a segment at a time leaves gaps: runs of one segment.
        gaps = size < segments[0].size_bytes
        runs = [[segment] for segment in segments] if gaps else runs_of_neighbours(segments)
        reads: list[ExtentRead] = []
        groups: list[BufferGroup] = []
        spare: list[MemorySegment] = []
        for run in runs:
            length = self._plan_run(run[0].run(len(run))[: len(run) * size], reads)
            used = -(-length // size)
            if used:
                groups.append(BufferGroup(run[:used], length, pool.recycle_together))
            spare += run[used:]
        if spare:  # a large slice of the memory tier comes next
            pool.recycle_together(spare)
        self._reading_bytes = sum(group.length for group in groups)
        return reads, groups

    def _start_reading(self, reads: list[ExtentRead], groups: list[BufferGroup]) -> None:
        """Let threads read."""
        # Retained here and not in the task's first step: all other owners may release before it.
        for read in reads:
            read.extent.retain()
        self._read_place = reads[0].extent.tier.place if reads else None
        # The task is the only owner of the segments until the threads are done with them.
        self._task = start_task(self._read(reads, groups))

    def _on_disk(self) -> bool:
        return self._left_bytes > 0 and not self._slices[self._index].extent.in_memory

    def _plan_run(self, memory: memoryview, reads: list[ExtentRead]) -> int:
        """Plan to fill memory from the next slices; return the bytes that it will hold."""
        filled = 0
        size = len(memory)
        while filled < size and self._left_bytes:
            extent, offset, length, _ = self._slices[self._index]
            start = offset + self._used
            count = min(length - self._used, size - filled)
            piece = memory[filled : filled + count]
            if extent.in_memory:
                # A large one is worth a buffer of its own, which needs no copy.
                if 2 * (length - self._used) >= self._segment_size_bytes:
                    break
                piece[:] = mapped(extent)[start : start + count]
            elif reads and reads[-1].extent is extent and self._used > 0:
                reads[-1].buffers.append(piece)  # continues the last read of this slice
            else:
                reads.append(ExtentRead(extent, start, [piece]))
            filled += count
            self._advance(count)
        return filled

    async def _read(self, reads: list[ExtentRead], groups: list[BufferGroup]) -> None:
        complete = False
        try:
            await self._store.read_all(reads, self._flow, groups, for_reader=True)
            complete = True
        except Exception as error:  # noqa: BLE001
            # Also a bug fails this channel, and never passes for data.
            self.failure = failure_of(error, "reading the disk tier")
        finally:
            for read in reads:
                read.extent.release()
            if complete and not self._released:
                self._read_ended(groups)
            else:
                self._reading = False
                self._reading_bytes = 0
                for group in groups:
                    group.recycle()
        if not self._released:
            self._listener()

    def _read_ended(self, groups: list[BufferGroup]) -> None:
        """Queue the groups that were read."""
        self._reading = False
        self._ready.extend(groups)
        self._ready_segments += sum(len(group.segments) for group in groups)
        self._ready_bytes += self._reading_bytes
        self._reading_bytes = 0


def stored_view(
    store: ShuffleStore,
    slices: Sequence[Slice],
    wanted: SubpartitionRange,
    sizes: ReadSizes,
    read_pool: Callable[[], LocalBufferPool],
    listener: DataListener,
    on_released: Callable[[StoredPartitionView], None],
) -> StoredPartitionView:
    """Return the view that fits the tiers of some slices; it takes over their references."""
    if all([each.extent.in_memory for each in slices]):
        return StoredPartitionView(wanted.shuffle, slices, sizes, listener, on_released)
    return ReadAheadView(store, wanted, slices, sizes, read_pool, listener, on_released)
