"""A subpartition of a hybrid partition: a pipelined one with a spilled part before its queue.

The stream of a reader has three parts. Buffers move from right to left; a failed write moves its
buffers back to the queue::

    spilled runs   │ spilling            │ queue of the pipelined subpartition
    in the tiers   │ in memory, and      │ in memory; the last one may be open
                   │ being written       │

The reader takes the leftmost bytes. It may take a buffer that is being written; the bytes written
for it are never read then. The states of a buffer are a table in
:mod:`sluice.shuffle.taskmanager.hybrid.hybrid_spiller`. Priority events are never spilled: they
overtake the other parts.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ....protocol.errors import SluiceError
from ....protocol.limits import MAX_EVENT_BYTES, MAX_U32
from ....protocol.schema import BLOCKING_EVENT, DATA
from ...memory import LocalBufferPool
from ...names import ShuffleKey, SubpartitionRange
from ...partition.partition_states import SubpartitionState
from ...partition.pipelined_subpartition import PipelinedSubpartition, PipelinedSubpartitionView
from ...partition.shared_buffer import BufferBuilder, BufferConsumer
from ...partition.view import DataListener, OutgoingBuffer, SubpartitionOwner
from ..bounds.accounts import Account
from ..serve.read_ahead_view import stored_view
from ..serve.stored_partition_view import ReadSizes, StoredPartitionView
from ..store.shuffle_store import ShuffleStore
from ..store.tiers.tier import Extent
from .spilled_run import SpilledRun


class Spilling(NamedTuple):
    """A buffer that is being written, and where.

    Attributes:
        consumer: Has the bytes, as long as they are not written.
        offset: Position in the extent.
        length: Length in bytes.
    """

    consumer: BufferConsumer
    offset: int
    length: int


class ReadBack(NamedTuple):
    """How a reader reads spilled bytes.

    Attributes:
        sizes: How much a segment, a buffer and a credit stand for.
        read_pool: Gives the pool for reads; called when it is needed first.
    """

    sizes: ReadSizes
    read_pool: Callable[[], LocalBufferPool]

    @property
    def message_bytes(self) -> int:
        """Most data of a message, which costs one credit."""
        return min(self.sizes.segment_bytes, self.sizes.credit_bytes)


class HybridSubpartition(PipelinedSubpartition):
    """A subpartition whose complete, unread buffers can be spilled.

    Args:
        index: The number in the partition.
        owner: Notified when the view is released.
        store: Reads the spilled bytes.
        key: The shuffle.
        account: The application that is charged for what is kept of spilled buffers.
        completed: Called when there may be another complete buffer, which can be spilled.
    """

    __slots__ = (
        "_account",
        "_completed",
        "_key",
        "_read_back",
        "_reading",
        "_spilled",
        "_spilled_buffers",
        "_spilled_messages",
        "_spilling",
        "_store",
    )

    def __init__(
        self,
        index: int,
        owner: SubpartitionOwner,
        store: ShuffleStore,
        key: ShuffleKey,
        account: Account,
        completed: Callable[[], None],
    ) -> None:
        super().__init__(index, owner)
        self._store = store
        self._key = key
        self._account = account
        self._completed = completed
        self._spilled: deque[SpilledRun] = deque()
        # In the runs that are not being read; messages are known once there is a reader.
        self._spilled_buffers = 0
        self._spilled_messages = 0
        self._spilling: deque[Spilling] = deque()
        self._reading: StoredPartitionView | None = None  # of the first run
        self._read_back: ReadBack | None = None

    # ---- the spiller -------------------------------------------------------------------------

    def begin_spilling(self, place: Callable[[BufferConsumer], Spilling | None]) -> int:
        """Move the complete buffers out of the queue, up to the first one that finds no place.

        Returns:
            The slices that :meth:`spilled` keeps of them; fewer if the reader takes some before.
        """
        slices = 0
        end = -1  # of the bytes that the next buffer may continue; an event is its own slice
        queue = self._queue
        while self._complete:
            placed = place(queue[0])
            if placed is None:
                break
            queue.popleft()
            self._complete -= 1
            self._spilling.append(placed)
            is_data = placed.consumer.data_type == DATA
            if not is_data or placed.offset != end:
                slices += 1
            end = placed.offset + placed.length if is_data else -1
        return slices

    def spilled(self, extent: Extent) -> None:
        """Record that the buffers are written, and free their memory."""
        while self._spilling:
            consumer, offset, length = self._spilling.popleft()
            data_type = consumer.data_type
            last = self._spilled[-1] if self._spilled else None
            if (
                last is None
                or not last.takes(data_type, extent, offset)
                or (len(self._spilled) == 1 and self._reading is not None)
            ):
                last = SpilledRun(data_type, self._account)
                self._spilled.append(last)
            self._spilled_messages -= self._messages_of(last)
            last.add(extent, offset, length)
            self._spilled_messages += self._messages_of(last)
            self._spilled_buffers += 1
            consumer.close()

    def not_spilled(self) -> None:
        """Move the buffers that could not be written back to the front of the queue."""
        spilling, self._spilling = self._spilling, deque()
        self._queue.extendleft(each.consumer for each in reversed(spilling))
        self._complete += len(spilling)

    # ---- the reader --------------------------------------------------------------------------

    def read_back_by(self, read_back: ReadBack) -> None:
        """Set how the reader reads spilled bytes; until then it finds none."""
        self._read_back = read_back
        self._spilled_messages = sum(map(self._messages_of, self._spilled))
        if self._spilled and self.is_available(1):
            self._tell_reader(again=True)

    @property
    def queued_buffers(self) -> int:
        """Buffers and events that wait, spilled ones included."""
        before = len(self._spilling) + self._spilled_buffers + self._reading_backlog
        return len(self._queue) + len(self._priority) + before

    @property
    def backlog(self) -> int:
        """Buffers and events that a reader with enough credit could take, without priority ones.

        What is spilled is joined when it is read, so it counts as the messages that it takes.
        """
        if self._blocked:
            return 0
        in_queue = self._complete + 1 if self._flushed else self._complete
        before = len(self._spilling) + self._spilled_messages + self._reading_backlog
        return min(in_queue + before, MAX_U32)

    @property
    def needs_segments(self) -> bool:
        """Whether a part is outside of memory, so that it is read into segments."""
        return any(not each.extent.in_memory for run in self._spilled for each in run.slices)

    @property
    def holds_segments(self) -> bool:
        """Whether a part is in memory: queued, being written, or read back and not taken."""
        reading = self._reading
        in_memory = bool(self._queue or self._spilling)
        return in_memory or (reading is not None and reading.holds_segments)

    def is_available(self, credit: int) -> bool:
        """Whether the reader could take something with that much credit."""
        if self._blocked or self._priority or not (self._spilled or self._spilling):
            return super().is_available(credit)
        if not self._spilled:
            return credit > 0
        reading = self._reading
        if reading is None:
            return credit > 0 and self._read_back is not None
        return reading.is_available(credit)

    def poll(self, credit: int) -> OutgoingBuffer | None:
        """Take the next buffer or event; None if that much credit is enough for nothing.

        Raises:
            SluiceError: Spilled bytes cannot be read.
        """
        if self._blocked or self._priority or not (self._spilled or self._spilling):
            return super().poll(credit)
        if self._spilled:
            buffer = self._next_spilled(credit)
        elif credit > 0:
            buffer = self._next_spilling()
        else:
            return None
        if buffer is not None:
            if buffer.data_type == DATA:
                self.total_bytes += len(buffer.payload)
                self.total_buffers += 1
            else:
                self._blocked = buffer.data_type == BLOCKING_EVENT
        self._reader_knows = self.is_available(1)
        return buffer

    # ---- inside ------------------------------------------------------------------------------

    def _make_view(self, listener: DataListener) -> "HybridSubpartitionView":
        return HybridSubpartitionView(self, listener)

    @property
    def _reading_backlog(self) -> int:
        return 0 if self._reading is None else self._reading.backlog

    def _messages_of(self, run: SpilledRun) -> int:
        """Return the messages of a run that has bytes; 0 without a reader."""
        if self._read_back is None or not run.total_bytes:
            return 0
        return run.messages(self._read_back.message_bytes)

    def _next_spilling(self) -> OutgoingBuffer:
        consumer = self._spilling.popleft().consumer
        piece = consumer.build_last()
        if consumer.data_type == DATA:
            return OutgoingBuffer(piece.payload, piece.recycle, DATA)
        event = OutgoingBuffer(bytes(piece.payload), None, consumer.data_type)
        piece.recycle()
        return event

    def _next_spilled(self, credit: int) -> OutgoingBuffer | None:
        run = self._spilled[0]
        reading = self._reading
        if reading is None:
            if credit <= 0 or self._read_back is None:
                return None
            reading = self._open_run(run, self._read_back)
        buffer = reading.next_buffer(credit)
        if buffer is None:
            return None
        if run.data_type != DATA:  # short, and in one buffer
            event = OutgoingBuffer(bytes(buffer.payload), None, run.data_type)
            if buffer.release is not None:
                buffer.release()
            buffer = event
        if reading.backlog == 0:
            self._reading = None
            self._spilled.popleft()
            run.uncharge()
            reading.release()
        return buffer

    def _open_run(self, run: SpilledRun, read_back: ReadBack) -> StoredPartitionView:
        sizes = read_back.sizes
        most = read_back.message_bytes
        if run.data_type != DATA:
            most = max(most, MAX_EVENT_BYTES)
        reading = self._reading = stored_view(
            self._store,
            list(run.slices),
            SubpartitionRange(self._key, self.index, self.index + 1),
            ReadSizes(sizes.segment_bytes, most, most),
            read_back.read_pool,
            self._read_ended,
            _nothing,
        )
        self._spilled_buffers -= run.buffers
        self._spilled_messages -= self._messages_of(run)
        return reading

    def _tell_reader(self, *, again: bool = False) -> None:
        super()._tell_reader(again=again)
        self._completed()  # what a reader may take can be spilled, too

    def _read_ended(self) -> None:
        """Notify the reader: spilled bytes have been read, or cannot be."""
        self._tell_reader(again=True)

    def _drop_all(self, failure: SluiceError | None, reason: str) -> BufferBuilder | None:
        spilling, self._spilling = self._spilling, deque()
        spilled, self._spilled = self._spilled, deque()
        reading, self._reading = self._reading, None
        self._spilled_buffers = self._spilled_messages = 0
        self._read_back = None
        if reading is not None:
            reading.release()
            spilled.popleft().uncharge()
        for run in spilled:
            run.release()
        for each in spilling:
            each.consumer.close()
        return super()._drop_all(failure, reason)


class HybridSubpartitionView(PipelinedSubpartitionView):
    """The reader's side, which also needs to know how to read spilled bytes."""

    __slots__ = ("_hybrid",)

    def __init__(self, subpartition: HybridSubpartition, listener: DataListener) -> None:
        super().__init__(subpartition, listener)
        self._hybrid = subpartition

    @property
    def holds_segments(self) -> bool:
        """Whether a part is in memory: what is in a tier takes no segments."""
        return self._hybrid.holds_segments

    def read_back_by(self, sizes: ReadSizes, read_pool: Callable[[], LocalBufferPool]) -> None:
        """Set how spilled bytes are read; without it the view gives none of them."""
        if not self._released and self._hybrid.state is not SubpartitionState.RELEASED:
            self._hybrid.read_back_by(ReadBack(sizes, read_pool))


def _nothing(view: StoredPartitionView) -> None:
    """Do nothing: the run counts its slices itself."""
