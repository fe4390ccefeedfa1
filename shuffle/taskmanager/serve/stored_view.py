"""Reading committed map outputs: the view of a blocking partition.

The requested range of every region is one slice; that of a broadcast region is read once for each
subpartition. Slices of the memory tier go out as they lie in the mapping, without a copy, when they
fill at least half a buffer; smaller ones are joined densely, so that a thousand blocks of 1 KB are
32 buffers. A group of buffers leaves room at its end: who receives it into segments needs one read
of the socket for it and for the head of the next message. Slices of the disk tier are read into
segments of the connection's read pool, a few at a time and never more than there is credit for: a
reader that does not consume holds no memory. What the page cache has is read at once, else threads
do it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from sluice.protocol.errors import SluiceError
from sluice.protocol.events import encode_end_of_partition
from sluice.protocol.limits import MAX_U32
from sluice.protocol.messages import DATA, EVENT
from sluice.shuffle.errors import internal_error
from sluice.shuffle.memory import (
    BufferGroup,
    ListenerHandle,
    LocalBufferPool,
    MemorySegment,
    runs_of_neighbours,
)
from sluice.shuffle.partition.view import DataListener, OutgoingBuffer
from sluice.shuffle.taskmanager.store.extent_reader import ExtentRead
from sluice.shuffle.taskmanager.store.outputs import MapOutput
from sluice.shuffle.taskmanager.store.shuffle_store import ShuffleStore
from sluice.shuffle.taskmanager.store.tier import Extent

_log = logging.getLogger(__name__)

READ_AHEAD_SEGMENTS = 8
"""Segments of one read: 256 KiB at the default size, enough to hide a thread's round trip."""


class _Slice(NamedTuple):
    """Bytes of an extent, to be read so many times before the next slice."""

    extent: Extent
    offset: int
    length: int
    times: int


class StoredPartitionView:
    """A view over a range of subpartitions of some map outputs.

    Args:
        store: Reads the disk tier.
        outputs: What to read; their order is chosen here, by place in the storage.
        start_subpartition: First subpartition wanted.
        end_subpartition: The one behind the last.
        segment_size_bytes: What to read into a segment from the disk tier.
        buffer_size_bytes: Largest buffer, or group of buffers, to give.
        credit_bytes: What one credit pays for: a buffer of a group.
        read_pool: Gives the pool for reads of the disk tier; called when it is needed first.
        listener: Told when a read of the disk tier is done.
    """

    is_local = True

    def __init__(
        self,
        store: ShuffleStore,
        outputs: Iterable[MapOutput],
        start_subpartition: int,
        end_subpartition: int,
        segment_size_bytes: int,
        buffer_size_bytes: int,
        credit_bytes: int,
        read_pool: Callable[[], LocalBufferPool],
        listener: DataListener,
    ) -> None:
        self.failure: SluiceError | None = None
        self._store = store
        self._segment_size_bytes = segment_size_bytes
        self._buffer_size_bytes = buffer_size_bytes
        self._credit_bytes = credit_bytes
        self._read_pool = read_pool
        self._listener = listener
        self._slices = _slices(outputs, start_subpartition, end_subpartition)
        self._left_bytes = sum(each.length * each.times for each in self._slices)
        self._total_bytes = self._left_bytes
        self._total_buffers = 0
        self._index = 0
        self._used = 0  # bytes taken from the slice at the index
        self._repeated = 0  # how often that slice was taken before
        self._ready: deque[BufferGroup] = deque()
        self._ready_segments = 0
        self._ready_buffers = 0  # the credit that they will cost
        self._given_bytes = 0  # of the first one, when it is given in parts
        self._reading = False
        self._reading_buffers = 0
        self._wanted_bytes = 0  # what there was credit for when it began to wait for a segment
        self._listener_handle: ListenerHandle | None = None
        self._end_sent = False
        self._released = False
        for each in self._slices:
            each.extent.retain()

    @property
    def backlog(self) -> int:
        """Data buffers still to come, if they are full; at most what the wire can say."""
        left = self._buffers_of(self._left_bytes)
        return min(self._ready_buffers + self._reading_buffers + left, MAX_U32)

    def is_available(self, credit: int) -> bool:
        """True if there is a buffer for the credit, the end, or a read to begin."""
        if self._end_sent or self._released:
            return False
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
        if not ready and not self._reading and self._slices[self._index].extent.view is not None:
            group = self._next_from_memory(
                min(self._buffer_size_bytes, credit * self._credit_bytes)
            )
            self._total_buffers += self._buffers_of(len(group.payload))
            return group
        if (
            not self._reading
            and credit > self._ready_buffers
            and self._ready_segments <= READ_AHEAD_SEGMENTS // 2
            and self._on_disk()
        ):
            self._begin_read((credit - self._ready_buffers) * self._credit_bytes)
        if not ready:
            return None
        return self._next_from_disk(min(self._buffer_size_bytes, credit * self._credit_bytes))

    def release(self) -> None:
        """Give up reading."""
        if self._released:
            return
        self._released = True
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
        pieces: list[memoryview] = []
        room = size
        while room and self._left_bytes:
            extent, offset, length, _ = self._slices[self._index]
            if extent.view is None:
                break
            start = offset + self._used
            count = min(length - self._used, room)
            pieces.append(extent.view[start : start + count])
            room -= count
            self._advance(count)
        return OutgoingBuffer(b"".join(pieces), None, DATA)

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
        """Give what was read: a whole group of segments, or the part that may be sent now."""
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
        reads, groups = self._plan(pool, [segment], most_bytes, pool.request_segment_nowait)
        if self._store.read_cached(reads):
            self._read_ended(groups)
        else:
            self._start_reading(reads, groups)

    def _segment_came(self, segment: MemorySegment | None) -> bool:
        """Take the segment waited for (None: the pool is gone, and this view with it)."""
        self._reading = False
        if segment is None or self._released:
            return False
        self._reading = True
        pool = self._read_pool()
        # What was recycled together stays together: neighbours go out as one piece.
        # In any case later: who gives segments back must not be served in the midst of it.
        self._start_reading(*self._plan(pool, [segment], self._wanted_bytes, pool.take_more_nowait))
        return True

    def _plan(
        self,
        pool: LocalBufferPool,
        segments: list[MemorySegment],
        most_bytes: int,
        another: Callable[[], MemorySegment | None],
    ) -> tuple[list[ExtentRead], list[BufferGroup]]:
        """Say what to read next, and into which segments: those at hand and others."""
        most = -(-min(most_bytes, self._left_bytes) // self._segment_size_bytes)
        while len(segments) < min(most, READ_AHEAD_SEGMENTS):
            segment = another()
            if segment is None:
                break
            segments.append(segment)
        size = self._segment_size_bytes
        # A reader that takes less than a segment at a time leaves gaps: each is a run of its own.
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
        """Leave it to threads."""
        # From here on, and not from the task's first step: everybody else may let go before that.
        for read in reads:
            read.extent.retain()
        # The task is the only owner of the segments until the threads have done with them.
        self._task = asyncio.get_running_loop().create_task(self._read(reads, groups))

    def _on_disk(self) -> bool:
        return self._left_bytes > 0 and self._slices[self._index].extent.view is None

    def _plan_run(self, memory: memoryview, reads: list[ExtentRead]) -> int:
        """Fill memory from the slices at hand; return how many bytes it will hold."""
        filled = 0
        size = len(memory)
        while filled < size and self._on_disk():
            extent, offset, length, _ = self._slices[self._index]
            start = offset + self._used
            count = min(length - self._used, size - filled)
            piece = memory[filled : filled + count]
            if reads and reads[-1].extent is extent and self._used > 0:
                reads[-1].buffers.append(piece)  # goes on where the last read of this slice ends
            else:
                reads.append(ExtentRead(extent, start, [piece]))
            filled += count
            self._advance(count)
        return filled

    async def _read(self, reads: list[ExtentRead], groups: list[BufferGroup]) -> None:
        complete = False
        try:
            await self._store.read_all(reads)
            complete = True
        except SluiceError as error:
            self.failure = error
        except Exception as error:  # noqa: BLE001
            # A bug of ours must fail this channel and be seen, never pass for data.
            _log.exception("internal error while reading the disk tier")
            self.failure = internal_error(error)
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
        """Take over what was read."""
        self._reading = False
        self._ready.extend(groups)
        self._ready_segments += sum(len(group.segments) for group in groups)
        self._ready_buffers += self._reading_buffers
        self._reading_buffers = 0


def _view(extent: Extent) -> memoryview:
    if extent.view is None:
        raise SluiceError("An extent of the memory tier has no mapping", value=repr(extent))
    return extent.view


def _slices(outputs: Iterable[MapOutput], start: int, end: int) -> list[_Slice]:
    """List what to read: map attempts by place in the storage, regions of one in their order."""
    by_place: list[tuple[int, int, list[_Slice]]] = []
    for output in outputs:
        slices: list[_Slice] = []
        for region in output.regions:
            offset, length = region.slice(start, end)
            if length and region.extent is not None:
                times = region.repeats(start, end)
                slices.append(_Slice(region.extent, offset, length, times))
        if slices:
            extent = slices[0].extent
            by_place.append((0 if extent.view is not None else 1, extent.offset, slices))
    by_place.sort(key=lambda place: place[:2])
    return [piece for _, _, slices in by_place for piece in slices]
