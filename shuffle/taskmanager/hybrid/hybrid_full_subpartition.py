"""A subpartition of a full hybrid partition: several readers, each from the start.

The stream is numbered from its first buffer, and nothing leaves it before the subpartition is
released. A reader is a position: the number of the next buffer that it takes::

    runs in the tiers           │ spilling            │ queue of the pipelined subpartition
    0 … spilled_buffers - 1     │ in memory, and      │ in memory; the last one may be open
                                │ being written       │

A reader takes a buffer from memory while it is there (:mod:`.shared_buffers`), and from the tiers
afterwards. So one that keeps up reads nothing back. Opening a run moves the reader past it. A run
ends at each reader's position, so a reader that has taken buffers from memory finds a run that
begins there, and an open run does not grow.

If bytes are lost in a tier, or have changed, the partition fails: every reader would find that.

A flush lets readers take the open buffer; the first that does finishes it. A priority event keeps
its place, as in a stored partition.
"""

from collections.abc import Callable
from typing import Final

from ....protocol.errors import ErrorCode, SluiceError
from ....protocol.events import encode_end_of_partition
from ....protocol.limits import MAX_U32
from ....protocol.schema import BLOCKING_EVENT, DATA, EVENT
from ...errors import InvalidRequest
from ...memory import LocalBufferPool
from ...partition.partition_states import SubpartitionState
from ...partition.shared_buffer import BufferBuilder, BufferConsumer
from ...partition.view import DataListener, OutgoingBuffer, SubpartitionOwner
from ..serve.stored_partition_view import ReadSizes
from ..store.errors import RemoteObjectMissing, SpilledBytesDamaged, StorageReadFailed
from ..store.tiers.tier import Extent
from .kept_runs import KeptRuns
from .shared_buffers import SharedBuffers
from .spilled_runs import ReadBack, RunReader, SpilledRuns
from .spilling_subpartition import SpillingSubpartition

MAX_READERS: Final = 64
"""Most readers of a subpartition at a time: each costs time for every buffer."""


class HybridFullSubpartition(SpillingSubpartition):
    """A subpartition that keeps all buffers. Its owner is notified when it was first read whole.

    Args:
        index: The number in the partition.
        owner: Notified when the first reader that has taken the end releases its view.
        runs: Makes spilled runs and opens them.
        completed: Called when there may be another complete buffer, which can be spilled.
        shared: Counts the buffers that readers of the partition have taken from memory.
        damaged: Called when spilled bytes are lost or have changed. It fails the partition.
    """

    __slots__ = (
        "_damaged",
        "_first_unread",
        "_kept",
        "_shared",
        "_views",
        "_was_consumed",
    )

    def __init__(
        self,
        index: int,
        owner: SubpartitionOwner,
        runs: SpilledRuns,
        completed: Callable[[], None],
        shared: SharedBuffers,
        damaged: Callable[[SluiceError], None],
    ) -> None:
        super().__init__(index, owner, runs, completed)
        self._shared = shared
        self._damaged = damaged
        self._kept = KeptRuns(runs)
        self._first_unread = 0
        self._views: list[HybridFullView] = []
        self._was_consumed = False

    # ---- the producer ------------------------------------------------------------------------

    def extend_last(self, data: memoryview) -> bool:
        """Copy bytes into the last buffer; False if a reader has passed it or it is full."""
        last_number = self._end - 1
        if any(view.next_number > last_number for view in self._views):
            return False
        return super().extend_last(data)

    def release(self, failure: SluiceError | None = None) -> BufferBuilder | None:
        """Release all buffers; readers that have not reached the end get the failure.

        Args:
            failure: The reason; by default, the release. Of several reasons the first one counts.

        Returns:
            The builder of the open buffer, if any; see :meth:`PipelinedSubpartition.release`.
        """
        if self.state is SubpartitionState.RELEASED:
            return None
        builder = self._drop_all(failure, "The hybrid partition was released")
        self._owner = None
        for view in list(self._views):
            view.fail(self._failure)
        return builder

    # ---- the spiller -------------------------------------------------------------------------

    def _keep(self, extent: Extent, offset: int, content: memoryview, data_type: int) -> None:
        number = self._kept.buffers
        is_stop = any(view.next_number == number for view in self._views)
        self._kept.add(extent, offset, content, data_type, begins_run=is_stop)

    # ---- the readers -------------------------------------------------------------------------

    def create_view(self, listener: DataListener) -> "HybridFullView":
        """Make another view. Its listener is called at once if there is something in memory.

        Raises:
            SluiceError: The subpartition failed or is released.
            SUBPARTITION_IN_USE: It has MAX_READERS.
        """
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if len(self._views) >= MAX_READERS:
            raise SluiceError(
                "A full hybrid subpartition has as many readers as it may",
                code=ErrorCode.SUBPARTITION_IN_USE,
                value=f"subpartition {self.index}",
                limit=MAX_READERS,
                remedy="Wait until one of them has left",
            )
        view = HybridFullView(self, listener)
        self._views.append(view)
        view.notify()
        return view

    @property
    def needs_segments(self) -> bool:
        """Whether a part is outside of memory, so that it is read into segments."""
        return self._kept.is_outside_memory

    @property
    def spilled_buffers(self) -> int:
        """Buffers in the tiers, and so the number of the first one in memory."""
        return self._kept.buffers

    @property
    def queued_buffers(self) -> int:
        """Buffers and events that no reader has taken."""
        return self._end - self._first_unread

    def backlog_from(self, number: int, read_back: ReadBack | None) -> int:
        """Return about how many buffers and events a reader gets from that number on."""
        in_memory = self.spilled_buffers + len(self._spilling) + self._complete - number
        if self._flushed:
            in_memory += 1
        if number >= self.spilled_buffers:
            return in_memory
        in_memory -= self.spilled_buffers - number
        if read_back is None:
            return in_memory
        messages = self._kept.messages_from(number, read_back.message_bytes)
        return min(in_memory + messages, MAX_U32)

    def has_in_memory(self, number: int) -> bool:
        """Whether a reader may take that buffer, which is not spilled, or a later one."""
        complete = self.spilled_buffers + len(self._spilling) + self._complete
        return number < complete or (number == complete and self._flushed)

    def take(self, number: int) -> OutgoingBuffer:
        """Take a buffer that is in memory, for one reader; for the others it stays."""
        index = number - self.spilled_buffers
        spilling = len(self._spilling)
        if index < spilling:
            consumer = self._spilling[index].consumer
        else:
            consumer = self._queue[index - spilling]
            if consumer is self._open:
                self.finish_open()
        piece = consumer.copy().build_last()
        self._count(number + 1, consumer, len(piece.payload))
        if consumer.data_type == DATA:
            return self._shared.take(piece)
        event = OutgoingBuffer(bytes(piece.payload), None, consumer.data_type)
        piece.recycle()
        return event

    def open_run(
        self, number: int, read_back: ReadBack, listener: DataListener
    ) -> tuple[int, RunReader]:
        """Open the run that begins with a spilled buffer, for one reader.

        Returns:
            The number of buffers in it, and its reader.
        """
        run = self._kept.at(number)
        for each in run.slices:
            each.extent.retain()
        self._first_unread = max(self._first_unread, number + run.buffers)
        return run.buffers, self._runs.open(run, self.index, read_back, listener)

    def taken(self, length: int) -> None:
        """Count data that a reader has taken from the tiers."""
        self.total_bytes += length
        self.total_buffers += 1

    def not_read(self, error: SluiceError) -> None:
        """Fail the partition if spilled bytes are gone; a disk that only hangs may come back."""
        is_lost = isinstance(error, StorageReadFailed) and error.is_lost
        if is_lost or isinstance(error, (SpilledBytesDamaged, RemoteObjectMissing)):
            self._damaged(error)

    def end_taken(self) -> None:
        """Record that a reader has taken the end."""
        self._end_taken = True

    def leaves(self, view: "HybridFullView", *, at_end: bool) -> None:
        """Forget a reader (called by its view, once)."""
        self._views.remove(view)
        owner = self._owner
        if at_end and not self._was_consumed and owner is not None:
            self._was_consumed = True
            owner.subpartition_consumed(self.index)

    # ---- inside ------------------------------------------------------------------------------

    @property
    def _end(self) -> int:
        """The number of the buffer that comes next, the open one included."""
        return self.spilled_buffers + len(self._spilling) + len(self._queue)

    def _count(self, end: int, consumer: BufferConsumer, length: int) -> None:
        self._first_unread = max(self._first_unread, end)
        if consumer.data_type == DATA:
            self.total_bytes += length
            self.total_buffers += 1

    def _tell_reader(self, *, again: bool = False) -> None:
        for view in list(self._views):
            view.notify()
        self._completed()  # what readers may take can be spilled, too

    def _drop_all(self, failure: SluiceError | None, reason: str) -> BufferBuilder | None:
        self._kept.free()
        return super()._drop_all(failure, reason)


class HybridFullView:
    """One reader, a :class:`~sluice.shuffle.partition.view.PipelinedView`.

    Attributes:
        failure: Why nothing more will come, once that is so.
        next_number: Number of the buffer that it takes next; behind a run that it is reading.
    """

    __slots__ = (
        "_blocked",
        "_end_taken",
        "_is_notified",
        "_listener",
        "_read_back",
        "_reading",
        "_released",
        "_subpartition",
        "_total_buffers",
        "_total_bytes",
        "failure",
        "next_number",
    )

    is_local = True

    def __init__(self, subpartition: HybridFullSubpartition, listener: DataListener) -> None:
        self.failure: SluiceError | None = None
        self.next_number = 0
        self._subpartition: Final = subpartition
        self._listener: Final = listener
        self._is_notified = False  # that it could take something, and will look again by itself
        self._blocked = False
        self._end_taken = False
        self._released = False
        self._read_back: ReadBack | None = None
        self._reading: RunReader | None = None
        self._total_bytes = 0
        self._total_buffers = 0

    def read_back_by(self, sizes: ReadSizes, read_pool: Callable[[], LocalBufferPool]) -> None:
        """Set how spilled bytes are read; without it the view gives none of them."""
        self._read_back = ReadBack(sizes, read_pool)
        self.notify()

    @property
    def backlog(self) -> int:
        """About how many buffers and events wait to be taken."""
        if self._blocked or self._released or self.failure is not None:
            return 0
        reading = 0 if self._reading is None else self._reading.backlog
        return reading + self._subpartition.backlog_from(self.next_number, self._read_back)

    @property
    def holds_segments(self) -> bool:
        """Whether segments wait for this reader: read ahead, or in the partition's pool."""
        reading = self._reading
        if reading is not None:
            return reading.holds_segments
        subpartition = self._subpartition
        is_in_memory = self.next_number >= subpartition.spilled_buffers
        return is_in_memory and subpartition.has_in_memory(self.next_number)

    @property
    def has_priority_event(self) -> bool:
        """False: a priority event keeps its place."""
        return False

    def is_available(self, credit: int) -> bool:
        """Whether that much credit is enough for the next buffer; the end needs none."""
        if self._blocked or self._end_taken or self._released:
            return False
        if self._reading is not None:
            return self._reading.is_available(credit)
        subpartition = self._subpartition
        if self.next_number < subpartition.spilled_buffers:
            return credit > 0 and self._read_back is not None
        if subpartition.has_in_memory(self.next_number):
            return credit > 0
        return subpartition.state is SubpartitionState.FINISHED

    def next_buffer(self, credit: int) -> OutgoingBuffer | None:
        """Take the next buffer; None if there is none yet, or not enough credit.

        Raises:
            SluiceError: The partition failed or was released, or bytes cannot be read back.
        """
        if self.failure is not None:
            raise self.failure.with_traceback(None)  # its frames would keep buffers alive
        if not self.is_available(credit):
            return None
        subpartition = self._subpartition
        if self._reading is None and self.next_number < subpartition.spilled_buffers:
            self._open_run()
        if self._reading is not None:
            buffer = self._next_read(self._reading, credit)
            if buffer is None:
                self._is_notified = False
                return None
        elif subpartition.has_in_memory(self.next_number):
            self.next_number += 1
            buffer = subpartition.take(self.next_number - 1)
        else:
            self._end_taken = True
            subpartition.end_taken()
            end = encode_end_of_partition(self._total_bytes, self._total_buffers)
            return OutgoingBuffer(end, None, EVENT)
        if buffer.data_type == DATA:
            self._total_bytes += len(buffer.payload)
            self._total_buffers += 1
        else:
            self._blocked = buffer.data_type == BLOCKING_EVENT
        self._is_notified = self.is_available(1)
        return buffer

    def take_more(self, most_bytes: int) -> OutgoingBuffer | None:
        """Return None: buffers in memory make room for others once they are sent."""
        return None

    def resume_consumption(self) -> None:
        """Resume after a blocking event.

        Raises:
            InvalidRequest: The reader has not taken a blocking event.
        """
        if self._blocked:
            self._blocked = False
            self.notify()
        elif not self._released and self.failure is None:
            raise InvalidRequest(
                "Channel is not blocked: nothing to resume", value=self._subpartition.index
            )

    def release(self) -> None:
        """Stop reading, at the end or before; buffers taken stay valid. Idempotent."""
        if self._released:
            return
        self._released = True
        self._stop_reading()
        self._subpartition.leaves(self, at_end=self._end_taken)

    def notify(self) -> None:
        """Notify the reader of new buffers, once."""
        if not self._is_notified and self.is_available(1):
            self._is_notified = True
            self._listener()

    def fail(self, failure: SluiceError | None) -> None:
        """Fail the reader, unless it has reached the end."""
        self._stop_reading()
        self._blocked = False
        if not self._end_taken:
            self.failure = failure
            self._listener()

    # ---- inside ------------------------------------------------------------------------------

    def _open_run(self) -> None:
        if self._read_back is None:
            raise RuntimeError("spilled bytes are read before it is set how")
        buffers, self._reading = self._subpartition.open_run(
            self.next_number, self._read_back, self._read_ended
        )
        self.next_number += buffers

    def _next_read(self, reading: RunReader, credit: int) -> OutgoingBuffer | None:
        try:
            buffer = reading.next_buffer(credit)
        except SluiceError as error:
            self._subpartition.not_read(error)
            raise
        if buffer is None:
            return None
        if buffer.data_type == DATA:
            self._subpartition.taken(len(buffer.payload))
        if reading.backlog == 0:
            self._stop_reading()
        return buffer

    def _stop_reading(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.release()

    def _read_ended(self) -> None:
        """Notify the reader: bytes have been read, or cannot be."""
        self._is_notified = False
        self.notify()
