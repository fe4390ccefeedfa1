"""Reading committed map outputs: the view of a stored partition.

Map outputs are read in the order of the request, so that a reader gets the same bytes in the same
order wherever the tiers hold them. The requested range of every region is one slice; that of a
broadcast region is read once for each subpartition.

Slices of the memory tier are sent straight from the mapping, without a copy, when they fill at
least half a buffer; smaller ones are joined densely, so that a thousand blocks of 1 KB are 32
buffers. A group of buffers leaves room at its end, so that its receiver needs one read of the
socket for it and for the head of the next message.

Slices of the disk tier are read into segments of the connection's read pool, a few at a time and
never more than there is credit for: a reader that does not consume holds no memory. Bytes in the
page cache are read at once, others by threads; objects of the remote tier are awaited, with more
segments at a time. Small slices of the memory tier that lie between them are copied into the same
segments, because outputs of several tiers may alternate.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from ....protocol.errors import SluiceError
from ....protocol.events import encode_end_of_partition
from ....protocol.limits import MAX_U32
from ....protocol.schema import DATA, EVENT
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
from ..store.files.fair_queue import Flow
from ..store.shuffle_store import ShuffleStore
from ..store.stored_outputs import MapOutput
from ..store.tiers.tier import Extent, ExtentRead

MAX_READY_SEGMENTS: Final = 4
"""A read begins when no more segments than these are ready."""


class ReadSizes(NamedTuple):
    """The units of one view, in bytes.

    Attributes:
        segment_bytes: Bytes to read into one segment from the disk tier.
        buffer_bytes: Largest buffer, or group of buffers, to give.
        credit_bytes: Bytes that one credit pays for: a buffer of a group.
    """

    segment_bytes: int
    buffer_bytes: int
    credit_bytes: int


class _Slice(NamedTuple):
    """Bytes of an extent, to be read ``times`` times before the next slice."""

    extent: Extent
    offset: int
    length: int
    times: int


class StoredPartitionView:
    """A view over a range of subpartitions of some map outputs.

    Args:
        store: Reads the disk tier.
        outputs: The map outputs to read, in the order to read them in.
        wanted: The subpartitions to read.
        sizes: How much a segment, a buffer and a credit stand for.
        read_pool: Gives the pool for reads of the disk tier; called when it is needed first.
        listener: Called when a read of the disk tier is done.
    """

    is_local = True

    def __init__(
        self,
        store: ShuffleStore,
        outputs: Iterable[MapOutput],
        wanted: SubpartitionRange,
        sizes: ReadSizes,
        read_pool: Callable[[], LocalBufferPool],
        listener: DataListener,
    ) -> None:
        self.failure: SluiceError | None = None
        self.shuffle = wanted.shuffle
        self.on_released: Callable[[StoredPartitionView], None] | None = None
        """Called when it is released."""
        self._store = store
        # Views of one connection have one read pool, so that it tells connections apart.
        self._flow = Flow(wanted.shuffle.application_id, id(read_pool))
        self._segment_size_bytes = sizes.segment_bytes
        self._buffer_size_bytes = self._message_bytes = sizes.buffer_bytes
        self._credit_bytes = sizes.credit_bytes
        self._read_pool = read_pool
        self._listener = listener
        self._slices = _slices(outputs, wanted.start, wanted.end)
        self._left_bytes = sum(each.length * each.times for each in self._slices)
        self._total_bytes = self._left_bytes
        self._total_buffers = 0
        self._index = 0
        self._used = 0  # bytes taken from the slice at the index
        self._repeated = 0  # times that this slice was taken before
        self._ready: deque[BufferGroup] = deque()
        self._ready_segments = 0
        self._ready_buffers = 0  # the credit that they will cost
        self._given_bytes = 0  # of the first group, when it is given in parts
        self._reading = False
        self._reading_buffers = 0
        self._wanted_bytes = 0  # the credit, in bytes, when it began to wait for a segment
        self._listener_handle: ListenerHandle | None = None
        self._end_sent = False
        self._released = False
        for each in self._slices:
            each.extent.retain()

    @property
    def backlog(self) -> int:
        """Data buffers still to come, if they are full; at most the wire's largest number."""
        left = self._buffers_of(self._left_bytes)
        return min(self._ready_buffers + self._reading_buffers + left, MAX_U32)

    @property
    def holds_segments(self) -> bool:
        """Whether bytes of the disk tier have been read, or are being read, and not taken."""
        return self._ready_segments > 0 or self._reading_buffers > 0

    def limit_message(self, buffers: int) -> None:
        """Give at most so many buffers together; more may be read ahead."""
        self._message_bytes = min(self._buffer_size_bytes, buffers * self._credit_bytes)

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
        """Take the next buffer; None while a read of the disk tier is under way."""
        if self.failure is not None:
            raise self.failure
        if self._end_sent or self._released:
            return None
        ready = self._ready
        if not ready and not self._left_bytes:
            if self._reading:
                return None
            self._end_sent = True
            event = encode_end_of_partition(self._total_bytes, self._total_buffers)
            return OutgoingBuffer(event, None, EVENT)
        if credit <= 0:
            return None
        if not ready and not self._reading and self._slices[self._index].extent.in_memory:
            group = self._next_from_memory(min(self._message_bytes, credit * self._credit_bytes))
            self._total_buffers += self._buffers_of(len(group.payload))
            return group
        if (
            not self._reading
            and credit > self._ready_buffers
            and self._ready_segments <= MAX_READY_SEGMENTS
            and self._on_disk()
        ):
            self._begin_read((credit - self._ready_buffers) * self._credit_bytes)
        if not ready:
            return None
        return self._next_from_disk(min(self._message_bytes, credit * self._credit_bytes))

    def fail(self, error: SluiceError) -> None:
        """Let the reader have an error in place of what is left."""
        if self.failure is None and not self._end_sent and not self._released:
            self.failure = error
            self._listener()

    def release(self) -> None:
        """Release what the view holds. Idempotent."""
        if self._released:
            return
        self._released = True
        if self.on_released is not None:
            self.on_released(self)
        if self._listener_handle is not None:
            self._listener_handle.cancel()
        for each in self._slices:
            each.extent.release()
        self._slices = []
        self._left_bytes = 0
        self._ready_segments = self._ready_buffers = 0
        while self._ready:
            self._ready.popleft().recycle()

    def _buffers_of(self, length: int) -> int:
        return -(-length // self._credit_bytes)

    # ---- memory tier ---------------------------------------------------------------------------

    def _next_from_memory(self, size: int) -> OutgoingBuffer:
        extent, offset, length, _ = self._slices[self._index]
        left = length - self._used
        if 2 * left >= size or self._left_bytes == left:
            count = min(size, left)
            start = offset + self._used
            piece = _view(extent)[start : start + count]
            extent.retain()
            self._advance(count)
            return OutgoingBuffer(piece, extent.release, DATA)
        return OutgoingBuffer(self._joined_from_memory(size), None, DATA)

    def _joined_from_memory(self, size: int) -> bytes:
        """Join the next slices of the memory tier; each map output may have one."""
        pieces: list[memoryview] = []
        room = size
        slices = self._slices
        index, used, repeated = self._index, self._used, self._repeated
        while room and index < len(slices):
            extent, offset, length, times = slices[index]
            if not extent.in_memory:
                break
            start = offset + used
            count = min(length - used, room)
            pieces.append(_view(extent)[start : start + count])
            room -= count
            used += count
            if used == length:
                used = 0
                repeated += 1
                if repeated == times:
                    repeated = 0
                    index += 1
        self._index, self._used, self._repeated = index, used, repeated
        self._left_bytes -= size - room
        return b"".join(pieces)

    def _advance(self, count: int) -> None:
        self._left_bytes -= count
        self._used += count
        current = self._slices[self._index]
        if self._used == current.length:
            self._used = 0
            self._repeated += 1
            if self._repeated == current.times:
                self._repeated = 0
                self._index += 1

    # ---- disk tier -----------------------------------------------------------------------------

    def _next_from_disk(self, most_bytes: int) -> OutgoingBuffer:
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
        buffers = self._buffers_of(len(payload))
        self._ready_buffers -= buffers
        self._total_buffers += buffers
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
            if at_once and self._store.read_cached(reads):
                self._read_ended(groups)
            else:
                self._start_reading(reads, groups)
        except Exception as error:  # noqa: BLE001 - as in a read that has begun
            self.failure = failure_of(error, "reading the disk tier")
            self._reading = False
            self._reading_buffers = 0
            pool.recycle_together(segments)

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
        if spare:  # the memory tier goes on from here
            pool.recycle_together(spare)
        self._reading_buffers = sum(self._buffers_of(group.length) for group in groups)
        return reads, groups

    def _start_reading(self, reads: list[ExtentRead], groups: list[BufferGroup]) -> None:
        """Let threads read."""
        # Retained here and not in the task's first step: all other owners may release before it.
        for read in reads:
            read.extent.retain()
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
                piece[:] = _view(extent)[start : start + count]
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
            await self._store.read_all(reads, self._flow)
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
                self._reading_buffers = 0
                for group in groups:
                    group.recycle()
        if not self._released:
            self._listener()

    def _read_ended(self, groups: list[BufferGroup]) -> None:
        """Queue the groups that were read."""
        self._reading = False
        self._ready.extend(groups)
        self._ready_segments += sum(len(group.segments) for group in groups)
        self._ready_buffers += self._reading_buffers
        self._reading_buffers = 0


def _view(extent: Extent) -> memoryview:
    view = extent.view
    if view is None:
        raise SluiceError("An extent of the memory tier has no mapping", value=repr(extent))
    return view


def _slices(outputs: Iterable[MapOutput], start: int, end: int) -> list[_Slice]:
    """List the slices: map outputs as requested, regions of each in their order."""
    slices: list[_Slice] = []
    for output in outputs:
        for region in output.regions:
            extent = region.extent
            if extent is None:
                continue
            offset, length = region.slice(start, end)
            if length:
                slices.append(_Slice(extent, offset, length, region.repeats(start, end)))
    return slices
